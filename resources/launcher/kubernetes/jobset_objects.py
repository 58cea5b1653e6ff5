"""JobSet of a training, as a document, and its state. Pure functions.

The cluster restarts its pods: the controller of Kubernetes' Jobs reads the exit codes, by the rules of `classify`, and
the controller of JobSets makes the Job of the next attempt. Not here: the spec of the pods (attempt_objects), the
launcher that follows them (jobset).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from resources.addresses import Address
from resources.job.errors import FINAL
from resources.job.job import ExitCode, TrainingJob
from resources.launcher.kubernetes.attempt_objects import (
    CONTAINER,
    FORGOTTEN_SECONDS,
    TRAINING,
    annotations,
    job_spec,
    queue_label,
    training_labels,
    training_name,
)
from resources.launcher.kubernetes.cluster import JOBSETS, Document
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import KubernetesSettings

RUN = "ml-assets/run"
"""Annotation: the run that waits for the training."""
RESTARTS = "jobset.sigs.k8s.io/restart-attempt"
"""Label that JobSet gives to a Job and its pods: restarts before them."""
_WORKERS = "workers"


def jobset_manifest(
    job: TrainingJob,
    profile: ResourceProfile,
    settings: KubernetesSettings,
    *,
    folder: str,
    snapshot: str,
    s3_endpoint_url: Address | None,
    run_id: str,
) -> Document:
    """Return a JobSet of one Indexed Job of `profile.most_nodes` pods, which the cluster restarts.

    A final exit code and a missed deadline fail it at once. A pod that was evicted, preempted or lost with its node, or
    that saved and ended on request, restarts it without limit. Any other failure restarts it `max_attempts - 1` times.
    """
    name = training_name(job)
    spec = job_spec(
        job,
        profile,
        settings,
        {},
        nodes=profile.most_nodes,
        name=workers_name(job),
        service=name,
        own_labels={},
        folder=folder,
        snapshot=snapshot,
        s3_endpoint_url=s3_endpoint_url,
    )
    (container,) = spec["template"]["spec"]["containers"]
    restarts = {"fieldRef": {"fieldPath": f"metadata.labels['{RESTARTS}']"}}
    container["env"].append({"name": "TRAINING_RESTARTS", "valueFrom": restarts})
    spec["podFailurePolicy"] = {
        "rules": [
            {"action": "FailJob", "onExitCodes": _exit_codes(*sorted(FINAL))},
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": _exit_codes(ExitCode.PREEMPTED)},
        ]
    }
    # Rules are tried in this order. A failure that matches none uses one of the restarts.
    rules: list[Document] = [
        {
            "name": "final",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": [
                "rule at index 0$"
            ],  # Kubernetes' message ends with the number of its rule
        },
        {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
        {
            "name": "preempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
        },
    ]
    # Not the labels of our Jobs: the controller makes this Job, and no pruner or policy may take it for a launcher's.
    template = {"metadata": {"labels": {**profile.labels, TRAINING: job.fingerprint[:12]}}, "spec": spec}
    manifest: Document = {
        "apiVersion": "/".join(JOBSETS),
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "labels": {**profile.labels, **training_labels(job), **queue_label(profile)},
            "annotations": annotations(job) | ({RUN: run_id} if run_id else {}),
        },
        "spec": {
            "replicatedJobs": [{"name": _WORKERS, "replicas": 1, "template": template}],
            "failurePolicy": {"maxRestarts": job.settings.max_attempts - 1, "rules": rules},
            "ttlSecondsAfterFinished": FORGOTTEN_SECONDS,
        },
    }
    if profile.queue is not None:
        manifest["spec"]["suspend"] = True  # until the queue admits it
    return manifest


def _exit_codes(*codes: int) -> Document:
    return {"containerName": CONTAINER, "operator": "In", "values": [int(code) for code in codes]}


def workers_name(job: TrainingJob) -> str:
    """Return the name of the Job that JobSet makes, of each attempt in turn."""
    return f"{training_name(job)}-{_WORKERS}-0"


def owner_of(document: Document, kind: str) -> Mapping[str, str] | None:
    """Return the reference of an object to the JobSet or TrainJob that made it; None if nothing of this kind did."""
    owners: list[dict[str, str]] = document["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner["kind"] == kind), None)


@dataclass(frozen=True, kw_only=True)
class JobSetState:
    """State of a JobSet, as its controller reports it."""

    restarts: int
    """Number of all restarts."""
    failures: int
    """Number of failed attempts, which use budget, with the last one after which no restart was left."""
    outcome: str
    """`Completed`, `Failed`, or empty while it goes on."""
    why: str
    """Message of its failure; empty without one."""

    @classmethod
    def of(cls, document: Document) -> "JobSetState":
        """Read the API's document."""
        status: Document = document.get("status", {})
        conditions: list[Document] = status.get("conditions", [])
        failures = (one for one in conditions if (one["type"], one["status"]) == ("Failed", "True"))
        none: Document = {}
        failed = next(failures, none)
        is_exhausted = failed.get("reason") == "ReachedMaxRestarts"
        return cls(
            restarts=int(status.get("restarts", 0)),
            failures=int(status.get("restartsCountTowardsMax", 0)) + is_exhausted,
            outcome=str(status.get("terminalState", "")),
            why=str(failed.get("message", "")),
        )
