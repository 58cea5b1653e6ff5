"""A table as Dagster sees it: one run a range, one event a partition, and failures that name what to do."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
from dagster import ExecuteInProcessResult
from dagster._core.definitions.automation_tick_evaluation_context import (
    build_run_requests_with_backfill_policies,
)

from ml_assets.components.assets.table import UNCHANGED
from ml_assets.components.metadata import RANGE_END, RANGE_START, ROOT_RUN
from ml_assets.dagster_host.asset_graph import AssetKeyPartitionKey
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import (
    Installation,
    failure_metadata,
    failure_of,
    key_of,
    materialized,
    readings_components,
    versions,
)
from ml_assets_tests.components.readings_pipeline import FEATURES, READINGS, Source, days
from resources.ledger import Person
from resources.settings import Settings


def lacking(result: ExecuteInProcessResult) -> list[dict[str, Any]]:
    """Rows of the table on the page of the failed step: partition and why."""
    table = failure_metadata(result)["lacking"]
    return [record.data for record in table.records]


def _without_load(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop("load")


def test_a_range_is_one_run_with_a_version_of_its_own_for_every_day(installation: Installation) -> None:
    first, *_, last = wanted = days(5)
    result = installation.run(READINGS, partition=first, last=last)
    assert result.success
    found = versions(result, READINGS)
    assert list(found) == wanted
    assert len(set(found.values())) == 5
    assert found == dict(installation.main.digests(READINGS))
    day = materialized(result, READINGS)[first].metadata
    assert day["dagster/partition_row_count"].value == 48
    assert day["lake/commit"].value == installation.main.commit_id


def test_a_deprecated_table_is_built_and_its_readers_are_told(tmp_path: Path) -> None:
    advice = "read datasets/meters instead"
    place = Installation(tmp_path, readings_components(dataset={"deprecated": advice}))
    (day,) = days(1)
    assert place.run(READINGS, partition=day).success
    node = place.defs.resolve_asset_graph().get(dg.AssetKey(READINGS.split("/")))
    assert (node.description or "").startswith(f"**Deprecated: {advice}**")
    assert "ml_assets/deprecated" in node.tags
    run = place.run(FEATURES, partition=day)
    assert run.success
    logged = [one.user_message for one in place.instance.all_logs(run.run_id)]
    assert f"datasets/readings is deprecated: {advice}" in logged


def test_materializing_the_same_days_again_changes_nothing(installation: Installation) -> None:
    first, *_, last = days(3)
    before = versions(installation.run(READINGS, partition=first, last=last), READINGS)
    commit = installation.main.commit_id
    again = installation.run(READINGS, partition=first, last=last)
    assert again.success
    assert versions(again, READINGS) == before
    assert installation.main.commit_id == commit
    assert {one.description for one in materialized(again, READINGS).values()} == {UNCHANGED}


def test_checks_sum_up_the_run_and_show_findings_of_the_rejected(
    installation: Installation, source: Source
) -> None:
    first, second, third = days(3)
    source.spoiled[second] = _without_load
    result = installation.run(READINGS, partition=first, last=third)
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert checks["volume"].passed
    assert not checks["contract"].passed
    assert checks["contract"].description == f"3 partitions validated, 1 rejected: {second}"
    shown = [record.data for record in checks["contract"].metadata["findings"].records]
    assert [(row["partition"], row["rule"], row["column"]) for row in shown] == [
        (second, "missing_column", "load")
    ]


def test_few_bad_rows_are_set_aside_and_counted_on_the_page(
    installation: Installation, source: Source
) -> None:
    """By keys of the declaration: `on_bad_rows` and `quarantine`."""
    lenient = {"on_bad_rows": "quarantine", "quarantine": {"limit": 0.05}}
    installation = installation.declared_as(readings_components(dataset=lenient))
    first, *_, last = wanted = days(2)
    source.spoiled[last] = lambda rows: rows.with_columns(
        pl.when(pl.int_range(pl.len()) == 7).then(-1.0).otherwise("made").alias("made")
    )
    result = installation.run(READINGS, partition=first, last=last)
    assert result.success
    page = materialized(result, READINGS)
    assert "quarantined rows" not in page[first].metadata
    assert page[last].metadata["quarantined rows"].value == 1
    assert page[last].metadata["dagster/partition_row_count"].value == 47
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert checks["contract"].passed
    assert checks["warnings"].description == f"2 partitions validated, 1 warned: {last}"
    shown = [record.data for record in checks["warnings"].metadata["findings"].records]
    assert {row["rule"] for row in shown} == {"quarantined", "out_of_range"}
    assert installation.main.keys("quarantine/datasets_readings") == [last]
    assert installation.run(FEATURES, partition=first, last=last).success
    assert installation.main.scan(FEATURES, wanted).collect().height == 95


def test_a_rejected_day_fails_the_run_by_name_while_the_good_ones_land(
    installation: Installation, source: Source
) -> None:
    first, second, third = days(3)
    source.spoiled[second] = _without_load
    result = installation.run(READINGS, partition=first, last=third)
    assert not result.success
    said = failure_of(result)
    assert f"rejected and not merged into main: {second} (1 of 3 partitions)." in said
    assert "missing_column" in said
    assert f"ml-assets accept {READINGS} {second} --reason" in said
    assert list(materialized(result, READINGS)) == [first, third]
    assert installation.main.keys(READINGS) == [first, third]
    branch = next(name for name in installation.platform.lake.branches("audit-") if name in said)
    evidence = TableReader.at(installation.platform.lake, branch)
    assert evidence.scan(READINGS, [second]).collect().columns == ["at", "machine", "made", "closed_at"]


def test_a_rejection_is_final(installation: Installation, source: Source) -> None:
    (day,) = days(1)
    source.spoiled[day] = _without_load
    installation.run(READINGS, partition=day)
    assert source.asked == [day]


def test_once_the_source_is_mended_one_materialization_heals_the_day(
    installation: Installation, source: Source
) -> None:
    (day,) = days(1)
    source.spoiled[day] = _without_load
    assert not installation.run(READINGS, partition=day).success
    source.mend()
    healed = installation.run(READINGS, partition=day)
    assert healed.success
    assert installation.main.keys(READINGS) == [day]
    assert all(check.passed for check in healed.get_asset_check_evaluations())


def test_yesterdays_good_version_stays_on_main_but_the_table_refuses(
    installation: Installation, source: Source
) -> None:
    (day,) = days(1)
    good = versions(installation.run(READINGS, partition=day), READINGS)
    source.spoiled[day] = _without_load
    assert not installation.run(READINGS, partition=day).success
    assert dict(installation.main.digests(READINGS)) == good
    assert f"{READINGS} {day} is rejected" in failure_of(installation.run(FEATURES, partition=day))


def test_other_days_land_while_a_failing_source_is_asked_again(
    installation: Installation, source: Source
) -> None:
    first, second, third = days(3)

    def fails_once(rows: pl.DataFrame) -> pl.DataFrame:
        source.spoiled.clear()
        raise ConnectionError("the source does not answer")

    source.spoiled[second] = fails_once
    result = installation.run(READINGS, partition=first, last=third)
    assert result.success
    assert source.asked == [first, second, third, second], "the retry asks only for what is missing"
    assert installation.main.keys(READINGS) == [first, second, third]


class _Killed(BaseException):
    """An end that neither the platform nor Dagster handles, as that of a killed process."""


def test_a_backfill_is_divided_into_runs_as_the_table_declares(tmp_path: Path) -> None:
    """The runs are those that Dagster's daemon requests; each of them lands its partitions."""
    divided = readings_components(dataset={"backfill": {"partitions_per_run": 2}})
    place, keys = Installation(tmp_path, divided), days(5)
    requested = {
        table: [
            (request.tags[RANGE_START], request.tags[RANGE_END])
            for request in build_run_requests_with_backfill_policies(
                [AssetKeyPartitionKey(key_of(table), key) for key in keys],
                place.defs.resolve_asset_graph(),
                place.instance,
            )
        ]
        for table in (READINGS, FEATURES)
    }
    assert requested == {
        READINGS: [(keys[0], keys[1]), (keys[2], keys[3]), (keys[4], keys[4])],
        FEATURES: [(keys[0], keys[4])],
    }
    for first, last in requested[READINGS]:
        assert place.run(READINGS, partition=first, last=last).success
    assert place.main.keys(READINGS) == keys


