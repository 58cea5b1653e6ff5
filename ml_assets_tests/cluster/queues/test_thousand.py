"""A training of a thousand workers on nodes that only seem to be there: submitted, watched, cancelled.

Its workers do nothing, so nothing is learned here of training with a thousand; what the launcher asks of the API server
for so many, and how long it takes, is real.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from deployment.testbed.cluster.simulation import GPUS, TAINT
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import LaunchedJob
from ml_assets_tests.cluster.queues.conftest import MakeQueue
from resources.launcher.kubernetes.attempt import POLL_SECONDS, POLL_SECONDS_A_POD

pytestmark = pytest.mark.timeout(900)
WORKERS = 1000
WATCHED_SECONDS = 30.0

T = TypeVar("T")


@pytest.fixture
def simulated(managed: ClusterEnvironment) -> Iterator[ClusterEnvironment]:
    """Add simulated nodes with one GPU for each worker while the test runs."""
    managed.cluster.add_simulated_nodes(WORKERS // GPUS)
    yield managed
    managed.cluster.remove_simulated_nodes()


def test_a_thousand_workers_are_queued_started_watched_and_cancelled(
    launching: Callable[..., LaunchedJob],
    queue: MakeQueue,
    simulated: ClusterEnvironment,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = queue("large", cpu="1200", memory="2Ti", gpu=str(WORKERS))
    launch = launching(workers=WORKERS, global_batch=WORKERS, lanes=WORKERS)
    profile = launch.profile(
        "steps", nodes=WORKERS, gpus=1, queue=name, tolerations=[{"key": TAINT, "operator": "Exists"}]
    )
    began = time.monotonic()
    process = launch.start(profile)
    assert process.stdout is not None
    for line in process.stdout:
        if f"{WORKERS} pods run on " in line:
            break
    running = time.monotonic() - began
    listing, found = _costs(lambda: launch.objects("pods"))
    assert len(found) == WORKERS
    assert "and 120 more" in line

    before = _processor_seconds(process.pid)
    time.sleep(WATCHED_SECONDS)
    share = (_processor_seconds(process.pid) - before) / WATCHED_SECONDS
    look = share * max(POLL_SECONDS, WORKERS * POLL_SECONDS_A_POD)
    assert process.poll() is None, "it is watched"

    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait()
    cancelled = time.monotonic() - began
    assert launch.left() == []
    with capfd.disabled():
        print(
            f"\n{WORKERS} workers: run {running:.1f} s after the launch, watched with {share:.2f} of a core, "
            f"{look:.2f} s of it a look (kubectl: {listing:.2f} s), gone {cancelled:.1f} s after the cancel"
        )
    assert look < 3 * listing, "one list a look"
    # The API server takes most of both; three runs had 1.6 to 1.8 times as long for the cancel.
    assert cancelled < 3 * running


def _costs(ask: Callable[[], T]) -> tuple[float, T]:
    """Return the processor seconds of this process and the children it waits for while it asks, and the answer."""
    before = os.times()
    answer = ask()
    return sum(os.times()[:4]) - sum(before[:4]), answer


def _processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process, so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
