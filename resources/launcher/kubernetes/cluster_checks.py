"""Checks of `ml-assets doctor`: the cluster is ready for trainings.

A check returns a sentence, or raises one of `resources.job.errors`, whose message names the remedy.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from resources.clocks import TOLERANCE, in_words, why_wrong
from resources.job.errors import BadConfiguration, ClocksDiffer, ClusterRefused, PodNotStarted
from resources.job.job import TrainingJob
from resources.launcher.kubernetes.attempt_objects import KEYS_VOLUME, job_manifest, keys_secret_name
from resources.launcher.kubernetes.classify import StartTimeouts, why_not_started
from resources.launcher.kubernetes.cluster import JOBSETS, TRAINJOBS, Cluster
from resources.launcher.kubernetes.pod_state import Pod
from resources.launcher.kubernetes.worker_keys import WorkersRole, secret_manifest
from resources.launcher.resource_profile import ResourceProfile
from resources.settings import Settings

PATIENCE_SECONDS = 5.0
NEEDED = (
    *(("batch", "jobs", "", verb) for verb in ("create", "get", "list", "watch", "delete")),
    *(("", "pods", "", verb) for verb in ("create", "get", "list", "watch", "delete", "deletecollection")),
    ("", "pods", "log", "get"),
    *(("", "services", "", verb) for verb in ("create", "list", "delete")),
    *(("coordination.k8s.io", "leases", "", verb) for verb in ("create", "get", "list", "update", "delete")),
    ("", "events", "", "list"),
    *(("kueue.x-k8s.io", "workloads", "", verb) for verb in ("list", "patch")),
)
"""Permissions of a launcher in its namespace: group, resource, subresource, verb."""
NEEDED_FOR_JOBSETS = tuple(
    (JOBSETS[0], "jobsets", "", verb) for verb in ("create", "get", "list", "update", "delete")
)
"""More permissions of a launcher whose back end is `jobset` or `trainjob`."""
NEEDED_FOR_TRAINJOBS = tuple(
    (TRAINJOBS[0], resource, "", verb)
    for resource in ("trainjobs", "trainingruntimes")
    for verb in ("create", "get", "list", "update", "delete")
)
"""More permissions of a launcher whose back end is `trainjob`."""
NEEDED_FOR_POLICIES = (("networking.k8s.io", "networkpolicies", "", "create"),)
"""More permissions of a launcher that isolates its trainings."""
NEEDED_FOR_KEYS = (("", "secrets", "", "create"), ("", "secrets", "", "update"))
"""More permissions of a launcher that assumes a role for the workers. It cannot read a Secret."""
_TRIAL = ResourceProfile(cpu="50m", memory="64Mi", shared_memory="1Mi", scratch="10Mi", grace_seconds=1)
_TRIAL_SECONDS = 45.0
_TIMEOUTS = StartTimeouts(start=20.0, pull=40.0)


def cluster_checks(settings: Settings) -> list[tuple[str, Callable[[], str]]]:
    """Return the name and the function of each check, in the order in which to run them."""

    of = settings.kubernetes
    has_jobsets, has_trainjobs = of.backend != "job", of.backend == "trainjob"
    needed = NEEDED + NEEDED_FOR_JOBSETS * has_jobsets + NEEDED_FOR_TRAINJOBS * has_trainjobs
    needed += NEEDED_FOR_POLICIES * of.isolated + NEEDED_FOR_KEYS * (of.s3_role is not None)

    def connect() -> Cluster:
        return Cluster(of.namespace, of.context, PATIENCE_SECONDS)

    return [
        ("cluster", lambda: _answers(connect())),
        ("cluster clock", lambda: _clock(connect())),
        ("cluster rights", lambda: _rights(connect(), needed)),
        *([("cluster jobsets", lambda: _jobsets(connect()))] if has_jobsets else []),
        *([("cluster trainjobs", lambda: _trainjobs(connect()))] if has_trainjobs else []),
        *([("cluster keys", lambda: _keys(settings))] if of.s3_role is not None else []),
        ("cluster pods", lambda: _trial(connect(), settings)),
    ]


def _answers(cluster: Cluster) -> str:
    return f"Kubernetes {cluster.version()} at {cluster.where}, namespace {cluster.namespace}"


def _clock(cluster: Cluster) -> str:
    """Raise `ClocksDiffer` if the clock of this machine is not that of the API server."""
    cluster.version()  # each answer tells the server's time
    behind = cluster.now() - datetime.now(UTC)
    if why := why_wrong({"the API server": behind}):
        raise ClocksDiffer(why)
    return f"within {max(1, round(abs(behind.total_seconds())))} s of the API server"


def _jobsets(cluster: Cluster) -> str:
    """Raise `JobSetsMissing` if the cluster does not know JobSets."""
    return f"{'/'.join(JOBSETS)}, {len(cluster.list('jobset'))} JobSets in {cluster.namespace}"


def _trainjobs(cluster: Cluster) -> str:
    """Raise `TrainJobsMissing` if the cluster does not know TrainJobs."""
    return f"{'/'.join(TRAINJOBS)}, {len(cluster.list('trainjob'))} TrainJobs in {cluster.namespace}"


def _rights(cluster: Cluster, needed: Sequence[tuple[str, str, str, str]]) -> str:
    lacking = [
        f"{verb} {resource}{'/' * bool(sub)}{sub}"
        for group, resource, sub, verb in needed
        if not cluster.may(verb, group, resource, sub)
    ]
    if lacking:
        raise ClusterRefused(
            f"in namespace {cluster.namespace} this account may not {', '.join(lacking)}: bind the launcher's role "
            "(deployment/helm) to it"
            + "; the chart grants jobsets if jobset.enabled is true"
            * any(" jobsets" in one for one in lacking)
            + "; the chart grants trainjobs if trainjob.enabled is true"
            * any(" train" in one for one in lacking)
            + "; without ML_ASSETS_KUBERNETES_ISOLATED no networkpolicies are made, and workers of all trainings reach "
            "each other where the namespace lets them" * any(" networkpolicies" in one for one in lacking)
        )
    return f"all {len(needed)} permissions that a launcher needs in {cluster.namespace}"


def _role(settings: Settings) -> WorkersRole:
    """Return the role of the workers, for a folder of the doctor's own."""
    of = settings.kubernetes
    if of.s3_role is None or settings.artifacts_url is None:
        raise BadConfiguration(
            "ML_ASSETS_KUBERNETES_S3_ROLE needs artifacts on S3: set ML_ASSETS_ARTIFACTS_URL"
        )
    return WorkersRole(
        arn=of.s3_role,
        seconds=of.s3_role_seconds,
        endpoint_url=settings.s3_endpoint_url,
        written=[f"{settings.artifacts_url.rstrip('/')}/doctor"],
        read=[],
    )


