"""Dagster is told what main holds, wherever a run was stopped before it could tell."""

from typing import Any

import dagster as dg
import pytest

from ml_assets.components.sensors.reconcile import (
    Apart,
    compare,
    reconcile,
    report_acceptance,
    report_missing_materializations,
)
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets_tests.components.installation import Installation, key_of, readings_components
from ml_assets_tests.components.readings_pipeline import DATASET, FEATURES, READINGS, Source, days
from resources.ledger import Person

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
    assert reconcile(forgetful.instance, reader, forgetful.platform.ledger, TABLES) == apart
    assert compare(forgetful.instance, reader, TABLES) == []
    assert forgetful.instance.get_materialized_partitions(key_of(READINGS)) == set(DAYS)
    (newest,) = forgetful.instance.fetch_materializations(key_of(READINGS), limit=1).records
    assert newest.asset_materialization is not None
    assert newest.asset_materialization.metadata["dagster/partition_row_count"].value == 48
    assert reconcile(forgetful.instance, reader, forgetful.platform.ledger, TABLES) == []


def test_nothing_is_told_while_a_run_may_be_about_to(forgetful: Installation) -> None:
    forgetful.instance.create_run_for_job(
        forgetful.defs.resolve_implicit_global_asset_job_def(), status=dg.DagsterRunStatus.STARTED
    )
    assert reconcile(forgetful.instance, forgetful.main, forgetful.platform.ledger, TABLES) is None
    assert compare(forgetful.instance, forgetful.main, TABLES) != []


def test_an_accepted_day_and_one_that_main_lost_are_apart(installation: Installation, source: Source) -> None:
    bad, good = days(2)
    installation.run(READINGS, partition=good)
    source.spoiled[bad] = lambda rows: rows.with_columns(-rows["made"])
    installation.run(READINGS, partition=bad)
    accept_partition(
        installation.platform.lake,
        installation.platform.ledger,
        READINGS,
        bad,
        Person.unchecked("ada"),
        "returned goods",
    )
    installation.instance.report_runless_asset_event(
        dg.AssetMaterialization(key_of(READINGS), partition=DAYS[-1])
    )
    assert compare(installation.instance, installation.main, TABLES) == [
        Apart(READINGS, unreported=(bad,), gone=(DAYS[-1],))
    ]
    reconcile(installation.instance, installation.main, installation.platform.ledger, TABLES)
    assert compare(installation.instance, installation.main, TABLES) == [
        Apart(READINGS, unreported=(), gone=(DAYS[-1],))
    ]


def test_an_acceptance_turns_the_page_green_and_says_who_and_why(
    installation: Installation, source: Source
) -> None:
    first, second, third = days(3)
    for day in (first, second):
        source.spoiled[day] = lambda rows: rows.with_columns(-rows["made"])
    installation.run(READINGS, partition=first, last=third)
    assert not _checks(installation)["contract"].passed
    platform = installation.platform

    def accept(day: str) -> None:
        acceptance = accept_partition(
            platform.lake, platform.ledger, READINGS, day, Person.unchecked("ada"), "returned goods"
        )
        report_acceptance(installation.instance, installation.main, platform.ledger, acceptance)

    accept(first)
    still = _checks(installation)["contract"]
    assert not still.passed
    assert still.description == (
        f"{first} accepted by ada: returned goods. 2 partitions validated, 1 rejected: {second}"
    )
    accept(second)
    checks = _checks(installation)
    assert checks["contract"].passed
    assert checks["volume"].passed
    assert not checks["warnings"].passed, "the accepted findings stay visible"
    assert f"{second} accepted by ada: returned goods" in (checks["contract"].description or "")
    (page,) = installation.instance.fetch_materializations(key_of(READINGS), limit=1).records
    assert page.asset_materialization is not None
    assert page.partition_key == second
    assert page.asset_materialization.description == "Accepted by ada: returned goods"
    assert page.asset_materialization.metadata["accepted by"].value == "ada"
    accept(second)
    (again,) = installation.instance.fetch_materializations(key_of(READINGS), limit=1).records
    assert again.storage_id == page.storage_id, "a repeated acceptance reports nothing"


def test_an_acceptance_of_known_content_is_reported(installation: Installation, source: Source) -> None:
    """Stricter rules reject rows that Dagster knows as materialized."""
    (day,) = days(1)
    installation.run(READINGS, partition=day)
    columns = [{**one, "le": 20} if one["name"] == "made" else one for one in DATASET["contract"]["columns"]]
    strict = installation.declared_as(
        readings_components(dataset={"contract": {**DATASET["contract"], "columns": columns}})
    )
    strict.run(READINGS, partition=day)
    assert not _checks(strict)["contract"].passed
    platform = strict.platform
    acceptance = accept_partition(
        platform.lake, platform.ledger, READINGS, day, Person.unchecked("ada"), "a good day"
    )
    report_acceptance(strict.instance, strict.main, platform.ledger, acceptance)
    assert _checks(strict)["contract"].passed


def _checks(installation: Installation) -> dict[str, Any]:
    """Return check → its newest evaluation, as the page shows it."""
    keys = [dg.AssetCheckKey(key_of(READINGS), name) for name in ("contract", "volume", "warnings")]
    found = installation.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return {key.name: record.evaluation for key, record in found.items()}


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
    assert (again.skip_reason.skip_message or "").startswith("nothing moved since: reported")
