"""A real training in pods: whatever is taken away from it, it ends in the bits of one machine, and learned from
each row once an epoch.
"""

import dataclasses
import time
from pathlib import Path

import pytest

from deployment.local.servers import Servers
from deployment.local.servers.record import storage_variables
from ml_assets.snapshots.reader import open_snapshot
from ml_assets_tests.cluster.environment import ClusterEnvironment
from ml_assets_tests.cluster.launching import Launching, settings_of
from ml_assets_tests.training.jobs import assert_each_row_once_per_epoch, small_job, small_snapshot
from resources.launcher.local import LocalLauncher
from resources.launcher.profile import ResourceProfile
from resources.launcher.protocol import TrainingEvent
from resources.platform import Platform

pytestmark = pytest.mark.timeout(400)

RESUMED_SECONDS = 30.0
PROFILE = ResourceProfile(nodes=2, cpu="500m", memory="3Gi", spread="required")


@pytest.fixture
def launching(
    tidy: ClusterEnvironment, running_servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Launching:
    """A small job with a home and a prefix among the artifacts of its own, trained by the real workers."""
    record = running_servers.record
    variables = {
        **tidy.settings(),
        **storage_variables(record),
        "ML_ASSETS_HOME": str(tmp_path / "home"),
        "ML_ASSETS_ARTIFACTS_URL": f"s3://artifacts/{tidy.namespace}-{time.time_ns()}",
        "ML_ASSETS_S3_ENDPOINT_URL": record.url("s3"),
    }
    for name in ("KUBECONFIG", *storage_variables(record)):
        monkeypatch.setenv(name, variables[name])
    # A pace that leaves time to take a pod away. It is a hyperparameter with no part in the arithmetic.
    job = small_job(small_snapshot(tmp_path / "snapshots"), pace=0.1)
    return Launching(tidy, settings_of(variables), variables, job)


@pytest.mark.alone  # what it measures is not what other tests leave of the machine
def test_a_pod_deleted_in_the_middle_is_resumed_within_thirty_seconds_and_no_row_is_lost_or_repeated(
    launching: Launching, tmp_path: Path
) -> None:
    at: dict[str, float] = {}

    def take_one(event: TrainingEvent) -> None:
        launching.events.append(event)
        if event.kind == "metrics" and event.step >= 45 and "deleted" not in at:
            pod = launching.objects("pods")[1]["metadata"]["name"]
            launching.cluster.kubectl("delete", "pod", pod, "--wait=false")
            at["deleted"], at["step"] = time.time(), event.step
        if event.kind == "resumed":
            at["resumed"], at["from"] = event.time, event.step

    launcher = Platform(launching.settings).launcher
    result = launcher.run(launching.job, launching.folder, take_one, launching.log.append, PROFILE)

    assert result.attempts == 2
    assert at["from"] >= at["step"]  # it saved when it was told to go: nothing was done twice
    assert at["resumed"] - at["deleted"] < RESUMED_SECONDS
    assert launching.left() == []
    job = dataclasses.replace(launching.job, hyperparameters={})
    here = LocalLauncher().run(job, tmp_path / "here", lambda _: None, lambda _: None)
    assert result.weights_sha256 == here.weights_sha256
    assert_each_row_once_per_epoch(launching.folder, open_snapshot(Path(job.snapshot)), launching.job)