def _keys(settings: Settings) -> str:
    role = _role(settings)
    role.keys("doctor")
    return f"{role.arn} gives workers keys of their own folders for {role.seconds} s"


def _trial(cluster: Cluster, settings: Settings) -> str:
    """Run a pod like those of a training that only prints its program's version. Tests image, Secret and mounts."""
    of = settings.kubernetes
    if of.image is None:
        raise BadConfiguration("set ML_ASSETS_KUBERNETES_IMAGE to the image of the workers")
    name = f"doctor-{uuid4().hex[:8]}"
    job = job_manifest(_JOB, 1, _TRIAL, of, nodes=1, cause="", folder="", snapshot="", s3_endpoint_url=None)
    pod_spec = job["spec"]["template"]["spec"]
    pod_spec["containers"][0]["command"] = [of.command[0], "--version"]
    began = time.monotonic()
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec}
    secret = of.s3_secret
    if of.s3_role is not None:
        secret = keys_secret_name(name)
        for one in pod_spec["volumes"]:
            if one["name"] == KEYS_VOLUME:
                one["secret"]["secretName"] = secret
    made = cluster.create("pod", body)
    try:
        if of.s3_role is not None:
            cluster.create("secret", secret_manifest({**body, **made}, {}, _role(settings).keys("doctor")))
        pod = _ended(cluster, name)
    finally:
        cluster.delete("pod", name, grace_seconds=0)
    if pod.exit_code:
        raise PodNotStarted(
            f"{of.command[0]} --version ended with {pod.exit_code} in image {of.image}: {pod.trainer.message.strip()}. "
            "Correct ML_ASSETS_KUBERNETES_COMMAND or the image"
        )
    # The node dates the end of a container.
    late = pod.trainer.ended - cluster.now() if pod.trainer.ended is not None else timedelta()
    if abs(late) > TOLERANCE:
        raise ClocksDiffer(
            f"the clock of {pod.node} is {in_words(abs(late))} {'ahead of' if late > timedelta() else 'behind'} that "
            "of the API server: set it (NTP). S3 refuses requests dated wrong by 15 minutes, so trainings there fail"
        )
    return (
        f"{of.image} ran {of.command[0]} on {pod.node} in {time.monotonic() - began:.1f} s, with Secret "
        f"{secret}"
    )


def _ended(cluster: Cluster, name: str) -> Pod:
    began = time.monotonic()
    while True:
        document = cluster.get("pod", name)
        if document is None:
            raise PodNotStarted(f"pod {name} was deleted by another program or person: run the doctor again")
        pod = Pod.of(document)
        if pod.has_ended:
            return pod
        error = why_not_started([pod], _TRIAL, cluster.now(), _TIMEOUTS, lambda pod: cluster.events(pod.uid))
        if error is not None:
            raise error
        if time.monotonic() - began > _TRIAL_SECONDS:
            raise PodNotStarted(
                f"pod {name} has not ended after {_TRIAL_SECONDS:g} s on {pod.node or 'no node'}: look at the events "
                "of the node"
            )
        time.sleep(0.3)


_JOB = TrainingJob(
    model="doctor",
    partition="",
    model_function="",
    objective="binary",
    hyperparameters={},
    snapshot="",
    snapshot_digest="",
    code_version="",
    seed=0,
)
