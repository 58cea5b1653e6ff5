"""Trainings with a least and a most of nodes: as many pods as there is room for, and more when there is room again."""

import re
from collections.abc import Callable, Iterator

import pytest

from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment, pod
from ml_assets_tests.cluster.launched_job import LaunchedJob, logged_steps
from resources.job.errors import Unschedulable
from resources.job.events import TrainingEvent
from resources.platform import Platform

Launch = Callable[..., LaunchedJob]
pytestmark = [pytest.mark.timeout(900), pytest.mark.alone]  # others' pods would take the room

ONE_OR_TWO = {"min": 1, "max": 2}


@pytest.fixture
def cpu(tidy: ClusterEnvironment) -> str:
    """Return a CPU request that fits a node once and not twice."""
    nodes = tidy.cluster.objects("nodes")
    return f"{0.6 * min(int(node['status']['allocatable']['cpu']) for node in nodes):g}"


@pytest.fixture
def neighbour(tidy: ClusterEnvironment, cpu: str) -> Iterator[Callable[[], None]]:
    """A pod that takes the room of one training pod on node 2; gone when it is called, and afterwards."""
    document = pod("neighbour", tidy.image, "import time; time.sleep(600)")
    document["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node2"}
    tidy.apply(document)
    tidy.wait_for_phase("neighbour", "Running")

    def leave() -> None:
        tidy.kubectl("delete", "pod", "neighbour", "--ignore-not-found", "--wait=false", "--grace-period=0")

    yield leave
    leave()


def test_a_training_begins_with_the_pods_there_is_room_for(launching: Launch, cpu: str) -> None:
    """The training stops looking for room near its end."""
    launch = launching(workers=3, max_attempts=1)
    profile = launch.profile("steps steps", steps=460, told=True, nodes={"min": 1, "max": 3}, cpu=cpu)
    assert launch.run(profile).attempts == 2
    assert launch.sizes() == [3, 2]
    assert any(re.search("2 of 3 pods .*; 0 of 1", line) for line in launch.log), launch.log
    assert logged_steps(launch.events)[-1] == 459
    assert any(line.startswith("no longer looking for") for line in launch.log), launch.log
    assert launch.left() == []


def test_less_room_than_the_least_is_final_and_says_so(launching: Launch, cpu: str) -> None:
    launch = launching(workers=4).with_kubernetes(unschedulable_seconds=8)
    with pytest.raises(Unschedulable, match=r"pod \d .*least 3 .*Insufficient cpu"):
        launch.run(launch.profile("steps", steps=3000, nodes={"min": 3, "max": 4}, cpu=cpu))
    assert launch.sizes() == [4]
    assert launch.left() == []


def test_room_that_comes_later_is_grown_into_without_a_step_done_twice(
    launching: Launch, neighbour: Callable[[], None], cpu: str
) -> None:
    launch = launching(max_attempts=1)
    profile = launch.profile("steps steps steps", steps=800, nodes=ONE_OR_TWO, cpu=cpu)
    asked: list[str] = []

    def watch(event: TrainingEvent) -> None:
        launch.events.append(event)
        if event.kind == "metrics" and event.step % 50 == 0 and not asked:
            pods = [one for one in launch.objects("pods") if "-room-" in one["metadata"]["name"]]
            if pods:  # it waits for room beside a training that goes on
                asked.extend(one["status"]["phase"] for one in pods)
                neighbour()

    launcher = Platform(launch.settings).launcher
    result = launcher.run(launch.job, launch.folder, watch, launch.log.append, profile)
    assert launch.sizes() == [2, 1, 2]
    assert asked == ["Pending"]
    assert result.attempts == 3
    assert logged_steps(launch.events) == list(range(800))
    assert any(re.search("2 pods .*of 1; 0 of 1", line) for line in launch.log)
    assert launch.left() == []
