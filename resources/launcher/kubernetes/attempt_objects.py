"""Kubernetes objects of one attempt, as documents: an Indexed Job and its headless Service. Pure functions.

Here: pods from a resource profile, the settings and a job; the position of the Job in a queue (Kueue). A queue suspends
the Job of an attempt until its quota has room for all pods at once. It suspends the Job again if somebody with a better
claim needs the room. Not here: sending the objects (attempt), reading the state of pods (classify), the name of the
queue (resource_profile).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from resources.addresses import Address
from resources.job.errors import Unschedulable
from resources.job.job import TrainingJob
from resources.launcher.kubernetes.cluster import JOBSETS, TRAINJOBS, Document
from resources.launcher.resource_profile import (
    ResourceProfile,
    Toleration,
    Volume,
    bytes_of,
    cores_of,
    ranks_of_a_node,
)
from resources.settings import KubernetesSettings

QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a Job: name of its LocalQueue."""
LEAST_PODS, EQUAL = "kueue.x-k8s.io/job-min-parallelism", "kueue.x-k8s.io/job-completions-equal-parallelism"
"""Annotations of a Job that its queue may admit with fewer pods: the least number of pods; their number is that of the
completions, too."""
JOB_UID = "kueue.x-k8s.io/job-uid"
"""Label of a Workload, Kueue's record of a Job."""
_NO_QUEUE, _TOO_SMALL = "doesn't exist", "maximum capacity"
"""Phrases in Kueue's messages: the queue does not exist, or even an empty queue is too small for the request."""
_AMOUNT = r"\((\d+(?:m|k|M|G|T|Ki|Mi|Gi|Ti)?)\)"
_AMOUNTS = re.compile(rf"request {_AMOUNT} > maximum capacity {_AMOUNT}")
"""Request of all pods and capacity of the queue, in Kueue's message."""
_EVICTED_BEFORE = "Previously: "
"""Begin of the reason of an eviction after which the queue admitted the Job again."""
HOPELESS_SECONDS = 30.0
"""Seconds until such a message fails the training. A queue may be deleted and made again by an upgrade."""


@dataclass(frozen=True, kw_only=True)
class QueuePosition:
    """Position of one Job, as Kueue reports it."""

    is_known: bool
    """True if Kueue has a Workload for the Job."""
    waits_for: str
    """Reason why the Job is not admitted; empty if Kueue gives none."""
    is_hopeless: bool
    """True if waiting cannot help: the queue does not exist or is too small."""
    given_up_for: str
    """Reason why the Job last lost its quota after its admission; empty if it did not."""

    @classmethod
    def of(cls, workloads: Sequence[Document], least_share: float = 1.0) -> "QueuePosition":
        """Read the Workloads of a Job. There is one, or none yet.

        `least_share`: least number of pods that the queue may admit, as a share of all its pods.
        """
        conditions: dict[str, Document] = {
            one["type"]: one
            for workload in workloads
            for one in workload.get("status", {}).get("conditions", [])
        }
        reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
        waits_for = str(reserved.get("message", "")) if reserved.get("status") == "False" else ""
        return cls(
            is_known=bool(workloads),
            waits_for=waits_for,
            is_hopeless=_NO_QUEUE in waits_for or _is_too_small(waits_for, least_share),
            given_up_for=str(evicted.get("message", "")).removeprefix(_EVICTED_BEFORE),
        )


def _is_too_small(waits_for: str, least_share: float) -> bool:
    """True if even an empty queue has no room for the least number of pods. The message is about all pods."""
    amounts = _AMOUNTS.findall(waits_for)
    if not amounts:
        return _TOO_SMALL in waits_for
    return any(_number(asked) * least_share > _number(most) for asked, most in amounts)


def _number(quantity: str) -> float:
    return cores_of(quantity) if quantity.endswith("m") else bytes_of(quantity)


