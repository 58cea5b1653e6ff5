"""The features of real days: the same however they are built, and blind to what came later."""

import io
from collections.abc import Callable, Mapping
from datetime import date, timedelta

import polars as pl
import pytest

from ml_assets.data.features.cut_and_rebuild import Alone, LeakReport, leak_test
from ml_assets.data.tables.declared import InputTable
from ml_assets.data.tables.user_code import building
from ml_assets.defs.flights import features
from ml_assets.defs.flights.features import LOOKBACK_DAYS, WEATHER_LOOKBACK_DAYS
from ml_assets_tests.defs.flights import flights_specs

flight_departures = building(features.flight_departures)
Inputs = Mapping[str, pl.DataFrame]
DATES = {"datasets/flights": "flight_date", "datasets/weather": "weather_date"}
KEY = ["partition_date", "carrier", "flight", "origin"]


def needed(year: Inputs, first: date, last: date) -> Inputs:
    """Exactly the partitions that the platform reads to build `first`..`last`."""
    flights_from = first - timedelta(days=LOOKBACK_DAYS)
    weather_from = first - timedelta(days=WEATHER_LOOKBACK_DAYS)
    return {
        **year,
        "datasets/flights": year["datasets/flights"].filter(
            pl.col("flight_date").is_between(flights_from, last)
        ),
        "datasets/weather": year["datasets/weather"].filter(
            pl.col("weather_date").is_between(weather_from, last)
        ),
    }


def built(year: Inputs, first: date, last: date) -> pl.DataFrame:
    return flight_departures(needed(year, first, last), first, last)


def stored(rows: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    rows.write_parquet(file, row_group_size=122_880)
    return file.getvalue()


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(date(2013, 1, 1), id="no history yet"),
        pytest.param(date(2013, 3, 9), id="summer time begins"),
        pytest.param(date(2013, 11, 2), id="summer time ends"),
        pytest.param(date(2013, 12, 29), id="weather ends"),
    ],
)
def test_a_range_has_the_bytes_of_its_days_built_one_by_one(year: Inputs, first: date) -> None:
    days = [first + timedelta(days=i) for i in range(3)]
    together = built(year, days[0], days[-1])
    for day in days:
        alone = built(year, day, day)
        assert stored(together.filter(pl.col("partition_date") == day)) == stored(alone)
        assert len(alone) == len(year["datasets/flights"].filter(pl.col("flight_date") == day))


def test_more_history_than_declared_changes_nothing(year: Inputs) -> None:
    day = date(2013, 8, 15)
    assert flight_departures(year, day, day).equals(built(year, day, day))


def test_the_order_of_input_rows_changes_nothing(year: Inputs) -> None:
    day = date(2013, 8, 15)
    inputs = needed(year, day, day)
    shuffled = {table: rows.sample(fraction=1.0, shuffle=True, seed=3) for table, rows in inputs.items()}
    assert flight_departures(shuffled, day, day).equals(built(year, day, day))


def test_a_flight_from_two_airports_at_one_moment_is_no_draw(year: Inputs) -> None:
    """The contract allows such rows. They stopped the build of each day that looks back at them."""
    day = date(2013, 8, 15)
    inputs = needed(year, day, day)
    flights = inputs["datasets/flights"]
    landed = flights.filter(
        (pl.col("flight_date") == day - timedelta(days=1)) & pl.col("landed_at").is_not_null()
    )
    again = landed.head(1).with_columns(origin=pl.lit("LGA"))
    assert again["origin"].item() != landed["origin"][0]
    built_from = [
        flight_departures({**inputs, "datasets/flights": pl.concat(both)}, day, day)
        for both in ((flights, again), (again, flights))
    ]
    assert built_from[0].equals(built_from[1])


def examine(year: Inputs, build: Callable[[Inputs, date, date], pl.DataFrame]) -> LeakReport:
    """Run the leakage check over a week with storms and cancellations, with the declarations of `defs.yaml`."""
    spec = flights_specs.flight_departures()
    first, last = date(2013, 6, 24), date(2013, 6, 30)
    return leak_test(
        build,
        needed(year, first, last),
        {section.table: section.known_at for section in spec.inputs},
        first,
        last,
        primary_key=spec.contract.primary_key,
        labels=spec.labels,
        cuts=2,
        alone=[alone(year, last)],
    )


