"""The platform itself in pods, from the Helm chart and the real images, on real servers: a click, a
tick of a schedule, and the loss of the node under webserver and daemon each end in a registered model.
"""

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from urllib.parse import urlsplit

import pytest

from ml_assets_tests.browser.graphql import Dagster, DagsterRun, ScheduleTick
from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.platform.conftest import LOCATION, PERIOD
from ml_assets_tests.cluster.platform.team_in_pods import PARTS, TeamInPods
from ml_assets_tests.deployment.who_reaches_what import KINDS, TRAININGS, told_by_the_page

pytestmark = pytest.mark.timeout(3000)

CLICKED, TICKED, MISSED = "2024-01-01", "2024-01-08", "2024-01-15"
SCHEDULE = "train_store_demand_schedule"
STAGES = ("training_set", "checkpoint", "evaluation", "registered_model")
STEPS = [f"store_demand.{step}" for step in ("validate_inputs", "snapshot", "train", "evaluate", "register")]
SECONDS = 900.0
PORTS = ("3000", "4000", "7000")
"""Ports of the pages, of the code location, and of nobody."""


def test_every_part_of_the_shipped_manifests_runs(team: TeamInPods, dagster: Dagster) -> None:
    """Webserver, daemon and code location are Ready, restarted never, and as the manifests say: no root, a read-only
    root file system, the strictest pod standard.
    """
    assert dagster.why_not_ready() == ""
    for part in PARTS:
        pod = team.cluster.pod(team.ready_pod(part))
        (status,) = pod["status"]["containerStatuses"]
        assert status["restartCount"] == 0, team.about()
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"]


@pytest.mark.usefixtures("tables")
def test_a_click_trains_in_two_pods_and_registers(team: TeamInPods, dagster: Dagster) -> None:
    """The run has its own pod, the trainers run on two nodes, and its log is read through the webserver."""
    assets = [f"store_demand/{stage}" for stage in STAGES]
    run_id = dagster.launch(LOCATION, assets, {"dagster/partition": CLICKED})
    run = trained_on_two_nodes(team, dagster, run_id)
    assert list(run.steps) == STEPS
    (pod,) = team.run_pods(run_id)
    (container,) = pod["spec"]["containers"]
    location = team.cluster.pod(team.ready_pod("code-location"))
    assert container["image"] == location["spec"]["containers"][0]["image"]
    assert pod["spec"]["serviceAccountName"] == "run"
    assert "store_demand.train" in dagster.step_logs(run_id)
    bucket, _ = team.artifacts
    kept = team.s3.list_objects_v2(Bucket=bucket, Prefix=f"step-logs/storage/{run_id}/")
    assert kept["KeyCount"] > 0
    assert CLICKED in team.command("card", "store_demand")


def trained_on_two_nodes(team: TeamInPods, dagster: Dagster, run_id: str) -> DagsterRun:
    """Wait for the end of a run, whose trainers run on two nodes meanwhile; return it. Nothing of them is left."""

    def about() -> str:
        return f"{dagster.messages(run_id)[-3000:]} {team.about()}"

    nodes: set[str] = set()
    waited_for(
        lambda: bool(nodes.update(team.trainer_nodes()) or len(nodes) == 2),
        "trainers on two nodes",
        SECONDS,
        about,
    )
    run = dagster.wait_for_run(run_id)
    assert run.status == "SUCCESS", about()
    assert team.left() == []
    return run


@pytest.mark.usefixtures("tables")
def test_a_tick_of_the_daemons_pod_trains_and_registers(team: TeamInPods, dagster: Dagster) -> None:
    team.new_data(end_of(TICKED))
    tick = requesting_tick(team, dagster, TICKED)
    run = trained_on_two_nodes(team, dagster, tick.run_ids[0])
    assert run.tags["dagster/schedule_name"] == SCHEDULE
    assert set(STEPS) <= run.steps.keys()
    assert TICKED in team.command("card", "store_demand")


def end_of(week: str) -> date:
    """Return the last day of the week that starts on this Monday."""
    return date.fromisoformat(week) + timedelta(days=6)


def requesting_tick(team: TeamInPods, dagster: Dagster, week: str) -> ScheduleTick:
    """Wait for the first tick that requests a run of this week; return it. No tick failed before."""
    found: list[ScheduleTick] = []

    def has_requested() -> bool:
        ticks = dagster.ticks(LOCATION, SCHEDULE)
        assert not [one for one in ticks if one.status == "FAILURE"], ticks
        found[:] = [
            one for one in ticks for run in one.run_ids if dagster.run(run).tags["dagster/partition"] == week
        ]
        return bool(found)

    waited_for(has_requested, f"a tick that requests {week}", SECONDS, team.about)
    return found[-1]


