"""Distances from stored profiles: laws, agreement with exact statistics, and what chance alone gives."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.validation.drift import Drift, drift
from ml_assets.data.validation.profile import profile

random = np.random.default_rng(0)


def of(values: object, bins: int = 10) -> dict[str, object]:
    return profile(pl.DataFrame({"x": values}, strict=False), bins=bins)


def one(before: object, now: object) -> Drift:
    return drift([of(before)], [of(now)])["x"]


samples = st.lists(st.integers(-1000, 1000), min_size=1, max_size=200) | st.lists(
    st.sampled_from(["AA", "B6", "UA"]), min_size=1, max_size=200
)


@settings(max_examples=60)
@given(samples, st.integers(1, 3))
def test_same_distribution_has_no_distance(values: list[object], times: int) -> None:
    found = one(values, values * times)
    if times == 1 or isinstance(values[0], str):
        assert found.linf == pytest.approx(0, abs=1e-9)
        assert (found.ks or 0) == pytest.approx(0, abs=1e-9)
    # More numbers may draw the edges of a profile between other values: near, not exact.
    assert found.psi <= 0.5
    assert found.rows == (len(values), len(values) * times)


@settings(max_examples=60)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=99),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=99),
)
def test_distances_stay_in_their_ranges(before: list[float], now: list[float]) -> None:
    found = one(before, now)
    assert found.psi >= -1e-12
    assert -1e-12 <= found.js <= math.log(2)
    assert 0 <= found.linf <= 1 + 1e-9
    assert found.ks is not None
    assert 0 <= found.ks <= 1 + 1e-9


def test_binned_ks_is_close_to_the_exact_one() -> None:
    before, now = random.normal(size=100_000), random.normal(0.2, 1.1, size=100_000)
    points = np.sort(np.concatenate([before, now]))
    cumulative = [np.searchsorted(np.sort(some), points, side="right") / len(some) for some in (before, now)]
    exact = np.abs(cumulative[0] - cumulative[1]).max()
    ks = one(before, now).ks
    assert ks is not None
    assert ks == pytest.approx(exact, abs=0.01)


def test_psi_agrees_with_its_formula_on_raw_rows() -> None:
    before, now = random.normal(size=50_000), random.normal(0.3, 1, size=50_000)
    edges = np.quantile(before, np.arange(1, 10) / 10)
    p, q = (np.bincount(np.searchsorted(edges, some), minlength=10) / len(some) for some in (before, now))
    assert one(before, now).psi == pytest.approx(((q - p) * np.log(q / p)).sum(), rel=0.1)


def test_window_of_days_is_compared_like_its_rows() -> None:
    before, days = random.gamma(2, size=20_000), random.gamma(2.5, size=(7, 900))
    together = drift([of(before, bins=50)], [of(days.ravel(), bins=50)])["x"]
    apart = drift([of(before, bins=50)], [of(day) for day in days])["x"]
    assert apart.rows == together.rows
    assert apart.psi == pytest.approx(together.psi, rel=0.15)
    assert apart.ks == pytest.approx(together.ks, rel=0.15)


def test_without_change_psi_is_what_chance_gives() -> None:
    found = [one(random.normal(size=2000), random.normal(size=900)) for _ in range(60)]
    assert np.mean([each.psi for each in found]) == pytest.approx(found[0].psi_expected, rel=0.25)
    assert np.mean([each.psi_excess for each in found]) < found[0].psi_expected / 2


@pytest.mark.parametrize("days", [1, pytest.param(28, marks=pytest.mark.nightly)])
def test_a_hundred_unchanged_categories_have_no_excess(days: int) -> None:
    """Draw days: the most frequent of them change by chance, and so do the rows of a rare one."""
    names = [f"c{n}" for n in range(100)]
    for shares in (np.ones(100), 1 / np.arange(1, 101) ** 1.5):
        draw = np.random.default_rng(11)
        p = shares / shares.sum()
        found = [
            drift(
                [of(draw.choice(names, 900, p=p)) for _ in range(days)], [of(draw.choice(names, 900, p=p))]
            )["x"]
            for _ in range(30)
        ]
        assert np.mean([one.psi for one in found]) == pytest.approx(
            np.mean([one.psi_expected for one in found]), rel=0.2
        )
        assert np.mean([one.psi_excess for one in found]) < 0.02


def test_a_shift_within_a_hundred_categories_shows() -> None:
    names, draw = [f"c{n}" for n in range(100)], np.random.default_rng(12)
    before = [of(draw.choice(names, 900)) for _ in range(28)]
    now = [*draw.choice(names, 720), *["c42"] * 180]
    assert drift(before, [of(now)])["x"].psi_excess > 0.25


def test_values_on_both_sides_of_a_constant_show() -> None:
    for now in (-1.0, 1.0):
        assert one([0.0] * 100, [now] * 100).linf == pytest.approx(1)


def test_a_profile_without_buckets_is_not_compared() -> None:
    """Profiles of an earlier form list only the most frequent of many values."""
    values = [f"c{n}" for n in range(100)]
    profiled = of(values)
    profiled["columns"]["x"].pop("buckets")  # type: ignore[index]
    assert drift([profiled], [of(values)]) == {}


def test_new_and_missing_values_show() -> None:
    found = one(["AA"] * 50 + ["B6"] * 50, ["AA"] * 50 + ["ZZ"] * 40 + [None] * 10)
    assert found.ks is None
    assert found.linf == pytest.approx(0.5)
    assert found.psi > 1
    assert found.missing == (0.0, 0.1)


def test_column_without_rows_on_a_side_has_no_distance() -> None:
    assert drift([of([1.0, 2.0])], [of([None, None])]) == {}
    assert drift([], [of([1.0])]) == drift([of([1.0])], []) == {}
    for column in (pl.Series([1]).cast(pl.Date), pl.Series([b"\x89", None])):
        profiled = profile(pl.DataFrame({"x": column}))
        assert drift([profiled], [profiled]) == {}
