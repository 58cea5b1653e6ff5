"""The real images, built from their recipe: the platform's is well, a node imports the trainer's, and it trains what
this machine trains."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import storage_variables
from ml_assets_tests.cluster.cluster_environment import REPOSITORY, SECURITY, ClusterEnvironment
from ml_assets_tests.cluster.image_builder import ImageBuilder, image_builder
from ml_assets_tests.cluster.launched_job import LaunchedJob, settings_of
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.launcher.local import LocalLauncher
from resources.launcher.resource_profile import ResourceProfile
from resources.platform import Platform

pytestmark = [pytest.mark.timeout(900), pytest.mark.nightly]

NODE = 1
"""One node is enough."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "ml_assets.defs.flights.model.build"
"""A model the image itself has."""


@pytest.fixture(scope="module")
def images(cluster: ClusterEnvironment) -> Iterator[ImageBuilder]:
    """Builder of the real images."""
    base = cluster.image
    with image_builder(base, cluster.cluster.archive(base)) as images:
        yield images


@pytest.fixture(scope="module")
def trainer(cluster: ClusterEnvironment, images: ImageBuilder) -> Iterator[str]:
    """The image's name, known to one node."""
    image = images.build("trainer")
    packed = images.pack("trainer", image)
    cluster.cluster.import_image(image, packed.archive, [NODE], below=packed.below)
    yield image
    cluster.cluster.remove_image(image)


def test_the_platforms_image_loads_all_definitions_and_finds_itself_well(images: ImageBuilder) -> None:
    image = images.build("platform", "--build-arg", f"COMMIT={COMMIT}-dirty")
    said = images.run(image, "ml-assets", "doctor")
    assert "All checks passed." in said
    assert "/var/lib/ml-assets" in said
    # What code location, daemon and runs start with.
    for command in ("dagster", "dagster-daemon"):
        assert "Commands:" in images.run(image, command, "--help")
    # What runs that it starts are recorded with.
    facts = json.loads(images.run(image, "python", "-c", _FACTS))
    assert (facts["mlflow.source.git.commit"], facts["git_dirty"]) == (COMMIT, "true")
    lock = REPOSITORY / "deployment" / "images" / "platform.txt"
    assert facts["lock_sha256"] == hashlib.sha256(lock.read_bytes()).hexdigest()


_FACTS = """
import json
from ml_assets.foundation.checkout import ROOT
from resources.environment import environment_facts
from resources.settings import Settings
print(json.dumps(environment_facts(ROOT, Settings().commit)))
"""


def test_an_image_has_the_packages_of_a_script_beside_the_trainers(images: ImageBuilder) -> None:
    said = images.run(images.build_more("trees"), "python", "-c", _TREES)
    uid, graph = said.split()
    assert (int(uid), int(graph) > 0) == (SECURITY["runAsUser"], True)


_TREES = """
import os
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.training.script.data import Example
from ml_assets.model.training.script.script_model import check_model
x = np.random.default_rng(0).random((99, 3)).astype(np.float32)
trees = HistGradientBoostingRegressor(max_iter=2).fit(x, x[:, 0])
inputs = InputSpec(numeric=("a", "b", "c"), fill=(0.0, 0.0, 0.0), categorical=(), cardinalities=())
rows = Example(
    inputs=inputs, objective="regression", split="train", numeric=x, category=np.zeros((99, 0), int), blobs=None
)
print(os.getuid(), len(check_model(trees, rows).weights["onnx"]))
"""


def test_the_image_is_for_nobody_in_particular(trainer: str, tidy: ClusterEnvironment) -> None:
    """The image has its own user, path and packages. Nothing of the node is mounted, and nothing is writable."""
    code = (
        "import json, os, sys, torch, ml_assets, resources; "
        "print(json.dumps([os.getuid(), sys.prefix, torch.__version__, ml_assets.__file__, "
        "os.access('/opt/ml-assets', os.W_OK), os.access('/opt/venv', os.W_OK)]))"
    )
    container = {
        "name": "main",
        "image": trainer,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", code],
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
    }
    spec = {
        "nodeName": f"node{NODE}",
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True},  # the image's own user; SECURITY names it again
        "containers": [container],
    }
    tidy.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "image"}, "spec": spec})
    assert tidy.wait_for_phase("image", "Succeeded", "Failed") == "Succeeded"

    uid, prefix, version, where, *writable = json.loads(tidy.kubectl("logs", "image"))
    assert uid == SECURITY["runAsUser"]
    assert prefix == "/opt/venv"
    assert version == torch.__version__
    assert where.startswith("/opt/ml-assets/")
    assert not any(writable)


def test_the_image_trains_to_the_bits_of_this_machine(
    trainer: str,
    tidy: ClusterEnvironment,
    running_servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = running_servers.record
    environment = tidy.settings()
    for name in ("COMMAND", "ENV", "MOUNTS"):  # the image's own defaults, as on any cluster
        del environment[f"ML_ASSETS_KUBERNETES_{name}"]
    variables = {
        **environment,
        **storage_variables(record),
        "ML_ASSETS_HOME": str(tmp_path / "home"),
        "ML_ASSETS_ARTIFACTS_URL": f"s3://artifacts/{tidy.namespace}-{time.time_ns()}",
        "ML_ASSETS_S3_ENDPOINT_URL": record.url("s3"),
    }
    for name in ("KUBECONFIG", *storage_variables(record)):
        monkeypatch.setenv(name, variables[name])
    job = small_job(small_snapshot(tmp_path / "snapshots"))
    job = dataclasses.replace(job, model_function=MODEL, hyperparameters={})
    launching = LaunchedJob(tidy, settings_of(variables), variables, job)
    profile = ResourceProfile(
        image=trainer, cpu="500m", memory="3Gi", node_selector={"kubernetes.io/hostname": f"node{NODE}"}
    )
    launcher = Platform(launching.settings).launcher
    result = launcher.run(job, launching.folder, launching.events.append, launching.log.append, profile)

    assert result.attempts == 1
    assert launching.left() == []
    here = LocalLauncher().run(job, tmp_path / "here", lambda _: None, lambda _: None)
    assert result.weights_sha256 == here.weights_sha256
