"""Three teams share 128 GPUs: a public trace by four policies, on the real scheduler and the real Kueue.

`PHILLY=FILE python benchmarks/claims/servers/trace_replay.py [--policy NAME …] [--hours 24] [--speed 48]`

The trace: jobs of three virtual clusters of the Philly trace (Microsoft, msr-fiddle/philly-traces, CC-BY-4.0; Jeon et
al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", 2019), as columns window,
offset_seconds, duration_seconds, gpus and team. Window 1 begins on 2017-11-30 at 06:00, window 2 on 2017-10-25 at
18:00.

Runs on the cluster of `CLUSTER_STATE`, or of `make cluster-up`; without one, it starts and ends one. Its 16 nodes of 8
GPUs are simulated (KWOK) and so are the trainings, whose pods have no processes: work, starts of 120 s and checkpoints
every 30 minutes are reckoned. API server, scheduler, Kueue, and the levels of
`resources.launcher.kubernetes.queue_priority` are real. Time is compressed by --speed, and so the seconds that the
cluster needs weigh as much more.

* first come: one queue, strictly in order
* static thirds: a queue for each team, of a third of the GPUs
* fair share: the same queues in a cohort; a team borrows what others leave, and Kueue evicts the youngest
* fair share, checkpoint-aware: the product. Trainings save on notice, the one that saved last is evicted first, and
  none waits longer than --bound hours for others of its team

Lost GPU-seconds are work since the last checkpoint, unless it is saved on notice, and starts that are repeated.

--outcomes FILE keeps what the policies came to, so that each may run on its own; the bars are judged over the file.
"""

import argparse
import csv
import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit
from benchmarks.claims.servers._trace_queues import NODES, TRAINING, queues, shares
from benchmarks.claims.servers._trace_replay import PolicyReplay, ReplayedTraining, TraceJob
from deployment.testbed.cluster import cluster_record, command, local_cluster
from deployment.testbed.cluster.cluster_layout import ClusterLayout
from deployment.testbed.cluster.local_cluster import LocalCluster
from deployment.testbed.cluster.queues import MANAGED
from deployment.testbed.cluster.simulation import GPUS
from resources.launcher.kubernetes.cluster import Cluster

POLICIES = ("first come", "static thirds", "fair share", "fair share, checkpoint-aware")
_, THIRDS, FAIR, AWARE = POLICIES
MOST_LOST, MOST_EVICTIONS, LEAST_RUNNING, LEAST_USEFUL = 0.10, 0.50, 0.85, 1.2
REACTION_SECONDS = 10.0
"""Real seconds that the cluster may need beyond the bound: pods end, others start."""
SIZES = ((1, 1), (2, 4), (8, 8), (16, 16))


