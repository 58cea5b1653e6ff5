"""Drift as a user meets it: declared in `defs.yaml`, shown as a check of the table, stored with its verdict."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from ml_assets.components.specs import DatasetSpec
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.validation.verdict import Verdict
from ml_assets_tests.components.installation import Installation, materialized, readings_components
from ml_assets_tests.components.readings_pipeline import DATASET, READINGS, Source, days
from resources.ledger import Person

KEYS = days(20)
TODAY = KEYS[-1]
WINDOW = {"window": 16}


def more(column: str, by: float) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda rows: rows.with_columns(pl.col(column) + by)


def declared(installation: Installation, **drift: Any) -> Installation:
    return installation.declared_as(readings_components(dataset={"drift": WINDOW | drift}))


def checks(result: Any) -> dict[str, Any]:
    return {check.check_name: check for check in result.get_asset_check_evaluations()}


def test_unchanged_days_are_green_and_shown(installation: Installation) -> None:
    installation = declared(installation)
    result = installation.run(READINGS, partition=KEYS[0], last=TODAY)
    drift = checks(result)["drift"]
    assert drift.passed
    assert drift.description == "20 partitions validated, 0 drifted"
    facts = {key: one.metadata for key, one in materialized(result, READINGS).items()}
    assert "drift" not in facts[KEYS[7]]  # seven days are too little past
    assert 0 <= facts[KEYS[8]]["drift"].value < 1
    shown = facts[TODAY]["drift of columns"].value
    assert f"{TODAY} against 16 partitions, {KEYS[3]} to {KEYS[18]}" in shown
    assert "\n| made " in shown
    assert "\n| at " not in shown


@pytest.mark.parametrize("at_once", [True, False])
def test_a_planted_shift_is_yellow_with_its_column(
    installation: Installation, source: Source, at_once: bool
) -> None:
    """Land the day in a backfill, and alone."""
    source.spoiled[TODAY] = more("made", 12)
    installation = declared(installation)
    if not at_once:
        installation.run(READINGS, partition=KEYS[0], last=KEYS[-2])
    result = installation.run(READINGS, partition=KEYS[0] if at_once else TODAY, last=TODAY)
    assert result.success
    found = checks(result)
    drift = found["drift"]
    assert not drift.passed
    assert drift.severity.value == "WARN"
    assert drift.description.endswith(f"1 drifted: {TODAY} in made")
    (row,) = [record.data for record in drift.metadata["findings"].records]
    assert (row["partition"], row["rule"], row["column"]) == (TODAY, "drift", "made")
    assert found["warnings"].passed
    verdict = Verdict.from_json(
        installation.platform.ledger.newest_verdicts(READINGS, [TODAY])[TODAY].body_json
    )
    assert (verdict.status, [one.column for one in verdict.findings]) == ("warned", ["made"])
    again = installation.run(READINGS, partition=TODAY, last=TODAY)
    assert not checks(again)["drift"].passed


def swaying(day: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return a plant that works at another load each day and makes accordingly."""
    by = 0.5 * np.random.default_rng([11, int(day.replace("-", ""))]).random()
    return lambda rows: rows.with_columns(
        pl.col("load") * 0.5 + by, pl.col("made") + 20 * by - 10 * pl.col("load")
    )


def test_a_mean_that_moves_by_itself_counts_given_the_others(
    installation: Installation, source: Source
) -> None:
    """`made` follows a load that differs from day to day; today both do not fit. Which one is wrong cannot be told."""
    for day in KEYS:
        source.spoiled[day] = swaying(day)
    moved = swaying(TODAY)
    source.spoiled[TODAY] = lambda rows: more("made", -2)(moved(rows))
    result = declared(installation).run(READINGS, partition=KEYS[0], last=TODAY)
    drift = checks(result)["drift"]
    (row,) = [record.data for record in drift.metadata["findings"].records]
    assert (row["partition"], row["column"] in ("made", "load")) == (TODAY, True)
    assert "which the other columns predict" in row["found"]
    assert "standard deviations; declared 0.30" in row["expected"]
    page = {key: one.metadata for key, one in materialized(result, READINGS).items()}[TODAY]
    assert page["drift"].value > 1
    (line,) = [one for one in page["drift of columns"].value.splitlines() if one.endswith("| drifts |")]
    assert line.startswith(f"| {row['column']} ")
    off = declared(installation, given_others=False).run(READINGS, partition=TODAY)
    assert checks(off)["drift"].passed


