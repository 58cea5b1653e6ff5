"""Sets of days: laws of the intervals, against plain sets of dates."""

import json
from dataclasses import asdict
from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.tables.cadence import Cadence
from ml_assets.foundation.days import Days

Span = tuple[date, date]
FIRST = date(2024, 1, 1)


def _span(begin: int, length: int) -> Span:
    return FIRST + timedelta(begin), FIRST + timedelta(begin + length)


SPANS = st.lists(st.builds(_span, st.integers(0, 60), st.integers(0, 12)), max_size=6)


def _plain(spans: list[Span]) -> set[date]:
    return {first + timedelta(n) for first, last in spans for n in range((last - first).days + 1)}


def _listed(days: Days) -> set[date]:
    return _plain([(date.fromisoformat(first), date.fromisoformat(last)) for first, last in days.spans])


@given(SPANS, SPANS)
def test_intervals_are_sets_of_days(one: list[Span], another: list[Span]) -> None:
    """Union, intersection, emptiness, order and equality are those of the dates themselves."""
    left, right = Days.of(one), Days.of(another)
    ours, theirs = _plain(one), _plain(another)
    assert _listed(left | right) == ours | theirs
    assert _listed(left & right) == ours & theirs
    assert bool(left & right) == bool(ours & theirs)
    assert left.reaches(right) == bool(ours and theirs and max(ours) >= min(theirs))
    assert (left == right) == (ours == theirs)
    assert Days.from_document(json.loads(json.dumps(asdict(left)))) == left


@given(SPANS)
def test_intervals_are_disjoint_with_a_gap_between_them(spans: list[Span]) -> None:
    found = [tuple(map(date.fromisoformat, span)) for span in Days.of(spans).spans]
    assert all((later[0] - earlier[1]).days > 1 for earlier, later in pairwise(found))


@given(
    st.sampled_from(["daily", "weekly", "monthly", "quarterly", "yearly"]),
    st.integers(0, 400),
    st.integers(0, 400),
)
def test_a_partition_of_any_cadence_covers_each_of_its_days(kind: str, of_key: int, day: int) -> None:
    """A monthly key as text is the first of its month, and covers all of it."""
    cadence = Cadence(kind, FIRST)  # pyright: ignore[reportArgumentType]
    key, asked = cadence.key_of(FIRST + timedelta(of_key)), FIRST + timedelta(day)
    seen = Days.of([cadence.bounds(key)])
    assert bool(seen & Days.of([(asked, asked)])) == (cadence.key_of(asked) == key)


def test_a_span_that_ends_before_its_begin_is_refused() -> None:
    with pytest.raises(ValueError, match="ends on 2024-01-01, before its begin 2024-01-02"):
        Days.of([(date(2024, 1, 2), date(2024, 1, 1))])
    assert str(Days.of([_span(0, 3), _span(9, 0)])) == "2024-01-01 to 2024-01-04, 2024-01-10"
