"""Rows whose label was not known when the next split began are not trained on, and evaluation scores the same rows."""

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.components import TrainingPipeline
from ml_assets.data.snapshots.row_rules import LABEL_TOO_LATE
from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.steps.snapshot import row_choice
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import (
    STAGES,
    Installation,
    component,
    failure_of,
    readings_components,
)
from ml_assets_tests.components.readings_pipeline import HOLDOUT, TRAIN, VALIDATION, WINDOW, days
from ml_assets_tests.snapshots.chosen_rows import chosen_rows

ROWS_A_DAY = len(readings_pipeline.MACHINES) * len(readings_pipeline.HOURS)
DAY = days(1, start=WINDOW)[0]


def _pipeline(embargo: int, zone: str = "UTC", cadence: str = "daily") -> dict[str, Any]:
    return {
        "window": readings_pipeline.PIPELINE["window"] | {"embargo": embargo},
        "features": readings_pipeline.PIPELINE["features"] | {"time_zone": zone},
        "partitions": readings_pipeline.PARTITIONS | {"cadence": cadence},
    }


@given(
    zone=st.sampled_from(["UTC", "America/New_York", "Africa/Cairo", "America/Santiago", "Asia/Kathmandu"]),
    start=st.dates(date(2023, 1, 1), date(2024, 12, 31)),
    weekly=st.booleans(),
    embargo=st.integers(0, 3),
    delays=st.lists(st.integers(0, 24 * 30), min_size=WINDOW, max_size=WINDOW),
)
def test_a_row_is_taken_if_its_label_was_known_before_the_embargo(
    zone: str, start: date, weekly: bool, embargo: int, delays: list[int]
) -> None:
    """The embargo lies between the end of a split and the beginning of the next one."""
    step = timedelta(days=7 if weekly else 1)
    first = start - timedelta(days=start.weekday()) if weekly else start

    def midnight(partition: int) -> datetime:
        return datetime.combine(first + partition * step, time(), ZoneInfo(zone)).astimezone(UTC)

    firsts = [first + n * step for n in range(WINDOW)]
    known_at = [midnight(n) + timedelta(hours=delay) for n, delay in enumerate(delays)]
    table = pl.DataFrame(
        {
            # Each partition has a row whose label is known at once, so that no split is empty.
            "partition_date": firsts * 2,
            "made": [float(n) for n in range(2 * WINDOW)],
            "label_known_at": pl.Series(
                [*known_at, *[midnight(-4)] * WINDOW], dtype=pl.Datetime("us", "UTC")
            ),
        }
    )
    spec = component(
        TrainingPipeline,
        readings_pipeline.PIPELINE,
        **_pipeline(embargo, zone, "weekly" if weekly else "daily"),
    ).spec
    chosen = chosen_rows(table, *row_choice(spec, [day.isoformat() for day in firsts]))
    limits = [midnight(TRAIN - embargo)] * TRAIN
    limits += [midnight(TRAIN + VALIDATION - embargo)] * VALIDATION
    limits += [midnight(WINDOW)] * HOLDOUT
    in_time = [known <= limit for known, limit in zip(known_at, limits, strict=True)]
    assert [one.rows for one in chosen.index()] == [1 + known for known in in_time]
    assert [one.excluded for one in chosen.index()] == [
        {} if known else {LABEL_TOO_LATE: 1} for known in in_time
    ]


@pytest.fixture(scope="module")
def late(shared_installation: Installation) -> Installation:
    """Labels of each day are known a day after it."""
    readings_pipeline.SOURCE.spoiled |= dict.fromkeys(days(WINDOW + 1), _known_late)
    try:
        return shared_installation.with_tables(1)
    finally:
        readings_pipeline.SOURCE.mend()


def _known_late(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col("closed_at") + timedelta(days=1))


@pytest.mark.nightly
def test_page_and_report_say_how_many_rows_were_known_too_late(late: Installation) -> None:
    """The last day of each split is left out: in 18 days, three."""
    quick = readings_pipeline.PIPELINE["training"] | {"epochs": 1, "workers": 1}
    facts = late.declared_as(readings_components(pipeline={"training": quick})).trained(DAY)
    assert facts[STAGES[0]]["left out"] == {LABEL_TOO_LATE: 3 * ROWS_A_DAY}
    page = Path(facts[STAGES[2]]["report_file"].removeprefix("file://"))
    report = Report.model_validate_json((page.parent / "evaluation.json").read_text())
    assert [one.left_out for one in report.splits] == [{LABEL_TOO_LATE: ROWS_A_DAY}] * 3
    taken = [(size - 1) * ROWS_A_DAY for size in (TRAIN, VALIDATION, HOLDOUT)]
    assert [one.rows for one in report.splits] == taken
    assert report.evaluation.rows == taken[-1]
    (manifest,) = (late.settings.cache_folder / "snapshots").glob("*/snapshot.json")
    frozen = open_snapshot(manifest.parent)
    assert report.lineage["holdout rows"] == frozen.index_of("holdout").sha256
    assert [one.rows for one in frozen.splits] == taken
    begin_of_holdout = (date.fromisoformat(DAY) - timedelta(days=HOLDOUT - 1)).isoformat()
    assert report.splits[1].known_by == f"{begin_of_holdout}T00:00:00+00:00"
    assert f"{LABEL_TOO_LATE}: {ROWS_A_DAY}" in page.read_text()
    said = f"* {ROWS_A_DAY} of {TRAIN * ROWS_A_DAY} train rows are left out: {LABEL_TOO_LATE} ({ROWS_A_DAY})."
    assert said in facts[STAGES[2]]["summary"]


def test_an_embargo_that_leaves_a_split_without_rows_is_refused(late: Installation) -> None:
    result = late.declared_as(readings_components(pipeline=_pipeline(1))).train(DAY)
    said = failure_of(result)
    assert f"has no row. Left out: {LABEL_TOO_LATE}: {2 * ROWS_A_DAY}. A label is known in time if" in said
    assert "Move the window, shorten its embargo, or fix the feature function" in said