def test_an_interrupted_backfill_goes_on_where_it_ended(tmp_path: Path, source: Source) -> None:
    """Chunks of one day: the days before the crash are on main, in Dagster, and are not read again."""
    small = Settings.model_validate({"home": tmp_path, "chunk_mib": 1e-6})
    installation = Installation(tmp_path, settings=small)
    first, second, third, last = wanted = days(4)

    def crash(rows: pl.DataFrame) -> pl.DataFrame:
        raise _Killed

    source.spoiled[third] = crash
    assert not installation.run(READINGS, partition=first, last=last).success
    assert installation.main.keys(READINGS) == [first, second]
    seen = installation.instance.get_materialized_partitions(dg.AssetKey(READINGS.split("/")))
    assert seen == {first, second}
    source.mend()
    [died] = installation.instance.get_runs()
    root = {ROOT_RUN: died.run_id, "dagster/parent_run_id": died.run_id}
    repeated = installation.run(READINGS, partition=first, last=last, **root)
    assert repeated.success
    assert source.asked == [third, last]
    assert versions(repeated, READINGS) == dict(installation.main.digests(READINGS))
    checks = {check.check_name: check for check in repeated.get_asset_check_evaluations()}
    assert checks["contract"].description == "4 partitions validated, 0 rejected"
    source.asked.clear()
    assert installation.run(READINGS, partition=first, last=last).success
    assert source.asked == wanted, "another run asks the source again"


