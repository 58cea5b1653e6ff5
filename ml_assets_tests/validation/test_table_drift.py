"""Drift of a partition from its table's own past: quiet without a change, loud with one, by profiles alone."""

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.data.validation.drift_rule import DriftRule
from ml_assets.data.validation.profile import profile
from ml_assets.data.validation.table_drift import PastAndNow, TableDrift

WINDOW = 28
KEYS = [(date(2024, 1, 1) + timedelta(n)).isoformat() for n in range(WINDOW + 1)]
Draw = np.random.Generator


def compared(days: list[pl.DataFrame], **rule: Any) -> TableDrift | None:
    """Compare the last of `days` with all days before it."""
    keys = KEYS[: len(days)]
    profiles = {key: profile(one) for key, one in zip(keys, days, strict=True)}
    return PastAndNow(profiles).compare(keys[-1], keys[:-1], DriftRule.model_validate(rule))


def drifting(days: list[pl.DataFrame], **rule: Any) -> list[str]:
    found = compared(days, **rule)
    assert found is not None
    return [one.column for one in found.drifting]


def a_table(draw: Draw, rows: int) -> dict[str, Any]:
    """Columns of a day like those of the demo: normal, skewed, whole, few values, and texts of many kinds."""
    numbers = {f"normal_{n}": draw.normal(n, 1 + n, rows) for n in range(12)}
    skewed = {f"skewed_{n}": draw.gamma(1 + n, 2, rows) for n in range(8)}
    whole = {f"whole_{n}": draw.poisson(3 + 20 * n, rows) for n in range(6)}
    rare = {f"rare_{n}": draw.random(rows) < 0.02 * (n + 1) for n in range(4)}
    shares = 1 / np.arange(1, 101) ** 1.2
    texts = {
        "even": draw.choice([f"e{n}" for n in range(100)], rows),
        "uneven": draw.choice([f"u{n}" for n in range(100)], rows, p=shares / shares.sum()),
        "few": draw.choice(["EWR", "JFK", "LGA"], rows),
    }
    return {**numbers, **skewed, **whole, **rare, **texts}


@pytest.mark.parametrize("rows", [72, 900])
def test_unchanged_days_stay_quiet(rows: int) -> None:
    """On independent days of the sizes of the demo's tables, 33 columns together: at most 5 % of them may be yellow."""
    draw = np.random.default_rng(rows)
    profiles = [profile(pl.DataFrame(a_table(draw, rows))) for _ in range(120)]
    keys = [(date(2024, 1, 1) + timedelta(n)).isoformat() for n in range(len(profiles))]
    compared = PastAndNow(dict(zip(keys, profiles, strict=True)))
    found = [compared.compare(keys[n], keys[n - WINDOW : n], DriftRule()) for n in range(WINDOW, len(keys))]
    yellow = [one for one in found if one is not None and one.drifting]
    assert len(yellow) <= 0.05 * len(found)


MOVED = [f"{kind}_{n}" for kind, count in (("normal", 12), ("skewed", 8), ("whole", 6)) for n in range(count)]


def test_a_shift_by_half_a_standard_deviation_is_found_the_same_day() -> None:
    draw = np.random.default_rng(3)
    past = [pl.DataFrame(a_table(draw, 900)) for _ in range(WINDOW)]
    half = pl.concat(past).select(pl.col(MOVED).cast(pl.Float64).std() / 2).row(0, named=True)
    trials = {f"trial {n}": MOVED[n % len(MOVED)] for n in range(60)}
    days = {
        key: pl.DataFrame(a_table(draw, 900)).with_columns(pl.col(name) + half[name])
        for key, name in trials.items()
    }
    both = PastAndNow(
        {key: profile(one) for key, one in {**dict(zip(KEYS, past, strict=False)), **days}.items()}
    )
    found = {key: both.compare(key, KEYS[:WINDOW], DriftRule()) for key in trials}
    hits = [
        key for key, one in found.items() if one and [each.column for each in one.drifting] == [trials[key]]
    ]
    assert len(hits) >= 0.95 * len(trials)


