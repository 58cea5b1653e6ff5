"""Text of a primary key: the same for a table's value and for its JSON."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.use.live.logged_rows import key_text, time_text

MIDNIGHT = datetime(2013, 12, 3, tzinfo=UTC)
SIX = MIDNIGHT + timedelta(hours=6)


@pytest.mark.parametrize(
    ("stored", "sent"),
    [
        (
            date(2013, 12, 3),
            ["2013-12-03", "2013-12-03T00:00:00", "2013-12-03T00:00:00Z", "2013-12-03 00:00:00"],
        ),
        (MIDNIGHT, ["2013-12-03", "2013-12-03T00:00:00", "2013-12-03T01:00:00+01:00"]),
        (
            SIX,
            [
                "2013-12-03T06:00:00",
                "2013-12-03T06:00:00Z",
                "2013-12-03T07:00:00+01:00",
                "2013-12-03T06:00:00.000",
            ],
        ),
        (SIX.replace(tzinfo=None), ["2013-12-03T06:00:00Z"]),
        (SIX.astimezone(timezone(timedelta(hours=5))), ["2013-12-03T06:00:00Z"]),
        (5, [5, 5.0, "5"]),
        (2.5, [2.5]),
        (True, [True]),
        ("N1-2-3", ["N1-2-3"]),
        (None, [None]),
    ],
)
def test_a_value_of_the_table_meets_its_json(stored: object, sent: list[object]) -> None:
    is_time = isinstance(stored, date)
    assert {time_text(key_text(one)) if is_time else key_text(one) for one in sent} == {key_text(stored)}


@settings(max_examples=30, deadline=None)
@given(st.text(), st.datetimes())
def test_a_text_stays_as_it_is(text: str, moment: datetime) -> None:
    assert key_text(text) == text
    assert key_text(moment.isoformat()) == moment.isoformat()


def test_other_values_stay_apart() -> None:
    apart = [date(2013, 12, 3), date(2013, 12, 4), SIX, 5, 5.5, "", None, False, "0001-01-01T00:00:00+05:00"]
    assert len({key_text(one) for one in apart}) == len(apart)