def why_not_admitted(place: QueuePosition, queue: str) -> Unschedulable | None:
    """Return the failure of a Job that keeps this position for long; None if it may wait for ever, behind others."""
    if not place.is_known:
        return Unschedulable(
            "Kueue has not seen the training: install Kueue 0.15 or newer, with batch/job among its integrations (back "
            "end jobset: jobset.x-k8s.io/jobset; trainjob: trainer.kubeflow.org/trainjob), or leave out "
            f"resources.queue, {queue}"
        )
    if place.is_hopeless:
        return Unschedulable(
            f"queue {queue} never admits the training: {place.waits_for}. Correct resources.queue, request "
            "less in resources (nodes, gpus, cpu, memory), change the quota (deployment/helm), or make the queue again "
            "(kubectl get localqueues,clusterqueues)"
        )
    return None


TRAINING, ATTEMPT = "ml-assets/training", "ml-assets/attempt"
"""Labels of all objects of a training: 12 digits of the fingerprint, and the number of the attempt."""
MANAGED_LABEL, MANAGER = "app.kubernetes.io/managed-by", "ml-assets"
MANAGED = f"{MANAGED_LABEL}={MANAGER}"
"""Selector of all objects that launchers make."""
INDEX = "batch.kubernetes.io/job-completion-index"
CONTAINER = "trainer"
MASTER_PORT = 29400
SCRATCH = "/scratch"
KEYS_VOLUME, KEYS_FOLDER, CONFIG = "s3-keys", "/var/run/ml-assets/s3", "config"
"""Volume and folder of a pod with the keys of its training, and the file there that tells botocore of them."""
LOG_BYTES = 2**28
"""Bytes of disk that a pod may use for its log, in addition to scratch. A kubelet keeps 5 files of 10 MiB by default
and rotates them late."""
NODE_LOST_SECONDS = 10
"""Seconds until a pod on a node that does not answer is given up. Kubernetes' default is 300 s."""
FORGOTTEN_SECONDS = 3600
"""Seconds until the cluster removes a finished Job that neither launcher nor pruner has removed."""
BackEnd = Literal["job", "jobset", "trainjob"]
"""Kind of the object that a training is in the cluster."""
TYPES: dict[BackEnd, dict[str, str]] = {
    "job": {"apiVersion": "batch/v1", "kind": "Job"},
    "jobset": {"apiVersion": "/".join(JOBSETS), "kind": "JobSet"},
    "trainjob": {"apiVersion": "/".join(TRAINJOBS), "kind": "TrainJob"},
}
"""Fields of a document that documents of a list lack."""
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def training_name(job: TrainingJob) -> str:
    """Return the name of the Lease. The names of the Jobs begin with it."""
    return f"train-{job.fingerprint[:12]}"


def attempt_name(job: TrainingJob, attempt: int) -> str:
    """Return the name of the Job and its Service."""
    return f"{training_name(job)}-{attempt}"


def keys_secret_name(owner: str) -> str:
    """Return the name of the Secret with the keys of the pods of the Job, JobSet or TrainJob `owner`."""
    return f"{owner}-s3"


def training_labels(job: TrainingJob) -> dict[str, str]:
    """Return the labels of all objects of the training."""
    return {
        "app.kubernetes.io/name": "ml-assets-training",
        MANAGED_LABEL: MANAGER,
        "ml-assets/model": re.sub(r"[^\w.-]", "-", job.model)[:63].strip("-_."),
        TRAINING: job.fingerprint[:12],
    }


def training_selector(job: TrainingJob) -> str:
    """Return the selector of all objects of the training."""
    return f"{TRAINING}={job.fingerprint[:12]}"


