"""Features of an aircraft's earlier flights: known delays, and the time that is left for the turn."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from ml_assets.defs.flights import rotation

BLOCK = timedelta(hours=2)
MOMENT = pl.Datetime("us", "UTC")


def flight(
    number: int, at: datetime, delay: int | None, tail: str = "N1", origin: str = "EWR"
) -> dict[str, object]:
    """A flight of two hours; `delay` in minutes, None if it never left."""
    departed = None if delay is None else at + timedelta(minutes=delay)
    return {
        "tailnum": tail,
        "carrier": "UA",
        "flight": number,
        "origin": origin,
        "scheduled_departure_at": at,
        "scheduled_arrival_at": at + BLOCK,
        "departed_at": departed,
        "dep_delay": delay,
    }


def of_last(flights: list[dict[str, object]]) -> dict[str, int | None]:
    """The features of the last flight."""
    schema = dict.fromkeys(("scheduled_departure_at", "scheduled_arrival_at", "departed_at"), MOMENT)
    frame = pl.DataFrame(flights, schema_overrides=schema).with_columns(
        (pl.col("scheduled_departure_at") - timedelta(hours=2)).alias("predicted_at")
    )
    return rotation.with_rotation(frame, frame).row(-1, named=True)


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2013, 6, 3, hour, minute, tzinfo=UTC)


def test_an_aircraft_that_left_late_will_be_back_late() -> None:
    # Out at 8:00 with 90 minutes of delay, four hours there and back: 13:30, for a departure at 13:00.
    found = of_last([flight(1, at(8), 90), flight(2, at(13), 0)])
    assert found["tail_behind"] == found["turn_behind"] == 30
    assert found["tail_out_delay"] == found["turn_delay"] == 90
    assert (found["turn_slack"], found["tail_since"]) == (60, 210)


def test_a_delay_of_yesterday_holds_nothing_up() -> None:
    found = of_last([flight(1, at(8) - timedelta(days=1), 90), flight(2, at(13), 0)])
    assert found["tail_behind"] == found["turn_behind"] == -180
    assert found["tail_out_delay"] is None


@pytest.mark.parametrize("delay", [None, 170], ids=["never", "after the prediction"])
def test_a_flight_that_has_not_left_counts_with_the_time_it_should_have(delay: int | None) -> None:
    # It should have left at 9:00; at 10:30, two hours before this flight, nobody knows more.
    found = of_last([flight(1, at(9), delay), flight(2, at(12, 30), 0)])
    assert found["turn_delay"] == 90
    assert found["tail_behind"] is None


def test_another_aircraft_says_nothing() -> None:
    found = of_last([flight(1, at(8), 90, tail="N2"), flight(2, at(13), 0)])
    assert [found[name] for name in rotation.NUMERIC] == [None] * len(rotation.NUMERIC)


def test_one_number_from_two_airports_at_one_moment_is_no_draw() -> None:
    """The contract allows such rows, and they stopped the build of each day that looks back at them."""
    twice = [flight(1, at(8), 90, origin=origin) for origin in ("JFK", "EWR")]
    found = [of_last([*some, flight(2, at(13), 0)]) for some in (twice, twice[::-1])]
    assert found[0] == found[1]
    assert found[0]["tail_behind"] == 30
