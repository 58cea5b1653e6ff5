"""A small job that the real workers train on the cluster, and its comparison with the same job of one machine."""

import dataclasses
import time
from pathlib import Path
from typing import Any

from deployment.testbed.servers.servers_record import ServersRecord, storage_variables
from ml_assets.data.snapshots.split_reader import Snapshot, open_snapshot
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import LaunchedJob, settings_of
from ml_assets_tests.training.small_jobs import assert_each_row_once_per_epoch, small_job
from resources.job.job import TrainingResult
from resources.launcher.local import LocalLauncher


def variables_of(cluster: ClusterEnvironment, record: ServersRecord, home: Path) -> dict[str, str]:
    """Return the variables of an installation with a prefix among the artifacts of its own."""
    return {
        **cluster.settings(),
        **storage_variables(record),
        "ML_ASSETS_HOME": str(home),
        "ML_ASSETS_ARTIFACTS_URL": f"s3://artifacts/{cluster.namespace}-{time.time_ns()}",
        "ML_ASSETS_S3_ENDPOINT_URL": record.url("s3"),
    }


def trained_job(
    cluster: ClusterEnvironment, variables: dict[str, str], snapshot: Snapshot, pace: float, **changes: Any
) -> LaunchedJob:
    """`pace` leaves time to do damage. It is a hyperparameter with no part in the arithmetic."""
    return LaunchedJob(cluster, settings_of(variables), variables, small_job(snapshot, pace=pace, **changes))


def assert_as_if_left_alone(launching: LaunchedJob, result: TrainingResult, folder: Path) -> None:
    """The bits of processes of this machine, each row once an epoch, and nothing left."""
    assert launching.left() == []
    job = dataclasses.replace(launching.job, hyperparameters={})
    here = LocalLauncher().run(job, folder, lambda _: None, lambda _: None)
    assert result.weights_sha256 == here.weights_sha256
    assert_each_row_once_per_epoch(launching.folder, open_snapshot(Path(job.snapshot)), launching.job)
