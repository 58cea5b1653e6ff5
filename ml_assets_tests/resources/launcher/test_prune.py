"""Pruning of trainings to which nobody comes back. Healthy trainers wait for a run whose pod died with its node."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ml_assets.components.sensors.ended_runs import NOTHING_TO_PRUNE
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer
from ml_assets_tests.resources.launcher.sweep import sweep
from resources.launcher.kubernetes.cluster import Cluster
from resources.launcher.kubernetes.lease import Lease
from resources.platform import Platform
from resources.settings import KubernetesSettings, Settings

LEASE_SECONDS, RETURN_SECONDS = 3, 600
RUN = "11111111-2222-3333-4444-555555555555"
MANAGED = {"app.kubernetes.io/managed-by": "ml-assets"}


@dg.job
def training() -> None:
    """Stands for the run that waits."""


def led(
    api: ApiServer, name: str, quiet_seconds: float, run_id: str = "", lease_seconds: int = LEASE_SECONDS
) -> None:
    """A training whose Lease was renewed so long ago, with its Job, Service and two pods that run."""
    labels = {**MANAGED, "ml-assets/training": name}
    annotations = {"ml-assets/attempt": "1", "ml-assets/failures": "0"}
    annotations |= {"ml-assets/run": run_id} if run_id else {}
    renewed = datetime.now(UTC) - timedelta(seconds=quiet_seconds)
    spec = {
        "holderIdentity": "ml-assets-run-x-7",
        "leaseDurationSeconds": lease_seconds,
        "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    meta = {"name": f"train-{name}", "labels": labels, "annotations": annotations}
    api.put("leases", {"metadata": meta, "spec": spec})
    labels = {**labels, "ml-assets/attempt": "1"}
    for kind, suffix in (("jobs", ""), ("services", ""), ("pods", "-0-aaaaa"), ("pods", "-1-bbbbb")):
        api.put(kind, {"metadata": {"name": f"train-{name}-1{suffix}", "labels": labels}, **running(kind)})


def running(kind: str) -> dict[str, Any]:
    """Return spec and status of a running object, as the API server of a 1.34 cluster describes them."""
    if kind != "pods":
        return {"spec": {}}
    state = {"running": {"startedAt": "2026-11-22T12:00:03Z"}}
    status = {"phase": "Running", "containerStatuses": [{"name": "trainer", "state": state}]}
    return {"spec": {"nodeName": "node2", "containers": [{"name": "trainer"}]}, "status": status}


class Daemon:
    """Dagster's daemon with the sensor, and what it logs."""

    def __init__(self, instance: dg.DagsterInstance, home: Path) -> None:
        kubernetes = KubernetesSettings(
            namespace=NAMESPACE, lease_seconds=LEASE_SECONDS, return_seconds=RETURN_SECONDS
        )
        self.instance = instance
        self.platform = Platform(Settings(home=home, launcher="kubernetes", kubernetes=kubernetes))

    def tick(self) -> str:
        return sweep(self.platform, self.instance)


@pytest.fixture
def daemon(api: ApiServer, tmp_path: Path) -> Daemon:
    return Daemon(dg.DagsterInstance.ephemeral(), tmp_path)


def test_trainers_of_a_run_whose_node_died_live_until_the_run_has_ended(
    api: ApiServer, daemon: Daemon
) -> None:
    """The launcher's Lease ran out a minute ago; Dagster notices the lost run worker later than that."""
    instance = daemon.instance
    run = instance.create_run_for_job(training, run_id=RUN, status=dg.DagsterRunStatus.STARTED)
    led(api, "abc", 60, RUN)
    assert daemon.tick() == NOTHING_TO_PRUNE
    assert len(api.names("pods")) == 2
    instance.report_run_failed(run)
    led(api, "def", 60, lease_seconds=3600)
    assert daemon.tick() == "removed train-abc"
    assert api.names("pods") == ["train-def-1-0-aaaaa", "train-def-1-1-bbbbb"]


