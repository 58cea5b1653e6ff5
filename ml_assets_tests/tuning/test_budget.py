"""Budget of a study: wall time of overlapping launches counts once, and a study is stopped only by what it spent."""

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
    assert both.spent_says(Spent(hours=2.04, worker_hours=9)) == "the budget of 2 hours is spent (2.04)"
    worked = both.spent_says(Spent(hours=1, worker_hours=8.1251))
    assert worked == "the budget of 8 worker hours is spent (8.13)"
