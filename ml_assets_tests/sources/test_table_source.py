"""A table of another lake as a source: partitions at one commit, changes by commit, a moved table."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.components import Dataset
from ml_assets.components.documents import attribute_faults
from ml_assets.data.sources.protocol import ReadPartition, SourceReader, SourceRefused, Span
from ml_assets_tests.components.installation import Installation, component, failure_of, materialized
from ml_assets_tests.sources import hourly_sales, sales
from ml_assets_tests.sources.hourly_sales import HOURLY, HOURS, LAST, require_every_hour, rows_of
from ml_assets_tests.sources.landed_sales import reader_of
from ml_assets_tests.sources.sales import ANSWERS, DATASET, DAYS, SALES, rows

HERE = "datasets/bought"
HOURLY_SALES = hourly_sales.__name__


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    yield
    ANSWERS.clear()


@pytest.fixture
def other(tmp_path: Path) -> Installation:
    """Another project with four days of sales."""
    made = Installation(
        tmp_path / "other",
        components=[component(Dataset, DATASET, source={"function": f"{sales.__name__}.read"})],
    )
    result = made.run(SALES, partition=DAYS[0], last=DAYS[3])
    assert result.success, failure_of(result)
    return made


def _here(
    tmp_path: Path, other: Installation, changes: dict[str, Any] | None = None, **source: Any
) -> Installation:
    section = {"kind": "table", "table": SALES, "lake": str(other.settings.lake_folder), **source}
    named = component(Dataset, DATASET | {"name": "bought"}, source=section, **(changes or {}))
    return Installation(tmp_path / "here", components=[named])


def _sell_more(other: Installation, day: str) -> str:
    """Change a day of the other project; return its commit before."""
    before = other.platform.lake.resolve("main")
    ANSWERS[day] = lambda: rows(day).with_columns(pl.col("price") * 2)
    assert other.run(SALES, partition=day).success
    return before


def test_partitions_of_another_lake_land_with_their_digests(tmp_path: Path, other: Installation) -> None:
    here = _here(tmp_path, other)
    result = here.run(HERE, partition=DAYS[0], last=DAYS[3])
    assert result.success, failure_of(result)
    for day in DAYS[:4]:
        assert here.main.scan(HERE, [day]).collect().equals(rows(day))
    commit = other.platform.lake.read_commit(other.platform.lake.resolve("main"))
    shown = materialized(result, HERE)[DAYS[3]].metadata["source watermark"].value
    assert datetime.fromisoformat(str(shown)) == commit.created_at
    assert reader_of(here, SourceReader).latest() == date.fromisoformat(DAYS[3])
    assert reader_of(here, SourceReader).check() == []
    assert reader_of(here, SourceReader).preview(2).equals(rows(DAYS[3])[:2])
    said = failure_of(here.run(HERE, partition=DAYS[4]))
    assert f"has no partition {DAYS[4]}: materialize" in said


def test_a_day_comes_from_its_hours_and_an_hour_never_from_a_day(tmp_path: Path) -> None:
    source = {"function": f"{HOURLY_SALES}.rows_of"}
    hours = Installation(
        tmp_path / "hours", components=[component(Dataset, DATASET, source=source, **HOURLY)]
    )
    require_every_hour(hours)
    same = _here(tmp_path / "same", hours, HOURLY)
    assert same.run(HERE, partition="2024-03-08T05", last="2024-03-08T17").success
    assert same.main.scan(HERE, ["2024-03-08T17"]).collect().equals(rows_of(HOURS[12]))
    assert reader_of(same, SourceReader).latest() == LAST
    utc = {"contract": HOURLY["contract"]}
    days = _here(tmp_path / "days", hours, utc)
    assert days.run(HERE, partition=DAYS[1]).success
    assert days.main.scan(HERE, [DAYS[1]]).collect().equals(pl.concat(map(rows_of, HOURS[19:43])))
    assert reader_of(days, SourceReader).latest() == date.fromisoformat("2024-03-12")
    finer = _here(tmp_path / "finer", days, HOURLY, table=HERE)
    said = failure_of(finer.run(HERE, partition=f"{DAYS[1]}T05"))
    assert "has daily partitions" in said
    assert "the cadence daily" in said


def _reopened(here: Installation) -> set[date]:
    """Return the first days of the partitions that a sensor would request again."""
    spans = {
        Span(day := date.fromisoformat(key), day + timedelta(days=1)): key for key in here.main.keys(HERE)
    }
    manifests = here.main.manifests(HERE, list(spans.values()))
    read = {
        span: ReadPartition(manifests[key].watermark, manifests[key].source_version)
        for span, key in spans.items()
    }
    return {span.first for span in reader_of(here, SourceReader).look(read, ()).changed}


def test_changed_days_follow_from_digests_and_a_pin_keeps_the_rows(
    tmp_path: Path, other: Installation
) -> None:
    here = _here(tmp_path, other)
    assert here.run(HERE, partition=DAYS[0], last=DAYS[3]).success
    assert _reopened(here) == set()
    commit = _sell_more(other, DAYS[1])
    assert _reopened(here) == {date.fromisoformat(DAYS[1])}
    digests = here.main.digests(HERE)
    assert _here(tmp_path, other, ref=commit).run(HERE, partition=DAYS[1]).success
    assert here.main.digests(HERE) == digests
    assert here.run(HERE, partition=DAYS[1]).success
    assert _reopened(here) == set()
    assert here.main.scan(HERE, [DAYS[1]]).collect()["price"].to_list() == [
        3.0,
        2 * rows(DAYS[1])["price"][1],
        0.0,
    ]


def test_a_table_without_changes_is_not_published_again(tmp_path: Path, other: Installation) -> None:
    """The watermark is the time of the commit about the partition, not of the newest one."""
    here = _here(tmp_path, other)
    assert here.run(HERE, partition=DAYS[0]).success
    commit = here.platform.lake.resolve("main")
    _sell_more(other, DAYS[1])
    assert here.run(HERE, partition=DAYS[0]).success
    assert here.platform.lake.resolve("main") == commit


@pytest.mark.parametrize(
    ("source", "changes", "said"),
    [
        ({"lake": "/nowhere"}, {}, "/nowhere is not the folder of a lake. Check source.lake"),
        ({"ref": "mian"}, {}, "cannot be read"),
        ({"table": "datasets/sale"}, {}, "has no partition: correct source.table"),
        ({"lake": None, "table": HERE}, {}, "source.table is the table itself"),
        ({}, {"partitions": {"cadence": "weekly", "start": DAYS[0], "end": DAYS[-1]}}, "has no partition"),
        ({}, {"partitions": None}, "has daily partitions: declare the same `partitions`"),
    ],
)
def test_a_wrong_address_is_refused_with_its_remedy(
    tmp_path: Path, other: Installation, source: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    here = _here(tmp_path, other, changes, **source)
    partition = None if "partitions" in changes and changes["partitions"] is None else DAYS[0]
    if "partitions" in changes and partition:
        partition = "2024-03-04"
    try:
        found = failure_of(here.run(HERE, partition=partition))
    except SourceRefused as error:
        found = str(error)
    assert said in found
    assert here.main.keys(HERE) == []


def test_changed_columns_of_the_other_table_are_named(tmp_path: Path, other: Installation) -> None:
    contract = {**DATASET["contract"], "columns": DATASET["contract"]["columns"][:-1]}
    here = _here(tmp_path, other, {"contract": contract})
    (fault,) = reader_of(here, SourceReader).check()
    assert "added: changed_at (datetime). " in fault
    assert "in its own project" in fault


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"table": "sales"}, "pattern"),
        ({"table": SALES, "url_env": "LAKE"}, "go together"),
        (
            {
                "table": SALES,
                "url_env": "LAKE",
                "access_key_id_env": "KEY",
                "secret_access_key_env": "SECRET",
            },
            "a server of its own needs `lake: lakefs://repository`",
        ),
    ],
)
def test_a_wrong_section_is_refused(source: dict[str, Any], said: str) -> None:
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": {"kind": "table", **source}})
    assert [words for _, words in faults if said in words], faults