def job_manifest(
    job: TrainingJob,
    attempt: int,
    profile: ResourceProfile,
    settings: KubernetesSettings,
    *,
    nodes: int,
    cause: str,
    folder: str,
    snapshot: str,
    s3_endpoint_url: Address | None,
) -> Document:
    """Return an Indexed Job of `nodes` pods, all of which must end well. Kubernetes replaces none: the launcher counts
    attempts. A queue may admit fewer pods of an elastic training; then they wait for their number (`exchange`).

    `cause`: what interrupted the previous attempt, if its pods could not report it. `folder` and `snapshot` are
    addresses that the pods can read.
    """
    name = attempt_name(job, attempt)
    own = {ATTEMPT: str(attempt)}
    spec = job_spec(
        job,
        profile,
        settings,
        {"TRAINING_ATTEMPT": str(attempt), "TRAINING_CAUSE": cause},
        nodes=nodes,
        name=name,
        service=name,
        own_labels=own,
        folder=folder,
        snapshot=snapshot,
        s3_endpoint_url=s3_endpoint_url,
    )
    spec["ttlSecondsAfterFinished"] = FORGOTTEN_SECONDS
    if profile.queue is not None:
        spec["suspend"] = True  # until the queue admits it; without a queue in the cluster it never starts
    manifest: Document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**profile.labels, **training_labels(job), **own, **queue_label(profile)},
            "annotations": annotations(job),
        },
        "spec": spec,
    }
    if profile.queue is not None and profile.least_nodes < nodes:
        manifest["metadata"]["annotations"] |= {LEAST_PODS: str(profile.least_nodes), EQUAL: "true"}
        (container,) = spec["template"]["spec"]["containers"]
        known = [one for one in container["env"] if one["name"] != "TRAINING_NODES"]
        own_uid = {"name": "TRAINING_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
        container["env"] = [*known, own_uid]
    return manifest


def may_be_smaller(job: Document) -> bool:
    """True if a queue may admit a Job with fewer pods than it asks for."""
    return LEAST_PODS in job["metadata"].get("annotations", {})


def queue_label(profile: ResourceProfile) -> dict[str, str]:
    """Return the label by which Kueue knows the queue of an object; empty without a queue."""
    return {} if profile.queue is None else {QUEUE: profile.queue}


def annotations(job: TrainingJob) -> dict[str, str]:
    """Return the annotations by which a person finds the training of an object."""
    return {"ml-assets/fingerprint": job.fingerprint, "ml-assets/partition": job.partition}


def job_spec(
    job: TrainingJob,
    profile: ResourceProfile,
    settings: KubernetesSettings,
    told: dict[str, str],
    *,
    nodes: int,
    name: str,
    service: str,
    own_labels: dict[str, str],
    folder: str,
    snapshot: str,
    s3_endpoint_url: Address | None,
) -> Document:
    """Return the spec of an Indexed Job `name` whose pods fail together and have host names in `service`.

    `told`: more environment variables of the pods. `own_labels`: labels that no pods of other attempts have.
    """
    same = {TRAINING: job.fingerprint[:12], **own_labels}
    values = {
        "TRAINING_FOLDER": folder,
        "TRAINING_SNAPSHOT": snapshot,
        "TRAINING_SCRATCH": SCRATCH,
        "TRAINING_NODES": str(nodes),
        "TRAINING_RANKS": str(ranks_of_a_node(job.settings, profile)),
        "MASTER_ADDR": f"{name}-0.{service}",
        "MASTER_PORT": str(MASTER_PORT),
        **told,
    }
    if settings.s3_role is not None:
        values["AWS_CONFIG_FILE"] = f"{KEYS_FOLDER}/{CONFIG}"
    environment = _environment(values, profile, settings, s3_endpoint_url)
    spec: Document = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "template": {
            "metadata": {"labels": {**profile.labels, **training_labels(job), **own_labels}},
            "spec": _pod_spec(profile, settings, environment, subdomain=service, same=same),
        },
    }
    if profile.deadline_minutes is not None:
        spec["activeDeadlineSeconds"] = max(1, round(profile.deadline_minutes * 60))
    return spec


