"""Upgrades of the team's chart: a newer version loses no run and no tick. The older one is refused afterwards, and so
is an image whose definitions do not load. The team goes on.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from deployment.testbed.cluster.commands import CommandFailed
from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.platform.conftest import LAST_WEEK, LOCATION, PERIOD
from ml_assets_tests.cluster.platform.newer_version import OLDER_AGAIN, REVISION, TABLE
from ml_assets_tests.cluster.platform.team_in_pods import PARTS, TeamInPods
from ml_assets_tests.cluster.platform.test_platform import (
    SCHEDULE,
    STAGES,
    end_of,
    next_due,
    requesting_tick,
)

pytestmark = pytest.mark.timeout(1200)

NEXT_WEEK = "2024-01-29"
"""Week after `LAST_WEEK`, which no test trains before."""
FAULT = "ml_assets/defs/broken/defs.yaml:6 attributes.function: cannot import"
SECONDS = 120.0
"""A minute, on a busy machine."""


def test_an_image_that_does_not_load_is_refused_and_the_team_goes_on(
    team: TeamInPods, images: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of the Job `prepare` names file, line and key. No part of the platform is restarted."""
    took = refused(team, images["broken"], FAULT)
    with team.webserver() as dagster:
        assert dagster.why_not_ready() == ""
    team.change({})
    with capsys.disabled():
        print(f"\ndefinitions that do not load: named {took:.0f} s after the begin of the upgrade")


def end_of_pod(team: TeamInPods, run_id: str) -> str:
    """Return when the pod of a run ended; empty before. The run succeeds a moment earlier."""
    (pod,) = team.run_pods(run_id)
    (state,) = [one["state"] for one in pod["status"]["containerStatuses"]]
    return str(state.get("terminated", {}).get("finishedAt", ""))


def refused(team: TeamInPods, image: str, why: str) -> float:
    """Upgrade to an image that is refused, as the log of the Job `prepare` says; return the seconds until it does. No
    part of the platform is restarted.
    """
    before = {part: team.ready_pod(part) for part in PARTS}
    values = team.values.read_text()

    def said() -> str:
        try:
            return team.cluster.kubectl("logs", "job/prepare", "--all-pods=true")
        except CommandFailed:  # no pod of it yet
            return ""

    try:
        with ThreadPoolExecutor(1) as pool:
            upgrade = pool.submit(team.change, {"images": {"platform": image}})
            took = waited_for(lambda: why in said(), "the fault in the log", SECONDS, said)
            with pytest.raises(CommandFailed, match="prepare"):
                upgrade.result()
    finally:
        team.values.write_text(values)
    assert {part: team.ready_pod(part) for part in PARTS} == before
    return took


@pytest.fixture
def older_again(team: TeamInPods, images: dict[str, str]) -> Iterator[None]:
    """Afterwards the team has the older version again, which no upgrade does: the migration is taken back by hand."""
    yield
    team.python(OLDER_AGAIN)
    team.change({"images": {"platform": images["platform"]}})


@pytest.mark.nightly
@pytest.mark.usefixtures("tables", "older_again")
def test_an_upgrade_loses_no_run_and_no_tick(
    team: TeamInPods, images: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run trains while the newer version migrates the ledger and replaces every part. It ends in the older version.
    The run of a tick ends in either. The older version is refused afterwards.
    """
    with team.webserver() as dagster:
        next_due(at_least=timedelta(seconds=60), at_most=timedelta(seconds=200))
        assets = [f"store_demand/{stage}" for stage in STAGES]
        run_id = dagster.launch(LOCATION, assets, {"dagster/partition": LAST_WEEK})
        waited_for(lambda: len(team.trainer_nodes()) == 2, "trainers on two nodes", 900, team.about)
    next_due(at_least=timedelta(seconds=5), at_most=PERIOD)
    began = datetime.now(UTC)
    team.new_data(end_of(NEXT_WEEK))
    team.change({"images": {"platform": images["newer"]}})
    upgraded = datetime.now(UTC)
    with team.webserver() as dagster:
        run = dagster.wait_for_run(run_id)
        assert run.status == "SUCCESS", f"{dagster.messages(run_id)[-3000:]} {team.about()}"
        (pod,) = team.run_pods(run_id)
        assert pod["spec"]["containers"][0]["image"] == images["platform"]
        waited_for(lambda: bool(end_of_pod(team, run_id)), "the end of the run's pod", SECONDS)
        ended = end_of_pod(team, run_id)
        daemon = team.cluster.pod(team.ready_pod("daemon"))
        replaced = daemon["metadata"]["creationTimestamp"]
        assert ended > replaced > began.isoformat(), "the run ended before the upgrade: nothing was tested"

        tick = requesting_tick(team, dagster, NEXT_WEEK)
        ticked = dagster.wait_for_run(tick.run_ids[0])
        assert ticked.status == "SUCCESS", f"{dagster.messages(ticked.id)[-3000:]} {team.about()}"
        ticks = [one.due for one in dagster.ticks(LOCATION, SCHEDULE)]
        assert all(later - earlier == PERIOD for later, earlier in pairwise(ticks)), ticks

        nodes = dagster.ask("{ assetNodes { assetKey { path } } }")["assetNodes"]
        assert ["features", TABLE] in [one["assetKey"]["path"] for one in nodes]
    assert f"revision {REVISION}" in team.command("doctor", "ledger")
    refused(team, images["platform"], f"the tables have revision {REVISION}, this version")
    with capsys.disabled():
        print(f"\nupgraded in {(upgraded - began).total_seconds():.0f} s, the run ended at {ended}")