def test_features_of_a_range_come_in_pieces_and_go_on(tmp_path: Path, source: Source) -> None:
    """The same rows as at once, though each piece is a call of its own."""
    whole = Installation(tmp_path / "whole").with_tables(3)
    settings = Settings.model_validate({"home": tmp_path / "pieces", "chunk_mib": 1e-6})
    pieces = Installation(tmp_path / "pieces", settings=settings).with_tables(3)
    assert dict(pieces.main.digests(FEATURES)) == dict(whole.main.digests(FEATURES))
    commits = [len(list(one.platform.lake.log("main"))) for one in (pieces, whole)]
    assert commits[0] > 10 * commits[1]


def test_a_source_that_keeps_failing_is_named_with_its_day(
    installation: Installation, source: Source
) -> None:
    first, second = days(2)

    def broken(rows: pl.DataFrame) -> pl.DataFrame:
        raise KeyError("made")

    source.spoiled[second] = broken
    result = installation.run(READINGS, partition=first, last=second)
    assert not result.success
    said = failure_of(result)
    assert re.fullmatch(
        rf"{READINGS}: the source failed for {second}: \S+test_publishing\.py:\d+: \w+ raised KeyError: 'made'",
        said,
    ), said
    assert installation.main.keys(READINGS) == [first]


def test_answers_that_are_no_rows_fail_their_day_alone_by_name_and_column(
    installation: Installation, source: Source
) -> None:
    """A None, a list, a panic of polars and an infinite time once ended the run of all days."""
    infinite = pl.lit(2**63 - 1).cast(pl.Datetime("us", "UTC"))
    answers = {
        "return a polars.DataFrame, got NoneType; a path": lambda rows: None,
        "return a polars.DataFrame, got list; polars.DataFrame(…)": lambda rows: rows.rows(),
        "raised PanicException": lambda rows: pl.select(infinite.dt.to_string("%Y")),
        "column 'at' holds 48 times after the year 99999": lambda rows: rows.with_columns(at=infinite),
        "column 'day' holds 48 times after the year 99999": lambda rows: rows.with_columns(
            day=pl.lit(2**31 - 1, pl.Int32).cast(pl.Date)
        ),
        "column 'load' (Struct({})) cannot be stored": lambda rows: rows.with_columns(
            pl.Series("load", [{}] * rows.height, dtype=pl.Struct([]))
        ),
        "column 'tags' (List(Struct({}))) cannot be stored": lambda rows: rows.with_columns(
            pl.Series("tags", [[{}]] * rows.height, dtype=pl.List(pl.Struct([])))
        ),
    }
    good, *bad = days(1 + len(answers))
    source.spoiled = dict(zip(bad, answers.values(), strict=True))
    result = installation.run(READINGS, partition=good, last=bad[-1])
    assert not result.success
    assert installation.main.keys(READINGS) == [good]
    why = {row["partition"]: row["why"] for row in lacking(result)}
    for day, said in zip(bad, answers, strict=True):
        assert said in why[day]


