"""Removing what dead launchers left: everything of a training whose Lease ran out.

Any launcher sweeps when it starts, Dagster's daemon does every few seconds, and so does `ml-assets sweep`.
"""

import time

from resources.launcher.kubernetes.api import Cluster, Document, Outdated
from resources.launcher.kubernetes.lease import has_run_out
from resources.launcher.kubernetes.manifest import MANAGED, TRAINING
from resources.launcher.kubernetes.removal import remove

GRACE_SECONDS = 5
"""Pods that nobody leads get so long to save: a later launch goes on from there."""


def sweep(cluster: Cluster, lease_seconds: int) -> list[str]:
    """Names of the trainings that were removed.

    A Lease is taken for dead when it has run out and nobody has touched it for another quarter of its time:
    after an outage of the API server, living launchers renew theirs within that.
    """
    before = _abandoned(cluster)
    if not before:
        return []
    time.sleep(lease_seconds / 4)
    now = _abandoned(cluster)
    swept: list[str] = []
    for name in sorted(name for name, version in before.items() if now.get(name) == version):
        try:
            if before[name]:
                cluster.delete("lease", name, version=before[name])
        except Outdated:  # taken in this very moment
            continue
        remove(cluster, f"{TRAINING}={name.removeprefix('train-')}", GRACE_SECONDS)
        swept.append(name)
    return swept


def _abandoned(cluster: Cluster) -> dict[str, str]:
    """Trainings without a launcher, with the version of the Lease that ran out; empty where there is none."""
    jobs = {f"train-{one['metadata']['labels'][TRAINING]}" for one in cluster.list("job", MANAGED)}
    leases = {str(one["metadata"]["name"]): one for one in cluster.list("lease", MANAGED)}
    now = cluster.now()
    found = dict.fromkeys(jobs - leases.keys(), "")
    found |= {name: _version(one) for name, one in leases.items() if has_run_out(one, now)}
    return found


def _version(document: Document) -> str:
    return str(document["metadata"]["resourceVersion"])
