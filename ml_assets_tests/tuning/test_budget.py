"""Budget of a study: wall time of overlapping launches counts once, and a study is stopped only by what it spent."""

import re

from hypothesis import given
from hypothesis import strategies as st

from ml_assets.extras.tuning.study import covered_seconds
from ml_assets.model.steps.search_space import BudgetSection, Spent

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda one: (one[0], sum(one))))


@given(SPANS)
def test_overlapping_spans_of_time_count_once(spans: list[tuple[float, float]]) -> None:
    seconds = {second for start, end in spans for second in range(int(start), int(end))}
    assert covered_seconds(spans) == len(seconds)


def test_the_first_limit_that_is_reached_is_named() -> None:
    both = BudgetSection(hours=2, worker_hours=8)
    assert both.spent_says(Spent(hours=1.9, worker_hours=7.9)) == ""
    waited = both.spent_says(Spent(hours=2.04, worker_hours=9))
    assert _figures(waited) == ["2", "2.04"]
    assert "worker hours" not in waited
    worked = both.spent_says(Spent(hours=1, worker_hours=8.1251))
    assert _figures(worked) == ["8", "8.13"]
    assert "worker hours" in worked


def _figures(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)
