"""Dagster is told what main holds, wherever a run was stopped before it could tell."""

from typing import Any

import dagster as dg
import pytest

from ml_assets.components.reconcile import Apart, compare, reconcile, report_missing_materializations
from ml_assets.tables.accept import accept_partition
from ml_assets_tests.components.installation import Installation, key_of
from ml_assets_tests.components.readings_pipeline import FEATURES, READINGS, Source, days

TABLES = (READINGS, FEATURES)
DAYS = days(4)


@pytest.fixture
def forgetful(installation: Installation) -> Installation:
    """An installation with four days of readings, of which Dagster knows the first alone."""
    installation.run(READINGS, partition=DAYS[0])
    told, installation.instance = installation.instance, dg.DagsterInstance.ephemeral()
    installation.run(READINGS, partition=DAYS[1], last=DAYS[-1])  # an instance that is gone
    installation.instance = told
    return installation


def test_partitions_of_main_are_told_with_the_version_they_have(forgetful: Installation) -> None:
    reader = forgetful.main
    apart = [Apart(READINGS, unreported=tuple(DAYS[1:]), gone=())]
    assert compare(forgetful.instance, reader, TABLES) == apart
    assert reconcile(forgetful.instance, reader, TABLES) == apart
    assert compare(forgetful.instance, reader, TABLES) == []
    assert forgetful.instance.get_materialized_partitions(key_of(READINGS)) == set(DAYS)
    (newest,) = forgetful.instance.fetch_materializations(key_of(READINGS), limit=1).records
    assert newest.asset_materialization is not None
    assert newest.asset_materialization.metadata["dagster/partition_row_count"].value == 48
    assert reconcile(forgetful.instance, reader, TABLES) == []


def test_nothing_is_told_while_a_run_may_be_about_to(forgetful: Installation) -> None:
    forgetful.instance.create_run_for_job(
        forgetful.defs.resolve_implicit_global_asset_job_def(), status=dg.DagsterRunStatus.STARTED
    )
    assert reconcile(forgetful.instance, forgetful.main, TABLES) == []
    assert compare(forgetful.instance, forgetful.main, TABLES) != []


def test_an_accepted_day_and_one_that_main_lost_are_apart(installation: Installation, source: Source) -> None:
    bad, good = days(2)
    installation.run(READINGS, partition=good)
    source.spoiled[bad] = lambda rows: rows.with_columns(-rows["made"])
    installation.run(READINGS, partition=bad)
    accept_partition(
        installation.platform.lake, installation.platform.ledger, READINGS, bad, "ada", "returned goods"
    )
    installation.instance.report_runless_asset_event(
        dg.AssetMaterialization(key_of(READINGS), partition=DAYS[-1])
    )
    assert compare(installation.instance, installation.main, TABLES) == [
        Apart(READINGS, unreported=(bad,), gone=(DAYS[-1],))
    ]
    reconcile(installation.instance, installation.main, TABLES)
    assert compare(installation.instance, installation.main, TABLES) == [
        Apart(READINGS, unreported=(), gone=(DAYS[-1],))
    ]


def test_a_sensor_tells_where_nobody_types_a_command(forgetful: Installation) -> None:
    def evaluate(cursor: str | None = None) -> dg.SensorResult:
        context = dg.build_sensor_context(
            instance=forgetful.instance,
            repository_def=forgetful.defs.get_repository_def(),
            resources={"platform": forgetful.platform},
            cursor=cursor,
        )
        answer: Any = report_missing_materializations(context)
        return answer

    told = evaluate()
    assert told.skip_reason is not None
    assert told.skip_reason.skip_message == f"reported {READINGS}: {', '.join(DAYS[1:])}"
    assert forgetful.instance.get_materialized_partitions(key_of(READINGS)) == set(DAYS)
    again = evaluate(told.cursor)
    assert again.skip_reason is not None
    assert again.skip_reason.skip_message == "main did not change"
