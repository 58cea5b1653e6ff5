"""Medians and counts over sorted runs are those of all values at once, however the values are divided."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.features.encoding import (
    EncodingError,
    FittedState,
    counted_texts,
    fit,
    fit_categorical,
    fit_numeric,
    sorted_numbers,
)
from ml_assets.data.features.sorted_runs import RUN, VALUE, kths, map_texts, median, merged, write_texts

NUMBERS = st.one_of(
    st.lists(st.integers(-3, 3)),
    st.lists(st.integers(-(2**40), 2**40)),
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32)),
)
TEXTS = st.lists(st.text(alphabet="ab\U0001f600é", max_size=3), max_size=30)


def divided(values: list[Any], data: st.DataObject) -> list[list[Any]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=5)))
    return [values[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True)]


@given(values=NUMBERS.filter(len), data=st.data())
def test_any_place_is_that_of_the_sorted_values(values: list[float], data: st.DataObject) -> None:
    dtype = np.array(values).dtype
    runs = [np.sort(np.array(part, dtype=dtype)) for part in divided(values, data)]
    for at_once in (0, len(values)):
        assert kths(runs, range(len(values)), at_once).tolist() == sorted(values)
    with np.errstate(over="ignore"):
        assert median(runs) == float(np.median(np.array(values, dtype=np.float64)))


def test_of_many_equal_values_few_are_copied() -> None:
    """Half of all rows may have the same value, such as 0."""
    runs = [np.repeat([0.0, 1.0, 2.0], [3_000, 4_000, 3_000 + n]) for n in range(50)]
    assert kths(runs, (0, 149_999, 150_000, 349_999, 350_000), at_once=0).tolist() == [0, 0, 1, 1, 2]


def test_no_values_have_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([np.empty(0)])


@settings(deadline=None)
@given(values=TEXTS, at_once=st.integers(1, 12), data=st.data())
def test_ranges_ascend_and_hold_each_text_once(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], at_once: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    runs: list[Any] = []
    for number, part in enumerate(divided(values, data)):
        write_texts(folder / str(number), counted_texts(pl.Series(part, dtype=pl.String)))
        runs.append(map_texts(folder / str(number)))
    ranges = list(merged(runs, at_once))
    texts = [set(some[VALUE]) for some in ranges if some.height]
    assert sum(len(some) for some in texts) == len(set(values))
    assert all(max(one) < min(other) for one, other in pairwise(texts))
    rows = pl.concat(ranges)
    assert rows["rows"].sum() == len(values)
    assert set(rows[RUN]) <= set(range(len(runs)))
    most = max(values.count(text) for text in values) if values else 0
    for least in (1, most):
        vocabulary = fit_categorical("x", merged(runs, at_once), least).vocabulary
        assert list(vocabulary) == sorted({text for text in values if values.count(text) >= least})


@settings(deadline=None)
@given(
    values=st.lists(
        st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(float("nan")), st.integers(-3, 3).map(float)),
        min_size=1,
    ).filter(lambda some: any(one is not None and one == one for one in some)),
    data=st.data(),
)
def test_a_column_in_partitions_is_fitted_as_a_whole(values: list[float | None], data: st.DataObject) -> None:
    whole = pl.DataFrame({"x": pl.Series(values, dtype=pl.Float64)})
    runs = [sorted_numbers(pl.Series(part, dtype=pl.Float64)) for part in divided(values, data)]
    try:
        expected = fit(whole, ["x"], [])
    except EncodingError as refusal:  # values beside which float32 cannot tell the others apart
        with pytest.raises(EncodingError, match=re.escape(str(refusal))):
            fit_numeric("x", pl.Float64(), len(values), runs)
        return
    state = fit_numeric("x", pl.Float64(), len(values), runs)
    assert FittedState(numeric=(state,), categorical=()) == expected


def test_runs_lie_in_files_that_stay_closed(tmp_path: Path) -> None:
    """A process may open about a thousand; a window may have more partitions."""
    write_texts(tmp_path / "run", counted_texts(pl.Series(["b", "a", None, "a"])))
    before = len(list(Path("/proc/self/fd").iterdir()))
    runs = [map_texts(tmp_path / "run") for _ in range(200)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [some["rows"].sum() for some in merged(runs)] == [600]