def test_values_beyond_pythons_calendar_are_rejected_by_column(
    installation: Installation, source: Source
) -> None:
    good, late, nested = days(3)
    inside = pl.concat_list(pl.lit(2**63 - 1).cast(pl.Datetime("us")))
    source.spoiled = {
        late: lambda rows: rows.with_columns(load=pl.lit(6_585_000, pl.Int32).cast(pl.Date)),
        nested: lambda rows: rows.with_columns(load=inside),
    }
    result = installation.run(READINGS, partition=good, last=nested)
    assert not result.success
    assert installation.main.keys(READINGS) == [good]
    why = {row["partition"]: row["why"] for row in lacking(result)}
    assert "'load' holds date where" in why[late]
    assert "19999-" in why[late]
    assert "'load' holds list" in why[nested]


def test_rejected_and_failed_days_of_one_run_are_both_named(
    installation: Installation, source: Source
) -> None:
    first, second, third = days(3)

    def broken(rows: pl.DataFrame) -> pl.DataFrame:
        raise KeyError("made")

    source.spoiled = {first: _without_load, third: broken}
    result = installation.run(READINGS, partition=first, last=third)
    said = failure_of(result)
    assert f"not merged into main: {first} (1 of 2 partitions)." in said
    assert f"the source failed for {third}" in said
    assert installation.main.keys(READINGS) == [second]


def test_a_warned_day_lands_and_fails_no_blocking_check(installation: Installation, source: Source) -> None:
    picky = installation.declared_as(readings_components(dataset={"volume": {"kind": "previous"}}))
    first, second = days(2)
    source.spoiled[second] = lambda rows: rows.head(34)
    result = picky.run(READINGS, partition=first, last=second)
    assert result.success
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert checks["volume"].passed
    assert not checks["warnings"].passed
    assert checks["warnings"].description == f"2 partitions validated, 1 warned: {second}"


def test_an_accepted_day_passes_its_blocking_checks_when_it_comes_again(
    installation: Installation, source: Source
) -> None:
    (day,) = days(1)
    source.spoiled[day] = lambda rows: rows.with_columns(-pl.col("made"))
    installation.run(READINGS, partition=day)
    accept_partition(
        installation.platform.lake,
        installation.platform.ledger,
        READINGS,
        day,
        Person.unchecked("ada"),
        "returned goods",
    )
    again = installation.run(READINGS, partition=day)
    assert again.success
    checks = {check.check_name: check.passed for check in again.get_asset_check_evaluations()}
    assert checks == {"contract": True, "volume": True, "warnings": False}


def test_workers_make_the_tables_that_one_process_makes(tmp_path: Path) -> None:
    """Days that a source may read at once, and features in pieces of a day: the same objects on main."""
    workers = {"chunk_mib": 1e-6, "pool_workers": 2, "pool_after_seconds": 0}
    source = {**readings_pipeline.DATASET["source"], "at_once": 2}
    first, *_, last = days(4)
    digests: list[list[dict[str, str]]] = []
    for name, changes, dataset in (("alone", {}, {}), ("workers", workers, {"source": source})):
        settings = Settings.model_validate({"home": tmp_path / name, **changes})
        place = Installation(tmp_path / name, readings_components(dataset=dataset), settings)
        results = [place.run(table, partition=first, last=last) for table in (READINGS, FEATURES)]
        assert [one.success for one in results] == [True, True]
        digests.append([dict(place.main.digests(table)) for table in (READINGS, FEATURES)])
    assert digests[0] == digests[1]
    assert [len(one) for one in digests[0]] == [4, 4]
