"""Holidays of a calendar, as features of days."""

import sys
from datetime import date

import polars as pl
import pytest

from ml_assets.data.features.holiday_calendar import CalendarUnknown, holidays_of
from resources.extras import missing_extra


def _days(calendar: str, first: date, last: date) -> list[tuple[object, ...]]:
    return holidays_of(calendar, first, last).rows()


def test_days_count_to_the_next_holiday_and_since_the_last() -> None:
    found = holidays_of("US", date(2024, 7, 2), date(2024, 7, 5))
    assert found.schema["days_to_holiday"] == pl.Float32
    assert found.rows() == [
        (date(2024, 7, 2), 0.0, 2.0, 13.0),  # since Juneteenth
        (date(2024, 7, 3), 0.0, 1.0, 14.0),
        (date(2024, 7, 4), 1.0, 0.0, 0.0),
        (date(2024, 7, 5), 0.0, 14.0, 1.0),  # Labor Day is far
    ]


def test_a_part_of_a_country_has_holidays_of_its_own() -> None:
    day = date(2024, 3, 31)  # Cesar Chavez Day
    assert [_days(calendar, day, day)[0][1] for calendar in ("US", "US-CA")] == [0.0, 1.0]


def test_one_day_has_the_values_that_it_has_among_others() -> None:
    """The first and the last day of a year count to holidays of other years."""
    days = holidays_of("DE-BY", date(2023, 12, 20), date(2025, 1, 10))
    for row in days.rows():
        assert isinstance(row[0], date)
        assert _days("DE-BY", row[0], row[0]) == [row]


def test_days_far_from_any_holiday_are_alike() -> None:
    """Also before the calendar begins."""
    found = [
        _days(one, day, day)[0][1:] for one, day in (("US", date(1500, 1, 1)), ("DE-BE", date(2024, 7, 18)))
    ]
    assert found == [(0.0, 14.0, 14.0)] * 2


@pytest.mark.parametrize(
    ("calendar", "said"),
    [
        ("us", "write it as in US$"),
        ("us-ca", "write it as in US-CA$"),
        ("DE-", "DE has no part '' with holidays of its own: choose among BB, "),
        ("Germany", "write it as in US or DE$"),
        ("DE-XX", "DE has no part 'XX' .*: choose among BB, BE, .*, or write DE alone"),
    ],
)
def test_an_unknown_calendar_is_refused(calendar: str, said: str) -> None:
    day = date(2024, 1, 1)
    with pytest.raises(CalendarUnknown, match=said):
        holidays_of(calendar, day, day)


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(ModuleNotFoundError) as error:
        holidays_of("US", date(2024, 1, 1), date(2024, 1, 1))
    assert "ml-assets[holidays]" in missing_extra(error.value)
