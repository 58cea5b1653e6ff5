"""200 trainings at once, each followed by its launcher: requests to the API server, and ends that are missed.

The cluster is that of `CLUSTER_STATE`, or of `make cluster-up`. The trainings have one pod each on simulated nodes
(KWOK); 20 of them with --quick. All launchers are threads of this process, with the rights of the chart's account
`run`, whose requests the API server counts apart. Their artifacts are a folder. For two minutes they only watch.
Then a quarter of the pods each succeeds, fails, is evicted, or loses its Job. The yardstick is a poll of Job and pods
twice a second for each training, as launchers did before 2026-11-30.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from deployment.testbed.cluster import command as cluster_command
from deployment.testbed.cluster.local_cluster import LocalCluster
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import rightful_kubeconfig
from ml_assets_tests.cluster.queues.many_trainings import ManyTrainings, count_apart

MOST_REQUESTS = 6.0
"""Requests of a training in the minute, so 20 of 200 trainings in a second."""
POLLED = 240.0
"""Requests of a training in the minute: two, twice a second."""
SETTLE_SECONDS, WATCHED_SECONDS = 60.0, 120.0
QUICK_SECONDS = 30.0
"""Both, with --quick."""
NODES = 4


def main() -> int:
    """Measure, print, decide."""
    asked = parse_args(__doc__)
    count = 20 if asked.quick else 200
    settle, watch = (QUICK_SECONDS, QUICK_SECONDS) if asked.quick else (SETTLE_SECONDS, WATCHED_SECONDS)
    running = LocalCluster(Path(os.environ.get("CLUSTER_STATE") or cluster_command.DEFAULT))
    with (
        tempfile.TemporaryDirectory(prefix="trainings") as place,
        _namespace(running) as cluster,
    ):
        folder = Path(place)
        account = rightful_kubeconfig(cluster, "run", folder)
        requests = count_apart(cluster, "run")
        running.add_simulated_nodes(NODES)
        try:
            trainings = ManyTrainings(cluster, account, folder, count)
            results = _measured(trainings, requests, settle, watch)
        finally:
            running.remove_simulated_nodes()
    return emit(results, json=asked.json)


@contextmanager
def _namespace(cluster: LocalCluster) -> Iterator[ClusterEnvironment]:
    """A namespace of its own for the block. Its pods have no process, which would need the store."""
    name = f"trainings-{time.time_ns()}"
    cluster.kubectl("create", "namespace", name)
    try:
        yield ClusterEnvironment(cluster, name, "http://nowhere")
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


def _measured(
    trainings: ManyTrainings, requests: Callable[[], int], settle: float, watch: float
) -> list[Result]:
    count = len(trainings.all)
    started = trainings.wait_until_all_run()
    starting = requests() / count
    time.sleep(settle)
    before, processor = requests(), time.process_time()
    time.sleep(watch)
    watched = (requests() - before) / count / (watch / 60)
    share = (time.process_time() - processor) / watch
    trainings.play_ends()
    trainings.finish_second_attempts()
    noticed = [one.noticed_after() for one in trainings.all]
    seen = sorted(one for one in noticed if one is not None)
    missed = count - len(seen) + sum(not one.is_as_played() for one in trainings.all)
    for one in trainings.all:
        if one.noticed_after() is None or not one.is_as_played():
            sys.stderr.write(f"{one.end}: {[line for _, line in one.said]} {one.result.exception()}\n")
    return [
        Result(
            name=f"requests of each of {count} trainings that are watched, in a minute "
            f"({watched * count / 60:.1f} of all in a second; {share:.2f} of a core)",
            value=watched,
            unit="requests",
            peers={"polled twice a second": POLLED},
            ratio=watched / POLLED,
            bar=f"≤ {MOST_REQUESTS / POLLED:g} × polled",
            ok=watched <= MOST_REQUESTS,
        ),
        Result(
            name=f"ends of {count} trainings that were missed",
            value=missed,
            unit="ends",
            bar="none",
            ok=missed == 0,
        ),
        Result(
            name=f"from the end of a pod to its launcher, median (most {seen[-1]:.1f} s; {count} ends at once)",
            value=statistics.median(seen),
            unit="s",
            bar="shown",
            ok=True,
        ),
        Result(
            name=f"requests of a training from its launch until its pod runs ({count} at once: {started:.0f} s)",
            value=starting,
            unit="requests",
            bar="shown",
            ok=True,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