def test_severity_error_keeps_a_drift_from_main_until_it_is_accepted(
    installation: Installation, source: Source
) -> None:
    source.spoiled[TODAY] = more("made", 12)
    installation = declared(installation, severity="error")
    result = installation.run(READINGS, partition=KEYS[0], last=TODAY)
    assert not result.success
    drift = checks(result)["drift"]
    assert (drift.passed, drift.severity.value) == (False, "ERROR")
    assert TODAY not in installation.main.keys(READINGS)
    accept_partition(
        installation.platform.lake,
        installation.platform.ledger,
        READINGS,
        TODAY,
        Person.unchecked("Ada"),
        "the new mill is faster",
    )
    again = installation.run(READINGS, partition=TODAY, last=TODAY)
    assert again.success
    assert checks(again)["drift"].passed


def test_days_of_the_same_weekday_are_compared(installation: Installation, source: Source) -> None:
    """Compare Sundays, which make more, with Sundays."""
    keys = days(70)
    for sunday in keys[6::7]:
        source.spoiled[sunday] = more("made", 12)
    seasonal = declared(installation, window=8, same_weekday=True)
    result = seasonal.run(READINGS, partition=keys[0], last=keys[-1])
    assert checks(result)["drift"].passed
    assert f"{keys[69]} against 8 partitions, {keys[13]} to {keys[62]}" in (
        materialized(result, READINGS)[keys[69]].metadata["drift of columns"].value
    )


@pytest.mark.parametrize(
    ("drift", "at", "said"),
    [
        ({"windw": 3}, "drift.windw", "unknown key 'windw': did you mean 'window'?"),
        ({"window": 3}, "drift.window", "greater than or equal to 8"),
        ({"given_others": {"windw": 9}}, "drift.given_others.windw", "did you mean 'window'?"),
        ({"given_others": {"at_most": 0}}, "drift.given_others.at_most", "greater than 0"),
        ({"severity": "block"}, "drift.severity", "'warn' or 'error'"),
        ({"at_most": 0}, "drift.at_most", "greater than 0"),
        ({"at_most": float("nan")}, "drift.at_most", "finite"),
        ({"columns": {"mde": 1}}, "drift.columns.mde", "not a column of the contract: did you mean 'made'?"),
        ({"columns": {"at": 1}}, "drift.columns.at", "'at' is a datetime, which is not compared"),
        ({"ignore": ["loud"]}, "drift.ignore.0", "did you mean 'load'?"),
        ({"columns": {"made": 1}, "ignore": ["made"]}, "drift.columns.made", "'made' is in `ignore`, too"),
    ],
)
def test_a_bad_policy_is_refused_at_its_key(drift: dict[str, Any], at: str, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        DatasetSpec.model_validate(DATASET | {"drift": drift})
    (error,) = refused.value.errors()
    assert ".".join(map(str, error["loc"])) == at
    assert said in error["msg"]


@pytest.mark.parametrize(
    ("partitions", "drift", "at", "said"),
    [
        (None, {}, "drift", "add partitions"),
        (
            {"cadence": "weekly", "start": "2024-01-01"},
            {"same_weekday": True},
            "drift.same_weekday",
            "weekly",
        ),
    ],
)
def test_a_policy_that_does_not_fit_the_partitions_is_refused(
    partitions: Any, drift: dict[str, Any], at: str, said: str
) -> None:
    source = {key: value for key, value in DATASET["source"].items() if key != "watch"}
    declared = DATASET | {"partitions": partitions, "drift": drift, "source": source}
    with pytest.raises(ValidationError) as refused:
        DatasetSpec.model_validate(declared)
    (error,) = refused.value.errors()
    assert ".".join(map(str, error["loc"])) == at
    assert said in error["msg"]