def test_trainers_live_as_long_as_a_retry_of_their_run_may_come(api: ApiServer, daemon: Daemon) -> None:
    instance = daemon.instance
    run = instance.create_run_for_job(training, run_id=RUN, status=dg.DagsterRunStatus.STARTED)
    instance.report_run_failed(run)
    instance.add_run_tags(RUN, {"dagster/will_retry": "true"})
    led(api, "abc", 60, RUN)
    assert daemon.tick() == NOTHING_TO_PRUNE
    retry = instance.create_run_for_job(training, status=dg.DagsterRunStatus.STARTED)
    instance.add_run_tags(RUN, {"dagster/auto_retry_run_id": retry.run_id})
    assert daemon.tick() == NOTHING_TO_PRUNE
    instance.report_run_canceled(retry)
    assert daemon.tick() == "removed train-abc"


@pytest.mark.parametrize(
    ("quiet_seconds", "run_id", "said"),
    [
        pytest.param(60, "", "removed train-abc", id="nobody-waits"),
        pytest.param(60, "of-another-dagster", NOTHING_TO_PRUNE, id="unknown-run"),
        pytest.param(RETURN_SECONDS + 60, "of-another-dagster", "removed train-abc", id="never-came-back"),
    ],
)
def test_a_run_that_stays_away_is_waited_for_so_long(
    api: ApiServer, daemon: Daemon, quiet_seconds: float, run_id: str, said: str
) -> None:
    led(api, "abc", quiet_seconds, run_id)
    assert daemon.tick() == said


def test_a_launcher_elsewhere_takes_over_what_the_pruner_left(api: ApiServer, daemon: Daemon) -> None:
    daemon.instance.create_run_for_job(training, run_id=RUN, status=dg.DagsterRunStatus.STARTED)
    led(api, "abc", 60, RUN)
    assert daemon.tick() == NOTHING_TO_PRUNE
    lease = Lease(Cluster(NAMESPACE), "train-abc", {}, LEASE_SECONDS, RUN)
    assert lease.take()
    assert lease.attempt == 1
    assert daemon.tick() == NOTHING_TO_PRUNE
    lease.give_back(5)


FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "job-without-training": ("jobs", {"name": "backup", "labels": MANAGED}),
    "job-of-another-name": ("jobs", {"name": "copy", "labels": {**MANAGED, "ml-assets/training": "abc"}}),
    "lease-without-training": ("leases", {"name": "leader", "labels": MANAGED}),
    "lease-without-holder": ("leases", {"name": "train-x", "labels": {**MANAGED, "ml-assets/training": "x"}}),
}


@pytest.mark.parametrize("which", FOREIGN)
def test_what_only_has_our_label_is_left_alone_and_stops_nobody(
    api: ApiServer, daemon: Daemon, which: str, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, meta = FOREIGN[which]
    api.put(kind, {"metadata": meta, "spec": {}})
    led(api, "abc", 60)
    assert daemon.tick() == "removed train-abc"
    assert list(api.objects) == [(kind, meta["name"])]
    assert f"{meta['name']} has the label app.kubernetes.io/managed-by=ml-assets" in capfd.readouterr().err


def test_a_training_that_may_not_be_removed_does_not_keep_the_others(
    api: ApiServer, daemon: Daemon, capfd: pytest.CaptureFixture[str]
) -> None:
    led(api, "abc", 60)
    led(api, "def", 60)
    api.trouble("DELETE", "/jobs/train-abc-1", 403)
    assert daemon.tick() == "removed train-def"
    assert "train-abc could not" in capfd.readouterr().err
    assert daemon.tick() == "removed train-abc"
    assert list(api.objects) == []


def test_the_command_removes_what_nobody_waits_for(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "LAUNCHER": "kubernetes",
        "KUBERNETES_NAMESPACE": NAMESPACE,
        "KUBERNETES_LEASE_SECONDS": f"{LEASE_SECONDS}",
    }.items():
        monkeypatch.setenv(f"ML_ASSETS_{name}", value)
    api.put("jobs", {"metadata": FOREIGN["job-without-training"][1]})
    led(api, "abc", 60, "of-another-dagster")
    led(api, "def", 60)
    said = Terminal(tmp_path)("trainings", "prune")
    assert (said.status, said.out) == (0, "removed train-def\n")
    assert said.err.startswith("Job backup has ")
    assert Terminal(tmp_path)("trainings", "prune").out == f"{NOTHING_TO_PRUNE}\n"
    assert api.names("leases") == ["train-abc"]
