"""Features are built from valid partitions only, and say by name what they lack."""

import polars as pl

from ml_assets.components.failures import missing_in
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.components.installation import (
    Installation,
    failure_metadata,
    failure_of,
    materialized,
    versions,
)
from ml_assets_tests.components.readings_pipeline import FEATURES, READINGS, Source, days
from resources.ledger import Person


def _with_a_robot(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col("machine").replace("drill", "robot"))


def test_history_ends_where_the_table_begins(installation: Installation) -> None:
    first, second = days(2)
    installation.run(READINGS, partition=first, last=second)
    assert installation.run(FEATURES, partition=first, last=second).success
    rows = installation.main.scan(FEATURES, [first, second]).collect()
    known = rows.group_by("partition_date", maintain_order=True).agg(pl.col("made_yesterday").count())
    assert known["made_yesterday"].to_list() == [0, 48]


def test_a_range_gives_each_day_the_bytes_a_run_of_its_own_gives(
    installation: Installation, tmp_path
) -> None:
    first, *_, last = wanted = days(4)
    installation.run(READINGS, partition=first, last=last)
    whole = versions(installation.run(FEATURES, partition=first, last=last), FEATURES)
    other = Installation(tmp_path / "other")
    other.run(READINGS, partition=first, last=last)
    by_day = {day: versions(other.run(FEATURES, partition=day), FEATURES)[day] for day in wanted}
    assert whole == by_day


def test_missing_inputs_are_named_and_what_can_be_built_is(installation: Installation) -> None:
    wanted = days(5)
    for day in (wanted[0], wanted[1], wanted[3], wanted[4]):
        installation.run(READINGS, partition=day)
    result = installation.run(FEATURES, partition=wanted[0], last=wanted[-1])
    assert not result.success
    said = failure_of(result)
    # The third day lacks itself, the fourth its yesterday.
    assert f"{FEATURES} {wanted[2]} ({READINGS} {wanted[2]} is missing)" in said
    assert f"{FEATURES} {wanted[3]} ({READINGS} {wanted[2]} is missing)" in said
    assert missing_in(failure_metadata(result)) == {READINGS: [wanted[2]]}
    assert list(materialized(result, FEATURES)) == [wanted[0], wanted[1], wanted[4]]


def test_a_rejected_input_is_refused_as_rejected_and_not_asked_for(
    installation: Installation, source: Source
) -> None:
    first, second = days(2)
    source.spoiled[second] = _with_a_robot
    installation.run(READINGS, partition=first, last=second)
    result = installation.run(FEATURES, partition=second)
    assert f"{FEATURES} {second} ({READINGS} {second} is rejected)" in failure_of(result)
    assert missing_in(failure_metadata(result)) == {}
    assert installation.main.keys(FEATURES) == []


def test_an_accepted_input_is_used_as_it_is(installation: Installation, source: Source) -> None:
    (day,) = days(1)
    source.spoiled[day] = _with_a_robot
    installation.run(READINGS, partition=day)
    accept_partition(
        installation.platform.lake,
        installation.platform.ledger,
        READINGS,
        day,
        Person.unchecked("ada"),
        "the robot is real",
    )
    assert installation.run(FEATURES, partition=day).success
    rows = TableReader.at(installation.platform.lake).scan(FEATURES, [day]).collect()
    assert "robot" in rows["machine"].to_list()


def test_an_accepted_day_with_an_extra_column_is_refused_by_name_and_type(
    installation: Installation, source: Source
) -> None:
    first, second = days(2)
    source.spoiled[second] = lambda rows: rows.with_columns(pl.lit(3, pl.Int64).alias("crew"))
    installation.run(READINGS, partition=first, last=second)
    accept_partition(
        installation.platform.lake,
        installation.platform.ledger,
        READINGS,
        second,
        Person.unchecked("ada"),
        "crews are new",
    )
    said = failure_of(installation.run(FEATURES, partition=first, last=second))
    assert "its columns are not those of the contract: crew (int64) is added" in said
    assert installation.main.keys(FEATURES) == [first]
