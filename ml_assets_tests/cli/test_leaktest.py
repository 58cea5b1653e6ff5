"""`ml-assets leaktest` finds a column that knows the future, by exit status and by name."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ml_assets.components import FeatureTable
from ml_assets.data.tables.cadence import PartitionsSection
from ml_assets.defs.store_demand import features
from ml_assets_tests.cli.terminal import Terminal

TABLE = "features/sales_features"
LEAKTEST, LAUNCH = ("leaktest", TABLE), ("launch", TABLE, "2023-12-25..2024-01-01")
HONEST = features.sales_features


def leaking(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    return HONEST(inputs, first, last).with_columns(pl.col("units").alias("units_1w"))


_SEEN: dict[tuple[object, ...], object] = {}


def remembering(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """Looks outcomes up that an earlier call has seen."""
    rows = HONEST(inputs, first, last).collect()
    keys = rows.select("store", "partition_date").rows()
    for key, units in zip(keys, rows["units"], strict=True):
        if units is not None:
            _SEEN[key] = units
    return rows.with_columns(pl.Series("units_1w", [_SEEN.get(key) for key in keys], dtype=pl.Float32))


def drawing(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    rows = HONEST(inputs, first, last).collect()
    return rows.with_columns(pl.Series("units_1w", np.random.default_rng().random(rows.height)))


def test_honest_features_pass_and_what_counts_as_known_is_printed(filled_terminal: Terminal) -> None:
    said = filled_terminal("leaktest", "features/sales_features")
    assert said.status == 0
    assert said.out.startswith("no leak: ")
    assert "lookback suffices: 2024-01-01 and 2024-01-08 are identical when each is built alone" in said.out
    assert "assumed always known: datasets/sales: " in said.out


def test_an_empty_home_is_told_the_command_that_fills_it(terminal: Terminal) -> None:
    said = terminal("leaktest", TABLE)
    assert said.status == 1
    assert re.search(
        rf"no partition of {TABLE} yet\. Build some: ml-assets launch {TABLE} [\d-]+\.\.[\d-]+ --with-missing$",
        said.err.strip(),
    )


def test_the_offered_range_ends_before_the_week_that_runs(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = FeatureTable.load.__func__
    today = datetime.now(UTC).date()
    monday = today - timedelta(days=today.weekday())
    weeks = PartitionsSection(cadence="weekly", start=monday - timedelta(weeks=2))

    def recent(cls: type[FeatureTable], spec: Any, context: Any) -> FeatureTable:
        changed = {"partitions": weeks} if spec.name == "sales_features" else {}
        return load(cls, spec.model_copy(update=changed), context)

    monkeypatch.setattr(FeatureTable, "load", classmethod(recent))
    said = terminal(*LEAKTEST)
    assert f"launch {TABLE} {weeks.start}..{monday - timedelta(weeks=1)} --with-missing" in said.err


def test_a_lookback_too_short_is_named_with_column_day_and_values(
    filled_terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = FeatureTable.load.__func__

    def shortened(cls: type[FeatureTable], spec: Any, context: Any) -> FeatureTable:
        if spec.name == "sales_features":
            inputs = tuple(one.model_copy(update={"lookback": 1}) for one in spec.inputs)
            spec = spec.model_copy(update={"inputs": inputs})
        return load(cls, spec, context)

    monkeypatch.setattr(FeatureTable, "load", classmethod(shortened))
    said = filled_terminal(*LEAKTEST)
    assert said.status == 1
    assert "lookback is too short: units_4w of 2024-01-08 differs" in said.out
    assert re.search(r"2024-01-08 store_\d\d apples: \d+\.0 in the range, None alone", said.out)
    assert "units_1w of" not in said.out
    assert "lookback suffices" not in said.out


def test_a_single_partition_says_that_its_lookback_was_not_tested(filled_terminal: Terminal) -> None:
    said = filled_terminal(*LEAKTEST, "--first", "2024-01-08")
    assert said.status == 0
    assert (
        "lookback not tested: 2024-01-08 is the only partition of the range; choose an earlier --first"
        in said.out
    )


@pytest.mark.parametrize(
    ("function", "beginning", "also"),
    [
        (remembering, "units_1w uses facts from after ", "The function keeps state between calls"),
        (drawing, "units_1w is random, or depends on earlier calls: ", "Compute it from the inputs alone"),
    ],
)
def test_a_function_that_remembers_or_draws_is_called_so(
    filled_terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    beginning: str,
    also: str,
) -> None:
    monkeypatch.setattr(features, "sales_features", function)
    said = filled_terminal("leaktest", "features/sales_features")
    assert said.status == 1
    assert said.out.startswith(beginning)
    assert also in said.out


def test_a_feature_that_knows_the_weeks_own_sales_is_named(
    filled_terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "sales_features", leaking)
    said = filled_terminal("leaktest", "features/sales_features")
    assert said.status == 1
    assert said.out.startswith("units_1w uses facts from after ")
    assert "keeps state" not in said.out


def _mistyped(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    return HONEST(inputs, first, last).collect().select("untis")


def _mistyped_plan(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    return HONEST(inputs, first, last).select("untis")


def _forgetful(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> None:
    HONEST(inputs, first, last)


def _of_pandas(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pd.DataFrame:
    return HONEST(inputs, first, last).collect().to_pandas()


def _rows(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> list[tuple[Any, ...]]:
    return HONEST(inputs, first, last).collect().rows()


@pytest.mark.parametrize(
    ("typed", "broken", "line", "said"),
    [
        (LEAKTEST, _mistyped, 1, "_mistyped raised ColumnNotFoundError: "),
        (LAUNCH, _mistyped, 1, "_mistyped raised ColumnNotFoundError: "),
        (LEAKTEST, _mistyped_plan, 0, "_mistyped_plan raised ColumnNotFoundError: "),
        (
            LEAKTEST,
            _forgetful,
            0,
            "_forgetful: return a polars.DataFrame, got NoneType; a path through it ends without `return`\n",
        ),
        (LEAKTEST, _of_pandas, 0, "got pandas.DataFrame; polars.from_pandas(…) makes one\n"),
        (LAUNCH, _rows, 0, "got list; polars.DataFrame(…) makes one of rows\n"),
    ],
)
def test_a_broken_function_is_named_with_the_line_of_its_author(
    filled_terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    typed: tuple[str, ...],
    broken: Callable[..., Any],
    line: int,
    said: str,
) -> None:
    monkeypatch.setattr(features, "sales_features", broken)
    refused = filled_terminal(*typed)
    assert refused.status == 1
    place = f"ml_assets_tests/cli/test_leaktest.py:{broken.__code__.co_firstlineno + line}: "
    assert place in refused.err
    assert said in refused.err.partition(place)[2]
    assert "Traceback" not in refused.err
    assert "JOIN" not in refused.err  # of polars' plan


def test_a_day_is_a_day_however_it_is_written(filled_terminal: Terminal) -> None:
    same = [
        filled_terminal("leaktest", "features/sales_features", "--first", day)
        for day in ("2023-12-04", "2023-12-6")
    ]
    assert same[0].out == same[1].out
    assert same[0].out.startswith("no leak: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("features/nothing",),
            "there are: film_pages, flight_arrivals, flight_departures, sales_features, text_windows",
        ),
        (
            ("features/sales_features", "--first", "2030-01-07"),
            "no partition of features/sales_features between",
        ),
        (("features/sales_features", "--cuts", "0"), "0 is not in the range x>=1"),
        (("features/sales_features", "--last", "4.12.2023"), "does not match the format '%Y-%m-%d'"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_a_sentence(
    filled_terminal: Terminal, arguments: tuple[str, ...], said: str
) -> None:
    refused = filled_terminal("leaktest", *arguments)
    assert refused.status in (1, 2)
    assert said in refused.err
    assert "Traceback" not in refused.err
