"""Launchers that die, sleep, meet their twin or lose the API server: the training goes on, or nothing is left of it."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from ml_assets.components.sensors.ended_runs import PRUNE_EVERY_SECONDS
from ml_assets_tests.cluster.cluster_environment import waited_for
from ml_assets_tests.cluster.launched_job import (
    LaunchedJob,
    logged_steps,
)
from resources.job.events import TrainingEvent
from resources.job.reserved import RESERVED
from resources.platform import Platform

Launch = Callable[..., LaunchedJob]
pytestmark = pytest.mark.timeout(900)
LEASE_SECONDS = 20


def test_a_killed_launcher_is_pruned_after(launching: Launch) -> None:
    launch = launching(lease_seconds=LEASE_SECONDS)
    process = launch.start(launch.profile("steps", steps=3000, nodes=2))
    launch.wait_for_events(process, 3)
    process.kill()
    process.wait()
    killed = time.monotonic()
    assert len(launch.objects("pods")) == 2
    late = 0
    while not (said := launch.prune()).startswith("removed"):
        late += time.monotonic() - killed > LEASE_SECONDS
        assert late <= 3, said  # prunes in vain after the lease ran out
        time.sleep(PRUNE_EVERY_SECONDS)  # as the daemon's sensor
    assert launch.job.fingerprint[:12] in said
    assert launch.left() == []


def test_a_launcher_started_again_within_the_lease_attaches(launching: Launch) -> None:
    launch = launching()
    profile = launch.profile("steps", steps=300, nodes=2)
    process = launch.start(profile)
    launch.wait_for_events(process, 3)
    before = launch.uids("jobs,pods")
    process.kill()
    process.wait()
    seen: list[set[str]] = []

    def note(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.step == 250:
            seen.append(launch.uids("jobs,pods"))

    launcher = Platform(launch.settings).launcher
    result = launcher.run(launch.job, launch.folder, note, launch.log.append, profile)
    assert seen == [before]
    assert result.attempts == 1
    assert logged_steps(launch.events) == list(range(300))
    assert launch.starts() == 0
    assert launch.left() == []


def test_a_launcher_that_slept_through_its_lease_begins_again(launching: Launch) -> None:
    launch = launching(lease_seconds=4)
    process = launch.start(launch.profile("steps", steps=400, nodes=2))
    launch.wait_for_events(process, 3)
    before = launch.uids("jobs")
    os.kill(process.pid, signal.SIGSTOP)
    waited_for(lambda: Platform(launch.settings).launcher.prune() != [], "the sleeper to be pruned", 300)
    assert launch.left() == []
    os.kill(process.pid, signal.SIGCONT)
    assert process.stdout is not None
    told = process.stdout.read().splitlines()
    assert process.wait() == 0, told
    assert told[-1] == "result 1"
    assert sum(line.startswith("log started train-") for line in told) == 1
    assert before.isdisjoint(launch.uids("jobs"))
    assert launch.left() == []


def test_twins_run_one_job_and_get_the_same_result_and_events(launching: Launch) -> None:
    launch = launching()
    profile = launch.profile("steps", steps=300, nodes=2)
    twin = launch.start(profile)
    result = launch.run(profile)
    assert twin.stdout is not None
    told = twin.stdout.read().splitlines()
    assert twin.wait() == 0
    assert told[-1] == f"result {result.attempts}" == "result 1"
    # Each launcher reads on its own clock what its pods reserve.
    assert [f"event {one.kind} {one.step}" for one in launch.events if one.kind != RESERVED] == [
        line for line in told if line.startswith("event ") and not line.startswith(f"event {RESERVED} ")
    ]
    assert launch.left() == []


@pytest.mark.alone
def test_an_api_server_killed_in_the_middle_is_ridden_out(launching: Launch) -> None:
    launch = launching(max_attempts=1)
    killed: list[float] = []

    def kill(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.step == 20 and not killed:
            killed.append(time.monotonic())
            launch.cluster.cluster.kill("kube-apiserver")
            time.sleep(5)  # away for a while, not only restarted
            launch.cluster.cluster.restart("kube-apiserver")

    launcher = Platform(launch.settings).launcher
    profile = launch.profile("steps", steps=400, nodes=2)
    result = launcher.run(launch.job, launch.folder, kill, launch.log.append, profile)
    assert result.attempts == 1
    assert logged_steps(launch.events) == list(range(400))
    assert launch.starts() == 1
    waited_for(lambda: launch.left() == [], "nothing to be left", 300, lambda: str(launch.left()))


def test_every_line_of_a_long_log_is_told_once(launching: Launch) -> None:
    """More than the kubelet keeps in one file: it is rotated while it is read."""
    launch = launching(workers=1)
    launch.run(launch.profile("lines", steps=40_000))
    numbers = [int(line.split()[3]) for line in launch.log if line.startswith("pod 0: line ")]
    assert numbers == list(range(40_000))