def main() -> int:
    """Replay, print, decide."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--philly", type=Path, default=os.environ.get("PHILLY"), help="CSV file of the trace ($PHILLY)"
    )
    parser.add_argument("--quick", action="store_true", help="four times the compression")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: all")
    parser.add_argument("--window", default="1")
    parser.add_argument("--hours", type=float, default=24.0, help="hours of the window (%(default)s)")
    parser.add_argument("--speed", type=float, default=48.0, help="compression of time (%(default)s)")
    parser.add_argument("--bound", type=float, default=24.0, help="bound on waiting in hours (%(default)s)")
    parser.add_argument("--outcomes", type=Path, help="JSON file to read and extend")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    asked = parser.parse_args()
    if asked.philly is None:
        parser.error("set PHILLY to the CSV file of the Philly trace")
    jobs = _read(asked.philly, asked.window, asked.hours)
    found: dict[str, dict[str, Any]] = {}
    if asked.outcomes is not None and asked.outcomes.exists():
        found = json.loads(asked.outcomes.read_text())
    speed = asked.speed * (4 if asked.quick else 1)
    with _running_cluster() as cluster:
        for policy in asked.policy or POLICIES:
            found[policy] = _replayed(cluster, policy, jobs, asked.hours, speed, 3600 * asked.bound)
            if asked.outcomes is not None:
                asked.outcomes.write_text(json.dumps(found, indent=1))
    if not asked.json:
        for policy, outcome in found.items():
            print(f"{policy}:")
            for name, value in outcome.items():
                print(f"  {name}: {value}")
    return emit(_judged(found), json=asked.json)


def _read(file: Path, window: str, hours: float) -> list[TraceJob]:
    with file.open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["window"] == window]
    return [
        TraceJob(
            number=number,
            at=float(row["offset_seconds"]),
            work=float(row["duration_seconds"]),
            gpus=int(row["gpus"]),
            team=row["team"],
        )
        for number, row in enumerate(rows)
        if float(row["offset_seconds"]) < 3600 * hours
    ]


@contextmanager
def _running_cluster() -> Generator[LocalCluster]:
    """Yield the cluster that runs, or one for the block; it has Kueue, and the simulated nodes during the block."""
    layout = ClusterLayout(
        Path(os.environ.get("CLUSTER_STATE") or command.DEFAULT).resolve(),
        os.environ.get("CLUSTER_NAME") or ClusterLayout.name,
        os.environ.get("CLUSTER_NETWORK") or ClusterLayout.network,
    )
    is_ours = not cluster_record.exists(layout.state)
    try:
        running = local_cluster.up(layout)
        os.environ["KUBECONFIG"] = str(running.kubeconfig)
        running.add_queues()
        running.add_simulated_nodes(NODES)
        yield running
        running.remove_simulated_nodes()
    finally:
        if is_ours:
            local_cluster.down(layout)


def _replayed(
    running: LocalCluster, policy: str, jobs: Sequence[TraceJob], hours: float, speed: float, bound: float
) -> dict[str, Any]:
    """Replay a policy in a namespace of its own; return what it came to."""
    namespace = f"trace-{secrets.token_hex(3)}"
    running.kubectl("create", "namespace", namespace)
    running.kubectl("label", "namespace", namespace, f"{MANAGED}=yes")
    objects = queues(policy, sorted({one.team for one in jobs}), namespace)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    running.kubectl("apply", "--filename=-", stdin=listed)
    replay = PolicyReplay(
        cluster=Cluster(namespace, running.context),
        trainings=[ReplayedTraining(of=one) for one in jobs],
        hours=hours,
        speed=speed,
        bound=bound,
        is_aware=policy == AWARE,
    )
    load = os.getloadavg()[1]
    began, used = time.monotonic(), time.process_time()
    try:
        replay.run(lambda line: print(f"{policy}, {line}", file=sys.stderr, flush=True))
        outcome = _outcome(replay, shares(sorted({one.team for one in jobs})))
    finally:
        running.kubectl(
            "delete", "jobs", f"--selector={TRAINING}", "--all-namespaces", "--wait=true", seconds=300
        )
        running.kubectl(
            "delete", "--filename=-", "--ignore-not-found", "--wait=true", stdin=listed, seconds=300
        )
        running.kubectl("delete", "namespace", namespace, "--wait=false")
    return outcome | {
        "hours, speed, bound in hours": [hours, speed, bound / 3600],
        "real seconds, and CPU seconds of this script": [
            round(time.monotonic() - began),
            round(time.process_time() - used),
        ],
        "load before and after": [round(load, 1), round(os.getloadavg()[1], 1)],
    }


def _outcome(replay: PolicyReplay, own: dict[str, int]) -> dict[str, Any]:
    end = 3600 * replay.hours
    trainings = replay.trainings
    done = [one.done_at - one.of.at for one in trainings if one.done_at is not None]
    busy = replay.busy
    whole = busy["seconds"] * NODES * GPUS or 1.0
    bounded = [one for one in trainings if one.of.gpus <= own[one.of.team]]
    return {
        "trainings, done": [len(trainings), len(done)],
        "mean and median hours of those that are done": [
            _hours(statistics.mean(done)),
            _hours(statistics.median(done)),
        ],
        "useful GPU-hours": round(sum(one.of.gpus * one.worked(end) for one in trainings) / 3600, 1),
        "lost GPU-seconds": round(sum(one.lost for one in trainings)),
        "unsaved GPU-seconds at evictions": round(sum(one.of.gpus * sum(one.unsaved) for one in trainings)),
        "evictions, most of one training": [
            sum(len(one.unsaved) for one in trainings),
            max(len(one.unsaved) for one in trainings),
        ],
        "hours in which work waits": _hours(busy["seconds"]),
        "share of GPUs that run while work waits": round(busy["running"] / whole, 3),
        "share of GPUs that are reserved while work waits": round(busy["reserved"] / whole, 3),
        "longest wait in hours within a team's share": _hours(max(max(_waits(one, end)) for one in bounded)),
        "hours to the start, p50 and p95, by team": _by(trainings, end, lambda one: one.of.team),
        "hours to the start, p50 and p95, by GPUs": _by(trainings, end, lambda one: _size(one.of.gpus)),
    }


def _waits(one: ReplayedTraining, end: float) -> list[float]:
    """Return all waits of a training; the last one may go on at the end of the window."""
    return one.waits + ([] if one.waiting_since is None else [end - one.waiting_since]) or [0.0]


def _by(
    trainings: Iterable[ReplayedTraining], end: float, group: Callable[[ReplayedTraining], str]
) -> dict[str, list[float]]:
    """Return p50 and p95 of the waits for the first start, in hours, by group."""
    found: dict[str, list[float]] = {}
    for one in trainings:
        found.setdefault(group(one), []).append(_waits(one, end)[0])
    return {
        name: [_hours(_quantile(waits, share)) for share in (0.5, 0.95)]
        for name, waits in sorted(found.items())
    }


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the least value that is not below `share` of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _size(gpus: int) -> str:
    low, high = next(size for size in SIZES if gpus <= size[1])
    return str(low) if low == high else f"{low} to {high}"


def _hours(seconds: float) -> float:
    return round(seconds / 3600, 2)


def _judged(found: dict[str, dict[str, Any]]) -> list[Result]:
    """Return the bars that the policies at hand can be judged by."""
    if AWARE not in found:
        return []
    ours = found[AWARE]
    hours, speed, bound = ours["hours, speed, bound in hours"]
    longest = ours["longest wait in hours within a team's share"]
    running = ours["share of GPUs that run while work waits"]
    allowed = bound + REACTION_SECONDS * speed / 3600
    results = [
        Result(
            name=f"{hours:g} hours of the trace: GPUs that run while work waits",
            value=100 * running,
            unit="%",
            peers={name: 100 * one["share of GPUs that run while work waits"] for name, one in found.items()},
            bar=f"≥ {100 * LEAST_RUNNING:g} %",
            ok=running >= LEAST_RUNNING,
        ),
        Result(
            name=f"longest wait within a team's share, as a share of the bound of {bound:g} hours of the trace",
            value=longest / bound,
            unit="×",
            peers={
                name: one["longest wait in hours within a team's share"] / bound
                for name, one in found.items()
            },
            bar=f"≤ {allowed / bound:.2f} × the bound: it, and the reaction of the cluster",
            ok=longest <= allowed,
        ),
    ]
    if FAIR in found:
        for what, most in (
            ("lost GPU-seconds", MOST_LOST),
            ("evictions, most of one training", MOST_EVICTIONS),
        ):
            mine, peer = (
                float(value[0] if isinstance(value := one[what], list) else value)
                for one in (ours, found[FAIR])
            )
            results.append(
                Result(
                    name=what.partition(",")[0],
                    value=mine,
                    unit="",
                    peers={FAIR: peer},
                    ratio=mine / peer if peer else None,
                    bar=f"≤ {most:g} × fair share",
                    ok=mine <= most * peer,
                )
            )
    if THIRDS in found:
        mine, peer = (one["useful GPU-hours"] for one in (ours, found[THIRDS]))
        results.append(
            Result(
                name="useful GPU-hours",
                value=mine,
                unit="GPU-hours",
                peers={THIRDS: peer},
                ratio=mine / peer,
                bar=f"≥ {LEAST_USEFUL:g} × static thirds",
                ok=mine >= LEAST_USEFUL * peer,
            )
        )
    return results


if __name__ == "__main__":
    raise SystemExit(main())