def service_manifest(job: TrainingJob, attempt: int, owner: Document) -> Document:
    """Return a Service that gives each pod of the Job `owner` a host name. Kubernetes deletes it with the Job."""
    name = attempt_name(job, attempt)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "labels": {**training_labels(job), ATTEMPT: str(attempt)},
            "ownerReferences": [reference_to("job", owner)],
        },
        "spec": {
            "clusterIP": "None",
            # Pods connect to each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {TRAINING: job.fingerprint[:12], ATTEMPT: str(attempt)},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT}],
        },
    }


def policy_manifest(job: TrainingJob, kind: BackEnd, owner: Document) -> Document:
    """Return a NetworkPolicy by which only workers of this training connect to its workers.

    A policy of the namespace cannot say "the same training as mine". Kubernetes deletes it with its `owner`, a document
    of this `kind`. Its name has the owner's uid: the next owner of that name may come before the old policy is gone.
    """
    meta: Document = owner["metadata"]
    same = {"podSelector": {"matchLabels": {MANAGED_LABEL: MANAGER, TRAINING: job.fingerprint[:12]}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": f"{meta['name']}-{str(meta['uid'])[:8]}",
            "labels": training_labels(job),
            "ownerReferences": [reference_to(kind, owner)],
        },
        # On the way out the namespace lets workers reach workers: a connection needs both ends.
        "spec": {**same, "policyTypes": ["Ingress"], "ingress": [{"from": [same]}]},
    }


def reference_to(kind: BackEnd, owner: Document) -> dict[str, str]:
    """Return the reference by which Kubernetes deletes an object with its `owner`, a document of this `kind`."""
    meta: Document = owner["metadata"]
    return {**TYPES[kind], "name": meta["name"], "uid": meta["uid"]}


def _pod_spec(
    profile: ResourceProfile,
    settings: KubernetesSettings,
    environment: list[Document],
    *,
    subdomain: str,
    same: dict[str, str],
) -> Document:
    volumes, mounts = _volumes(profile, settings)
    if settings.s3_role is not None:
        # The service has the name of the Job or JobSet. The pod's group, fsGroup, reads the files.
        secret = {"secretName": keys_secret_name(subdomain), "defaultMode": 0o440}
        volumes.append({"name": KEYS_VOLUME, "secret": secret})
        mounts.append({"name": KEYS_VOLUME, "mountPath": KEYS_FOLDER, "readOnly": True})
    # With a limit, Kubernetes evicts a pod that fills its disk, before the node runs full and evicts others.
    disk = str(bytes_of(profile.scratch) + LOG_BYTES)
    amounts = {"cpu": profile.cpu, "memory": profile.memory, "ephemeral-storage": disk}
    limits = {"memory": profile.memory, "ephemeral-storage": disk}
    if profile.gpus:
        amounts["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = str(profile.gpus)
    container: Document = {
        "name": CONTAINER,
        "image": profile.image or settings.image,
        "command": list(settings.command),
        "env": environment,
        "envFrom": [{"secretRef": {"name": secret}} for secret in profile.env_from_secrets],
        "resources": {"requests": amounts, "limits": limits},
        "volumeMounts": mounts,
        "workingDir": SCRATCH,
        # Puts the last log lines of a failed container into its status, which outlives a lost node.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec: Document = {
        "restartPolicy": "Never",
        "subdomain": subdomain,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": profile.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": profile.run_as_user,
            "runAsGroup": profile.run_as_user,
            "fsGroup": profile.run_as_user,
            "fsGroupChangePolicy": "OnRootMismatch",  # else each start changes every file of a large shared volume
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
        "tolerations": _tolerations(profile.tolerations),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule" if profile.spread == "required" else "ScheduleAnyway",
                "labelSelector": {"matchLabels": same},
            }
        ],
    }
    if profile.node_selector:
        spec["nodeSelector"] = profile.node_selector
    if profile.priority_class is not None:
        spec["priorityClassName"] = profile.priority_class
    if (account := _account(profile, settings)) is not None:
        spec["serviceAccountName"] = account
    if profile.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in profile.pull_secrets]
    return spec


