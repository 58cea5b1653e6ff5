"""A launcher with a small API server and object store of its own, and controllers that play the pods."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ml_assets_tests.resources.launcher.api_server import NAMESPACE, ApiServer
from ml_assets_tests.resources.launcher.object_store import BUCKET, ObjectStore
from ml_assets_tests.resources.launcher.scripted_jobs import CONTENT, job_of, untrained_result
from resources.artifacts.s3 import RemoteArtifacts
from resources.job.events import RESULT, WEIGHTS, TrainingEvent, training_folder_name
from resources.job.job import TrainingResult
from resources.launcher.kubernetes.launcher import KubernetesLauncher
from resources.launcher.protocol import nobody_comes_back
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import KubernetesSettings

SETTINGS = KubernetesSettings(namespace=NAMESPACE, image="trainer:1", lease_seconds=3, patience_seconds=2)


class LaunchedHere:
    """One launcher and what it tells."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self.settings = SETTINGS
        (folder / "snapshot").mkdir(parents=True)
        (folder / "snapshot" / "snapshot.json").write_text("{}")
        self.job = dataclasses.replace(job_of("x"), snapshot=str(folder / "snapshot"))
        self.name = f"train-{self.job.fingerprint[:12]}"
        self.artifacts = RemoteArtifacts(f"s3://{BUCKET}/p", folder / "cache", store.url, patience_seconds=1)
        self.store = store
        self.log: list[str] = []
        self.events: list[TrainingEvent] = []

    def run(
        self,
        on_log: Callable[[str], None] = lambda _: None,
        profile: ResourceProfile | None = None,
        run_id: str = "the-run",
        comes_back: Callable[[BaseException], bool] = nobody_comes_back,
    ) -> TrainingResult:
        def tell(line: str) -> None:
            self.log.append(line)
            on_log(line)

        folder = self.artifacts.folder(training_folder_name(self.job))
        return self.launcher.run(self.job, folder, self.events.append, tell, profile, run_id, comes_back)

    @property
    def launcher(self) -> KubernetesLauncher:
        return KubernetesLauncher(settings=self.settings, artifacts=self.artifacts)

    def finish(self) -> None:
        """Write the files that pods leave when they are done."""
        result = untrained_result(self.job.fingerprint, WEIGHTS)
        place = f"p/{training_folder_name(self.job)}"
        self.store.objects[f"{place}/{WEIGHTS}"] = CONTENT
        self.store.objects[f"{place}/{RESULT}"] = result.to_json().encode()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_pod(
    pod: dict[str, Any], condition: str | None = None
) -> Callable[[ApiServer, dict[str, Any]], None]:
    """Controllers that give each Job this pod, and the condition, at once."""

    def play(api: ApiServer, job: dict[str, Any]) -> None:
        meta = {**job["metadata"], "creationTimestamp": now()}
        conditions = [{"type": condition, "status": "True", "lastTransitionTime": now()}] if condition else []
        api.put("jobs", {**job, "metadata": meta, "status": {"startTime": now(), "conditions": conditions}})
        labels = {**meta["labels"], "batch.kubernetes.io/controller-uid": meta["uid"]}
        named = {**pod["metadata"], "name": f"{meta['name']}-0-x", "uid": f"pod-of-{meta['name']}"}
        api.put("pods", {**pod, "metadata": {**named, "labels": labels, "creationTimestamp": now()}})

    return play
