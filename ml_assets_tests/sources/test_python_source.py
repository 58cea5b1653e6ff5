"""A function as a source: the kinds of answers it may give, and answers that fail their own day alone."""

from collections.abc import Iterator

import polars as pl
import pytest

from ml_assets_tests.components.installation import failure_of, materialized
from ml_assets_tests.sources import sales
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.sales import ANSWERS, DAYS, SALES, rows

FUNCTION = {"function": f"{sales.__name__}.read"}


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    yield
    ANSWERS.clear()


def test_lazy_frames_and_iterators_land_as_the_frame_they_stand_for(declare: Declare) -> None:
    ANSWERS[DAYS[1]] = lambda: rows(DAYS[1]).lazy()
    ANSWERS[DAYS[2]] = lambda: (rows(DAYS[2])[n : n + 1] for n in range(3))
    ANSWERS[DAYS[3]] = lambda: iter([rows(DAYS[3])[:2].lazy(), rows(DAYS[3])[2:]])
    ANSWERS[DAYS[4]] = lambda: iter(())
    installation = declare(FUNCTION, volume={"allow_empty": True})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    assert installation.main.scan(SALES, DAYS[:4]).collect().equals(rows(*DAYS[:4]))
    assert installation.main.manifest(SALES, DAYS[4]).rows == 0


def _shifted() -> pl.DataFrame:
    return rows(DAYS[0])


ANSWERED = [
    pytest.param(
        lambda: None,
        "got NoneType; a path through it ends without `return`",
        id="None",
    ),
    pytest.param(lambda: iter([rows(DAYS[2]), None]), "got NoneType", id="None in an iterator"),
    pytest.param(
        lambda: iter([rows(DAYS[2])[:1], rows(DAYS[2])[1:].drop("price")]),
        "frame 2 of the iterator has other columns than the first (price is missing)",
        id="iterator",
    ),
    pytest.param(lambda: rows(DAYS[2]).lazy().select("prize"), "ColumnNotFoundError", id="LazyFrame"),
    pytest.param(_shifted, "outside", id="rows of another day"),
    pytest.param(lambda: rows(DAYS[2]).rename({"price": "cost"}), "'price' is missing", id="another schema"),
]


@pytest.mark.parametrize(("answer", "said"), ANSWERED)
def test_a_wrong_answer_fails_its_own_day_alone(declare: Declare, answer: object, said: str) -> None:
    installation = declare(FUNCTION)
    assert installation.run(SALES, partition=DAYS[2]).success
    ANSWERS[DAYS[2]] = answer  # pyright: ignore[reportArgumentType]
    before = installation.main.digests(SALES)
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert said in failure_of(result)
    assert DAYS[2] in failure_of(result)
    assert sorted(day for day in materialized(result, SALES) if day) == [d for d in DAYS if d != DAYS[2]]
    assert installation.main.digests(SALES)[DAYS[2]] == before[DAYS[2]]
