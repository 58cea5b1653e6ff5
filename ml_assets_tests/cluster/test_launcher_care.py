"""Looking after the cluster: the doctor's words, the sensor's pruning, what an account without rights is told."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ml_assets.components.sensors.ended_runs import NOTHING_TO_PRUNE
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import (
    kubeconfig_of,
    rightful_kubeconfig,
    settings_of,
    worker_variables,
)
from ml_assets_tests.deployment.chart_objects import pods_of_dagster
from ml_assets_tests.resources.launcher.sweep import sweep
from resources.job.errors import TrainingFailed
from resources.launcher.kubernetes.cluster_checks import NEEDED, cluster_checks
from resources.platform import Platform
from resources.settings import Settings

pytestmark = pytest.mark.timeout(900)
Examine = Callable[..., dict[str, str]]


@pytest.fixture
def settings(tidy: ClusterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The platform on this cluster."""
    variables = {**worker_variables(tidy), "ML_ASSETS_HOME": str(tmp_path)}
    monkeypatch.setenv("KUBECONFIG", variables["KUBECONFIG"])
    return settings_of(variables)


@pytest.fixture
def examine(settings: Settings) -> Examine:
    """Return the doctor's words on each part, with some settings changed."""

    def said(**changes: Any) -> dict[str, str]:
        kubernetes = settings.kubernetes.model_copy(update=changes)
        words: dict[str, str] = {}
        for name, check in cluster_checks(settings.model_copy(update={"kubernetes": kubernetes})):
            try:
                words[name] = check()
            except TrainingFailed as error:
                words[name] = f"FAIL {type(error).__name__}: {error}"
        return words

    return said


def test_a_doctor_finds_a_cluster_well(examine: Examine, tidy: ClusterEnvironment) -> None:
    said = examine()
    assert said["cluster"].startswith("Kubernetes v1.34")
    assert said["cluster rights"].startswith(f"all {len(NEEDED)} permissions")
    assert re.search(r"/opt/python/bin/python3\.\d+ on node\d.* Secret ml-assets-s3", said["cluster pods"])
    assert tidy.objects("pods") == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"s3_secret": "nobody"}, 'PodNotStarted: .*secret "nobody" not found'),
        ({"image": None}, "BadConfiguration: set ML_ASSETS_KUBERNETES_IMAGE"),
        ({"command": ("/nowhere",)}, "PodNotStarted: .*/nowhere"),
        ({"namespace": "nowhere"}, "ClusterRefused: .*ML_ASSETS_KUBERNETES_NAMESPACE"),
        ({"context": "nobody"}, "ClusterRefused: no cluster is configured.*ML_ASSETS_KUBERNETES_CONTEXT"),
    ],
)
def test_a_doctor_names_what_is_ill_and_what_helps(
    examine: Examine, changes: dict[str, Any], said: str
) -> None:
    found = examine(**changes)["cluster pods"]
    assert re.search(f"FAIL {said}", found), found


def test_an_account_without_rights_is_told_which_it_lacks(
    examine: Examine, tidy: ClusterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(tidy, "nobody", tmp_path)))
    said = examine(context="nobody")
    assert "FAIL ClusterRefused: in namespace" in said["cluster rights"]
    assert "may not create jobs" in said["cluster rights"]
    assert "FAIL ClusterRefused: " in said["cluster pods"]
    assert "bind the launcher's role" in said["cluster pods"]


def test_an_api_server_that_is_away_is_said_so(
    examine: Examine, tidy: ClusterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = re.sub(r"https://[\w.:]+", "https://127.0.0.1:9", tidy.kubeconfig.read_text())
    (tmp_path / "away").write_text(away)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "away"))
    assert re.match(r"FAIL ClusterUnavailable: .* https://127\.0\.0\.1:9", examine()["cluster"])


def test_the_code_location_prunes_what_has_no_launcher_and_leaves_the_rest(
    settings: Settings, tidy: ClusterEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Jobs of trainings: one with a lease that somebody renews, one nobody looks after. Dagster evaluates sensors
    in the code location, with the rights of its account."""
    account = pods_of_dagster()["code-location"]["serviceAccountName"]
    monkeypatch.setenv("KUBECONFIG", str(rightful_kubeconfig(tidy, account, tmp_path)))
    kubernetes = settings.kubernetes.model_copy(update={"lease_seconds": 4, "context": account})
    settings = settings.model_copy(update={"kubernetes": kubernetes})
    tidy.apply(idle_job("led", tidy.image), idle_job("left", tidy.image), lease("led"))
    assert sweep(Platform(settings)) == "removed train-left"
    assert [one["metadata"]["name"] for one in tidy.objects("jobs")] == ["train-led-1"]
    tidy.kubectl("delete", "lease", "train-led")


def test_the_commands_say_what_they_find(settings: Settings, tidy: ClusterEnvironment) -> None:
    environment = {**worker_variables(tidy), "ML_ASSETS_HOME": str(settings.home)}
    done = subprocess.run(
        [Path(sys.executable).with_name("ml-assets"), "trainings", "prune"],
        env=environment | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{NOTHING_TO_PRUNE}\n"


def idle_job(name: str, image: str) -> dict[str, Any]:
    """A Job as a launcher would have left it, whose pod does nothing."""
    labels = {
        "app.kubernetes.io/managed-by": "ml-assets",
        "ml-assets/training": name,
        "ml-assets/attempt": "1",
    }
    container = {"name": "trainer", "image": image, "command": ["sleep", "600"], "imagePullPolicy": "Never"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"train-{name}-1", "labels": labels},
        "spec": {"backoffLimit": 0, "template": template},
    }


def lease(name: str) -> dict[str, Any]:
    """A lease that was renewed just now, for an hour."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": f"train-{name}",
            "labels": {"app.kubernetes.io/managed-by": "ml-assets", "ml-assets/training": name},
        },
        "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600, "renewTime": now},
    }
