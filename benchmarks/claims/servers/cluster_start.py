"""Time from the click to the first training step on a cluster, and its parts.

Two pods on two nodes, image present, servers and cluster running: those of `SERVERS_STATE` and `CLUSTER_STATE`, or of
`make servers-up cluster-up`. The click is the request that the page sends. Prints the median of five weeks (one with
--quick), each with its own training, and its parts. A first training warms up the platform's processes, as after their
first use. The yardstick is the same click before, in a home on this machine alone: no servers, two local workers.
"""

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks._report import Result, emit, parse_args
from deployment.testbed.cluster import command as cluster_command
from deployment.testbed.cluster.local_cluster import LocalCluster
from deployment.testbed.servers import Servers
from deployment.testbed.servers import command as servers_command
from ml_assets_tests.browser.graphql import Dagster
from ml_assets_tests.browser.ui_process import running_ui
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment, session
from ml_assets_tests.cluster.cluster_installation import ClusterInstallation, install
from ml_assets_tests.servers.running_servers import RunningServers
from resources.job.events import read_events

MOST_TIMES_LOCAL = 3.0
"""Most time to the first step on the cluster, as a multiple of that on this machine alone. The cluster adds the lake on
S3, the inputs' way to the pods, two pods, and the imports in them."""
MODEL = "store_demand"
STAGES = ("training_set", "checkpoint", "evaluation", "registered_model")
WEEKS = ("2024-01-01", "2024-01-08", "2024-01-15", "2024-01-22", "2024-01-29", "2024-02-05")

