"""Queues of a replayed trace: the policies as objects of Kueue, and the Jobs of its trainings."""

from collections.abc import Sequence
from typing import Any

from deployment.testbed.cluster.control import PACKING_SCHEDULER
from deployment.testbed.cluster.simulation import GPUS, LABEL, TAINT
from resources.launcher.kubernetes.attempt_objects import QUEUE

NODES = 16
GPU = "nvidia.com/gpu"
TRAINING = "trace/training"
"""Label of a Job and its pods: number of the training in the trace."""
_FLAVOR = "trace-node"
_KUEUE = "kueue.x-k8s.io/v1beta2"
Document = dict[str, Any]


def shares(teams: Sequence[str]) -> dict[str, int]:
    """Return the GPUs of each team: equal shares; the first teams have the rest."""
    whole, rest = divmod(NODES * GPUS, len(teams))
    return {team: whole + (at < rest) for at, team in enumerate(teams)}


def queues(policy: str, teams: Sequence[str], namespace: str) -> list[Document]:
    """Return the objects of a policy: a ClusterQueue for each team, or one for all, and a LocalQueue for each team."""
    flavor = {"apiVersion": _KUEUE, "kind": "ResourceFlavor", "metadata": {"name": _FLAVOR}}
    if policy == "first come":
        own = {"for-all": NODES * GPUS}
        spec: Document = {"queueingStrategy": "StrictFIFO"}
        owner = dict.fromkeys(teams, "for-all")
    else:
        own, spec, owner = (
            shares(teams),
            {"queueingStrategy": "BestEffortFIFO"},
            {team: team for team in teams},
        )
    if policy.startswith("fair share"):
        spec |= {
            "cohortName": "trace",
            "fairSharing": {"weight": "1"},
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        }
    clusters = [_cluster_queue(f"trace-{name}", gpus, spec) for name, gpus in own.items()]
    locals_ = [
        {
            "apiVersion": _KUEUE,
            "kind": "LocalQueue",
            "metadata": {"name": f"team-{team}", "namespace": namespace},
            "spec": {"clusterQueue": f"trace-{owner[team]}"},
        }
        for team in teams
    ]
    return [flavor, *clusters, *locals_]


def _cluster_queue(name: str, gpus: int, spec: Document) -> Document:
    resources = [{"name": GPU, "nominalQuota": str(gpus)}]
    group = {"coveredResources": [GPU], "flavors": [{"name": _FLAVOR, "resources": resources}]}
    return {
        "apiVersion": _KUEUE,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
    }


def job(name: str, number: int, gpus: int, team: str) -> Document:
    """Return the suspended Job of a training: pods of a whole node, or one pod of fewer GPUs."""
    pods, each = (gpus // GPUS, GPUS) if gpus > GPUS else (1, gpus)
    amounts = {GPU: str(each)}
    labels = {TRAINING: str(number)}
    container = {"name": "trainer", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "schedulerName": PACKING_SCHEDULER,
        "nodeSelector": LABEL,
        "tolerations": [{"key": TAINT, "operator": "Exists"}],
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, QUEUE: f"team-{team}"}},
        "spec": {
            "suspend": True,
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 1000,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