def test_each_pod_reaches_what_the_page_says_and_no_more(team: TeamInPods) -> None:
    """Every kind of pod, on each node, tries each other one at the ports of all of them, and the servers."""
    for job in TRAININGS.values():
        team.isolate(job)
    kinds = {team.ready_pod(part): part.replace("-", " ") for part in PARTS}
    for number in team.cluster.cluster.layout.numbers:
        for place, kind in enumerate((*TRAININGS, "a run", "another pod")):
            labels, _ = KINDS[kind]
            kinds[team.idle_pod(f"idle-{place}-{number}", labels, f"node{number}")] = kind
    addresses = {pod: team.cluster.pod(pod)["status"]["podIP"] for pod in kinds}
    told = told_by_the_page()
    store = urlsplit(team.variables["ML_ASSETS_S3_ENDPOINT_URL"]).netloc
    servers = {
        store,
        urlsplit(team.variables["ML_ASSETS_LAKE_URL"]).netloc,
        urlsplit(team.variables["ML_ASSETS_LEDGER_URL"]).netloc.rpartition("@")[2],
    }
    for sender, kind in kinds.items():
        others = {pod: address for pod, address in addresses.items() if pod != sender}
        wanted = {store} if kind in TRAININGS else set(servers)
        for pod, address in others.items():
            port = told.get((kind, kinds[pod]), "")
            wanted |= {f"{address}:{one}" for one in PORTS if port in ("all", one)}
        if told.get((kind, "code location")) == "4000":
            wanted.add("code-location:4000")
        tried = [
            *servers,
            "code-location:4000",
            *(f"{one}:{port}" for one in others.values() for port in PORTS),
        ]
        if kind == "code location":
            tried.remove("code-location:4000")
        reached: list[set[str]] = []

        # A new pod is open until the rules know its address.
        def as_wanted(
            sender: str = sender,
            tried: list[str] = tried,
            wanted: set[str] = wanted,
            reached: list[set[str]] = reached,
        ) -> bool:
            reached.append(team.reached_from(sender, tried))
            return reached[-1] == wanted

        waited_for(
            as_wanted,
            f"{sender} ({kind}) to reach only {wanted}",
            300,
            lambda reached=reached: str(reached[-1]),
        )
    team.cluster.kubectl("delete", "pod", "--wait=false", *(pod for pod in kinds if pod.startswith("idle-")))


@pytest.fixture
def lost_node(team: TeamInPods) -> Iterator[int]:
    """A node with webserver and daemon; the code location is on the other. The node runs again afterwards."""
    first, second = team.cluster.cluster.layout.numbers
    for part, number in (("webserver", first), ("daemon", first), ("code-location", second)):
        team.move(part, f"node{number}")
    yield first
    team.cluster.cluster.start_node(first)


@pytest.mark.usefixtures("tables")
def test_a_tick_due_while_the_daemons_node_is_lost_is_made_up(
    team: TeamInPods, lost_node: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The power of the node under webserver and daemon is cut shortly before a tick is due. New data arrives meanwhile.
    The tick is evaluated by the daemon on the other node, and its run trains when the node is back.
    """
    node = f"node{lost_node}"
    with team.webserver() as dagster:
        pass  # the schedule ticks, and both know the code location after their move
    due = next_due(at_least=timedelta(seconds=5), at_most=timedelta(seconds=25))
    team.cluster.cluster.kill_node(lost_node)
    killed = datetime.now(UTC)
    team.new_data(end_of(MISSED))
    with team.webserver(away_from=node) as dagster:
        back = datetime.now(UTC)
        daemon = team.cluster.pod(team.ready_pod("daemon", away_from=node))
        (container,) = daemon["status"]["containerStatuses"]
        started = datetime.fromisoformat(container["state"]["running"]["startedAt"])
        tick = requesting_tick(team, dagster, MISSED)
        assert tick.due == due
        assert killed < due < started
        team.cluster.cluster.start_node(
            lost_node
        )  # the other one has no room for everything and two trainers
        run = dagster.wait_for_run(tick.run_ids[0])
        assert run.status == "SUCCESS", f"{dagster.messages(run.id)[-3000:]} {team.about()}"
        ticks = [one.due for one in dagster.ticks(LOCATION, SCHEDULE)]
    with capsys.disabled():
        print(f"\nnode of webserver and daemon killed, both well on the other node after "
              f"{(back - killed).total_seconds():.1f} s")  # fmt: skip
    assert all(later - earlier == PERIOD for later, earlier in pairwise(ticks)), ticks
    assert MISSED in team.command("card", "store_demand")


def next_due(*, at_least: timedelta, at_most: timedelta) -> datetime:
    """Wait until the next tick is due within these limits; return when it is due."""
    while True:
        now = datetime.now(UTC)
        begin = now.replace(minute=0, second=0, microsecond=0)
        due = begin + ((now - begin) // PERIOD + 1) * PERIOD
        if at_least < due - now < at_most:
            return due
        time.sleep(1)