_LAUNCH = """mutation($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_TIMES = """query($id: ID!) { runOrError(runId: $id) { ... on Run {
  startTime stepStats { stepKey startTime } } }
  logsForRun(runId: $id) { ... on EventConnection { events { ... on MessageEvent { message timestamp } } } } }"""


def main() -> int:
    """Measure, print, decide."""
    asked = parse_args(__doc__)
    servers = Servers(Path(os.environ.get("SERVERS_STATE") or servers_command.DEFAULT))
    running = LocalCluster(Path(os.environ.get("CLUSTER_STATE") or cluster_command.DEFAULT))
    weeks = WEEKS[: 2 if asked.quick else len(WEEKS)]
    with (
        tempfile.TemporaryDirectory(prefix="start") as place,
        tempfile.TemporaryDirectory(prefix="local") as local,
        session(running, servers.record) as cluster,
    ):
        alone = _starts_alone(Path(local) / "home", weeks)
        installation = install(Path(place) / "home", RunningServers(servers), cluster)
        installation.run("launch", "datasets/sales", f"2023-01-02..{weeks[-1]}")
        installation.run("launch", "features/sales_features", f"2023-01-30..{weeks[-1]}")
        os.environ.update(installation.variables)
        with running_ui(installation.home) as dagster:
            rounds = [_start(dagster, installation, cluster, week) for week in weeks][1:]
    rounds.sort(key=lambda parts: sum(parts.values()))
    middle = rounds[len(rounds) // 2]
    seconds = sum(middle.values())
    times = seconds / statistics.median(alone)
    total = Result(
        name="click to the first training steps in two pods on two nodes "
        f"({sum(rounds[0].values()):.1f} to {sum(rounds[-1].values()):.1f} s; alone {min(alone):.1f} to "
        f"{max(alone):.1f} s)",
        value=seconds,
        unit="s",
        peers={"this machine alone": statistics.median(alone)},
        ratio=times,
        bar=f"≤ {MOST_TIMES_LOCAL:g} × this machine alone",
        ok=times <= MOST_TIMES_LOCAL,
    )
    parts = [
        Result(name=f"of which {name}", value=value, unit="s", bar="a part", ok=True)
        for name, value in middle.items()
    ]
    return emit([total, *parts], json=asked.json)


def _starts_alone(home: Path, weeks: Sequence[str]) -> list[float]:
    """Return the seconds from the click to the first ten steps of each week but the first, without servers."""
    program, environment = (
        Path(sys.executable).with_name("ml-assets"),
        os.environ | {"ML_ASSETS_HOME": str(home)},
    )
    for table, first in (("datasets/sales", "2023-01-02"), ("features/sales_features", "2023-01-30")):
        command = [program, "launch", table, f"{first}..{weeks[-1]}"]
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
    seconds: list[float] = []
    with running_ui(home) as dagster:
        for week in weeks:
            before = _trainings(home)
            clicked = time.time()
            run_id = _click(dagster, week)
            if dagster.wait_for_run(run_id).status != "SUCCESS":
                raise SystemExit(dagster.messages(run_id)[-3000:])
            (folder,) = _trainings(home) - before
            seconds.append(_first_steps(folder) - clicked)
    return seconds[1:]


def _trainings(home: Path) -> set[Path]:
    return set((home / "artifacts" / "training" / MODEL).glob("*"))


def _first_steps(folder: Path) -> float:
    """Return the moment of the first metrics of a training, which come after ten steps."""
    return next(event.time for event in read_events(folder) if event.kind == "metrics")


def _start(
    dagster: Dagster, installation: ClusterInstallation, cluster: ClusterEnvironment, week: str
) -> dict[str, float]:
    """Click, follow the run, and split the time: part → seconds."""
    clicked = time.time()
    run_id = _click(dagster, week)
    pods = _pods_running(dagster, cluster, run_id)
    run = dagster.wait_for_run(run_id)
    if run.status != "SUCCESS":
        raise SystemExit(dagster.messages(run_id)[-3000:])
    told = dagster.ask(_TIMES, id=run_id)
    began = {step["stepKey"]: step["startTime"] for step in told["runOrError"]["stepStats"]}
    said = [
        (event["message"], float(event["timestamp"]) / 1000)
        for event in told["logsForRun"]["events"]
        if event.get("message")
    ]
    folder = next((installation.home / "artifacts" / "training" / MODEL).glob(f"{_fingerprint(said)}*"))
    events = read_events(folder)
    moments = {
        "click": clicked,
        "queue and the run's process": told["runOrError"]["startTime"],
        "validation and snapshot": began[f"{MODEL}.train"],
        "tracker, inputs to S3, Job": _when(r"started train-", said),
        "pods": pods,
        "staging and imports": _when(r"imported the libraries and met", said),
        "rendezvous": next(event.time for event in events if event.kind == "started"),
        "first ten steps": _first_steps(folder),
    }
    names = list(moments)
    return {name: moments[name] - moments[before] for before, name in itertools.pairwise(names)}


def _click(dagster: Dagster, week: str) -> str:
    selector = {
        "repositoryName": "__repository__",
        "repositoryLocationName": "ml_assets",
        "pipelineName": "__ASSET_JOB",
        "assetSelection": [{"path": [MODEL, stage]} for stage in STAGES],
        "assetCheckSelection": None,
    }
    metadata = {"tags": [{"key": "dagster/partition", "value": week}]}
    params: dict[str, Any] = {"selector": selector, "mode": "default", "executionMetadata": metadata}
    answer = dagster.ask(_LAUNCH, params=params)["launchPipelineExecution"]
    if answer["__typename"] != "LaunchRunSuccess":
        raise SystemExit(f"Dagster did not launch: {answer}")
    return answer["run"]["runId"]


def _pods_running(dagster: Dagster, cluster: ClusterEnvironment, run_id: str) -> float:
    """Return the start time of the last container of the pods, as reported by the nodes in whole seconds."""
    while True:
        states = [
            container["state"].get("running", {}).get("startedAt")
            for pod in cluster.objects("pods")
            for container in pod["status"].get("containerStatuses", ())
        ]
        if len(states) == 2 and all(states):
            return max(
                datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() for at in states
            )
        if dagster.run(run_id).status in ("FAILURE", "CANCELED"):
            raise SystemExit(dagster.messages(run_id)[-3000:])
        time.sleep(0.3)


def _when(pattern: str, said: list[tuple[str, float]]) -> float:
    """Return the time of the last line that matches."""
    return max(at for message, at in said if re.search(pattern, message))


def _fingerprint(said: list[tuple[str, float]]) -> str:
    """Return twelve digits from the name of the Job."""
    return next(
        found[1] for message, _ in said if (found := re.search(r"started train-([0-9a-f]{12})-", message))
    )


if __name__ == "__main__":
    sys.exit(main())