def of(
    values: Mapping[str, Callable[[Draw], Any]], days: int = WINDOW + 1, seed: int = 0
) -> list[pl.DataFrame]:
    draw = np.random.default_rng(seed)
    return [pl.DataFrame({name: one(draw) for name, one in values.items()}) for _ in range(days)]


BOTH = {"a": lambda draw: draw.normal(size=400), "b": lambda draw: draw.normal(size=400)}


def test_a_column_that_always_moves_is_quiet_and_hides_no_other() -> None:
    """Each day has its own mean of `a`, as a temperature has."""
    days = of({"a": lambda draw: draw.normal(draw.normal(0, 3), 1, 400), "b": BOTH["b"]})
    days[-1] = days[-1].with_columns(pl.col("a") + 2)
    assert drifting(days) == []
    assert drifting([*days[:-1], days[-1].with_columns(pl.col("b") + 1)]) == ["b"]


def test_a_lasting_shift_is_found_on_two_days_and_is_then_the_past() -> None:
    days = of(BOTH)
    moved = [one.with_columns(pl.col("a") + 1) for one in of(BOTH, days=3, seed=1)]
    for already, expected in enumerate((["a"], ["a"], [])):
        assert drifting([*days[: WINDOW - already], *moved[: already + 1]]) == expected


def test_missing_values_a_constant_and_a_new_value_are_found() -> None:
    still = {"constant": lambda draw: np.zeros(400), "kind": lambda draw: draw.choice(["x", "y"], 400)}
    days = of(still | BOTH)
    assert drifting(days) == []
    for changed in (
        pl.when(pl.int_range(400) < 100).then(None).otherwise(pl.col("a")).alias("a"),
        pl.lit(None, pl.Float64).alias("a"),
        pl.lit(-1.0).alias("constant"),
        pl.lit(1.0).alias("constant"),
        pl.when(pl.int_range(400) < 100).then(pl.lit("new")).otherwise(pl.col("kind")).alias("kind"),
    ):
        assert drifting([*days[:-1], days[-1].with_columns(changed)]) == [changed.meta.output_name()]


def test_a_shift_within_a_hundred_categories_is_found() -> None:
    names = [f"c{n}" for n in range(100)]
    days = of({"dest": lambda draw: draw.choice(names, 900)})
    assert drifting(days) == []
    moved = days[-1].with_columns(
        pl.when(pl.int_range(900) < 90).then(pl.lit("c42")).otherwise(pl.col("dest")).alias("dest")
    )
    assert drifting([*days[:-1], moved]) == ["dest"]


def test_limits_and_ignored_columns_are_those_of_the_policy() -> None:
    days = of(BOTH)
    days[-1] = days[-1].with_columns(pl.all() + 0.6)
    assert sorted(drifting(days)) == ["a", "b"]
    assert drifting(days, ignore=["a"]) == ["b"]
    assert drifting(days, columns={"a": 3}) == ["b"]
    assert drifting(days, at_most=3) == []


def test_too_little_past_is_not_compared() -> None:
    days = of(BOTH)
    assert compared(days[:14]) is None
    assert compared(days[:15]) is not None
    assert compared([*days[:13], days[0].clear(), days[-1]]) is None  # an empty day is no past
    assert compared([*days[:-1], days[-1].clear()]) is None


def test_findings_name_column_change_and_remedy() -> None:
    days = of(BOTH)
    days[-1] = days[-1].with_columns(pl.col("a") + 10)
    keys = KEYS[: len(days)]
    both = PastAndNow({key: profile(one) for key, one in zip(keys, days, strict=True)})
    rule = DriftRule(severity="error")
    found = both.compare(keys[-1], keys[:-1], rule)
    assert found is not None
    (finding,) = both.findings(keys[-1], found, rule)
    assert (finding.rule, finding.column, finding.blocks) == ("drift", "a", True)
    assert "mean" in finding.measured
    assert "declared 0.1" in finding.limit
    assert re.search("28 partitions .* 2024-01-01 to 2024-01-28", finding.explanation)
    assert "accept the partition" in finding.explanation
    assert both.findings(keys[-1], found, DriftRule())[0].severity == "warn"