def alone(year: Inputs, day: date) -> Alone:
    """A day from exactly the partitions that the lookback of `defs.yaml` gives it."""
    inputs = dict(year)
    for section in flights_specs.flight_departures().inputs:
        partitions = flights_specs.dataset(section.table.removeprefix("datasets/")).cadence
        if section.lookback != "all":
            read = InputTable(table=section.table, cadence=partitions, lookback=section.lookback)
            keys = read.needed_for(day.isoformat())
            column = DATES[section.table]
            inputs[section.table] = year[section.table].filter(pl.col(column).cast(pl.String).is_in(keys))
    return Alone(key=day.isoformat(), first=day, last=day, inputs=inputs)


def test_nothing_of_the_future_is_in_the_features(year: Inputs) -> None:
    report = examine(year, flight_departures)
    assert report.ok, report.explain()
    assert report.rows_compared > 5_000
    assert report.alone == ("2013-06-30",)
    assert set(features.NUMERIC) < set(report.columns_compared)


def test_the_departure_delay_as_a_feature_is_caught(year: Inputs) -> None:
    def leaky(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        delays = inputs["datasets/flights"].select(
            pl.col("flight_date").alias("partition_date"), *KEY[1:], "dep_delay"
        )
        return flight_departures(inputs, first, last).join(delays, on=KEY, how="left")

    report = examine(year, leaky)
    assert {leak.column for leak in report.leaks} == {"dep_delay"}


def test_a_mean_of_the_same_days_labels_is_caught(year: Inputs) -> None:
    def leaky(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        rate = pl.col("late").mean().over("partition_date", "origin").alias("late_that_day")
        return flight_departures(inputs, first, last).with_columns(rate)

    report = examine(year, leaky)
    assert {leak.column for leak in report.leaks} == {"late_that_day"}


def test_history_by_flight_date_instead_of_landing_is_caught(year: Inputs) -> None:
    """An aircraft's flights of earlier days, of which the last may still be in the air."""

    def leaky(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        before = inputs["datasets/flights"].select(
            (pl.col("flight_date") + pl.duration(days=1)).alias("partition_date"), "carrier", "arr_delay"
        )
        means = before.group_by("partition_date", "carrier").agg(
            pl.col("arr_delay").mean().alias("yesterday")
        )
        return flight_departures(inputs, first, last).join(
            means, on=["partition_date", "carrier"], how="left"
        )

    assert {leak.column for leak in examine(year, leaky).leaks} == {"yesterday"}


def test_a_late_correction_does_not_change_yesterdays_features(year: Inputs) -> None:
    """A delay that is corrected after landing is a fact of the moment of correction."""
    day = date(2013, 5, 10)
    inputs = needed(year, day, day)
    flights = inputs["datasets/flights"]
    noon = pl.datetime(2013, 5, 10, 16, time_zone="UTC")
    corrected = pl.col("landed_at").is_between(noon, noon + pl.duration(hours=1))
    later = flights.with_columns(
        pl.when(corrected).then(500).otherwise("arr_delay").cast(pl.Int16).alias("arr_delay"),
        pl.when(corrected).then(noon + pl.duration(hours=6)).otherwise("landed_at").alias("landed_at"),
    )
    before = built(year, day, day).filter(pl.col("predicted_at") < noon).drop("late", "label_known_at")
    after = flight_departures({**inputs, "datasets/flights": later}, day, day)
    assert len(before) > 300
    assert after.filter(pl.col("predicted_at") < noon).select(before.columns).equals(before)


def test_labels_are_what_happened_and_null_where_nothing_did(year: Inputs) -> None:
    day = date(2013, 2, 8)  # a blizzard: most afternoon flights were cancelled
    rows = built(year, day, day)
    truth = year["datasets/flights"].filter(pl.col("flight_date") == day).sort(KEY[1:])
    expected = (truth["arr_delay"] > 15).cast(pl.Int8).alias("late")
    assert rows["late"].equals(expected, null_equal=True)
    assert rows["late"].null_count() > 400
    assert (rows["label_known_at"] > rows["predicted_at"]).all()


def test_a_broken_wind_sensor_is_not_believed(year: Inputs) -> None:
    day = date(2013, 2, 12)
    assert year["datasets/weather"].filter(pl.col("weather_date") == day)["wind_speed"].max() > 1_000
    rows = built(year, day, day)
    assert rows["wind_speed"].max() < 60
    assert rows["wind_speed"].null_count() > 0


def test_the_last_day_goes_without_weather(year: Inputs) -> None:
    rows = built(year, date(2013, 12, 31), date(2013, 12, 31))
    assert rows["temp"].null_count() > 700
    assert rows["carrier_7d_late"].null_count() == 0