def _environment(
    told: dict[str, str],
    profile: ResourceProfile,
    settings: KubernetesSettings,
    s3_endpoint_url: Address | None,
) -> list[Document]:
    """Return the environment of each pod: `told`, and the variables of profile and settings. Kubernetes adds
    `JOB_COMPLETION_INDEX`, the rank of the node."""
    values = {"HOME": SCRATCH, **profile.env, **settings.env, **told}
    if profile.shard_cache is not None:
        values["TRAINING_SHARD_CACHE"] = str(bytes_of(profile.shard_cache))
    if s3_endpoint_url is not None:
        values["AWS_ENDPOINT_URL"] = s3_endpoint_url.reveal()
    told_by_secret = [_from_secret(settings.s3_secret, "AWS_DEFAULT_REGION", optional=True)]
    if settings.s3_role is None:
        # A cloud may know the pods by their service account; else a missing key is found before a container starts.
        has_identity = _account(profile, settings) is not None
        told_by_secret += [
            _from_secret(settings.s3_secret, "AWS_ACCESS_KEY_ID", optional=has_identity),
            _from_secret(settings.s3_secret, "AWS_SECRET_ACCESS_KEY", optional=has_identity),
            _from_secret(settings.s3_secret, "AWS_SESSION_TOKEN", optional=True),
        ]
    # What is declared counts before the Secret: a JobSet with a variable twice is refused.
    undeclared = (one for one in told_by_secret if one["name"] not in values)
    return [*({"name": key, "value": value} for key, value in values.items()), *undeclared]


def _account(profile: ResourceProfile, settings: KubernetesSettings) -> str | None:
    return profile.service_account or settings.service_account


def _from_secret(secret: str, key: str, *, optional: bool = False) -> Document:
    reference: Document = {"name": secret, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": key, "valueFrom": {"secretKeyRef": reference}}


def _volumes(profile: ResourceProfile, settings: KubernetesSettings) -> tuple[list[Document], list[Document]]:
    """Return the volumes of a pod and their mounts.

    The root file system is read-only, so a worker writes to scratch, /tmp and /dev/shm. The first two share the pod's
    limit of the node's disk.
    """
    volumes: list[Document] = [
        {"name": "scratch", "emptyDir": {"sizeLimit": profile.scratch}},
        {"name": "tmp", "emptyDir": {"sizeLimit": profile.scratch}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": profile.shared_memory}},
    ]
    mounts: list[Document] = [
        {"name": "scratch", "mountPath": SCRATCH},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    given = [
        *(Volume(mount_path=mount.mount_path, host_path=mount.host_path) for mount in settings.mounts),
        *profile.volumes,
    ]
    for number, volume in enumerate(given):
        name = f"volume-{number}"
        volumes.append({"name": name, **_source(volume)})
        mount: dict[str, Any] = {"name": name, "mountPath": volume.mount_path, "readOnly": volume.read_only}
        if volume.sub_path is not None:
            mount["subPath"] = volume.sub_path
        mounts.append(mount)
    return volumes, mounts


def _source(volume: Volume) -> Document:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"hostPath": {"path": volume.host_path, "type": "Directory"}}


def _tolerations(given: tuple[Toleration, ...]) -> list[Document]:
    found: list[Document] = []
    for toleration in given:
        one: Document = {"operator": toleration.operator}
        for name, value in (
            ("key", toleration.key),
            ("value", toleration.value),
            ("effect", toleration.effect),
            ("tolerationSeconds", toleration.seconds),
        ):
            if value is not None:
                one[name] = value
        found.append(one)
    named = {toleration.key for toleration in given}
    found += [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_LOST_SECONDS}
        for key in _LOST_NODE
        if key not in named
    ]
    return found
