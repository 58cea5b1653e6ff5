"""Attempts on a real cluster whose pods got a container that the launcher did not write, before the trainer.

The cluster alone is needed: the trainers read and write nothing.
"""

import threading
from pathlib import Path

import pytest

from deployment.testbed.cluster.local_cluster import LocalCluster
from ml_assets_tests.cluster.conftest import CLUSTER_STATE
from ml_assets_tests.cluster.record_pods import TRAINING, scenario_job, scenario_profile, staged
from resources.job.errors import Diverged, OutOfMemory, TrainingFailed
from resources.launcher.kubernetes.attempt import AttemptWatcher, start
from resources.launcher.kubernetes.attempt_objects import service_manifest
from resources.launcher.kubernetes.cluster import Cluster as ClusterClient
from resources.launcher.kubernetes.output import LogTail, PodsOutput
from resources.settings import KubernetesSettings

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("name", "kind", "error", "line"),
    [
        ("out-of-memory-with-sidecar", "failed", OutOfMemory, None),
        ("diverged-with-sidecar", "failed", Diverged, "pod 0: the loss is nan"),
        ("done-with-sidecar", "done", type(None), None),
    ],
)
def test_a_sidecar_hides_neither_how_the_trainer_ended_nor_what_it_said(
    name: str,
    kind: str,
    error: type[TrainingFailed | None],
    line: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sidecar goes on after the trainer, and so does the pod: the Job never completes."""
    running = LocalCluster(CLUSTER_STATE)
    monkeypatch.setenv("KUBECONFIG", str(running.kubeconfig))
    lines: list[str] = []
    with staged(running, name) as stage, PodsOutput(tmp_path, lambda _: None, lines.append) as output:
        cluster = ClusterClient(stage.namespace, running.context)
        job = start(
            cluster, scenario_job(name, running.image), lambda owner: service_manifest(TRAINING, 1, owner)
        )
        assert job is not None
        logs = LogTail(cluster, lambda pod, line: output.take(line, f"pod {pod.index}: "))
        watch = AttemptWatcher(
            cluster=cluster,
            job=job,
            profile=scenario_profile(name),
            settings=KubernetesSettings(),
            logs=logs,
            output=output,
            lost=threading.Event(),
            grow_after=3600,
        )
        try:
            end = watch.end()
        finally:
            logs.stop()
        (pod,) = stage.objects("pods")
        assert pod["status"]["phase"] == "Running"
        assert stage.statuses()["mesh-proxy"]["state"].keys() == {"running"}
    assert (end.kind, type(end.error)) == (kind, error), end
    assert line is None or line in lines, lines
    assert not [one for one in lines if "the proxy listens" in one]
