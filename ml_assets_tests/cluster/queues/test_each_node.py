"""A queue that counts the free room of each node: what fits the quota but no node waits, in place of a failure."""

import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from deployment.testbed.cluster.simulation import GPUS, TAINT
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import LaunchedJob
from ml_assets_tests.cluster.queues.conftest import MakeQueue

pytestmark = pytest.mark.timeout(600)
TOLERATED = [{"key": TAINT, "operator": "Exists"}]


@pytest.fixture
def two_nodes(managed: ClusterEnvironment) -> Iterator[None]:
    """Add two simulated nodes while the test runs."""
    managed.cluster.add_simulated_nodes(2)
    yield
    managed.cluster.remove_simulated_nodes()


def heard(process: "subprocess.Popen[str]", words: str) -> str:
    """Return the next line of a launcher with these words."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return line
    raise AssertionError(f"the launcher ended: {lines}")


@pytest.mark.usefixtures("two_nodes")
def test_gpus_that_are_free_on_two_nodes_are_no_room_for_one_pod(
    launching: Callable[..., LaunchedJob], queue: MakeQueue
) -> None:
    """The pods of the first leave three GPUs on each node; the second needs six on one."""
    name = queue("each", flavor="each-node", cpu="8", gpu=str(2 * GPUS))
    first, second = (launching(workers=workers, global_batch=60, lanes=60) for workers in (10, 6))
    second = second.with_kubernetes(unschedulable_seconds=4)
    running = first.start(
        first.profile("steps", nodes=2, gpus=5, spread="required", queue=name, tolerations=TOLERATED)
    )
    heard(running, "2 pods run on simulated-0, simulated-1")
    waiting = second.start(second.profile("steps", gpus=6, queue=name, tolerations=TOLERATED))
    assert "doesn't allow to fit any of 1 pod" in heard(waiting, f"waits in queue {name}: ")
    assert second.objects("pods") == []
    running.send_signal(signal.SIGINT)
    heard(waiting, "1 pods run on simulated-")
    waiting.send_signal(signal.SIGINT)
    for process in (running, waiting):
        process.communicate(timeout=120)
    assert (first.left(), second.left()) == ([], [])
