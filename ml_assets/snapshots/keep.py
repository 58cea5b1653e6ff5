"""Keeping what a model was trained on: a branch of the lake that garbage collection may not pass.

A tag would not do: only branch heads are roots. The branch holds the snapshot's documents on top of the commit
whose rows they name, so one commit id answers what a model has seen.
"""

from collections.abc import Mapping

from ml_assets.snapshots.reader import FITTED, MANIFEST, Snapshot
from resources.lake import VersionedStore


def keep_branch(fingerprint: str) -> str:
    """Name of the branch that keeps the input of a training job, from before its launch."""
    return f"keep-run-{fingerprint[:12]}"


def keep_snapshot(
    store: VersionedStore,
    snapshot: Snapshot,
    model: str,
    partition: str,
    branch: str,
    metadata: Mapping[str, str],
) -> str:
    """Keep `snapshot` on `branch`; the commit id. The same snapshot again changes nothing.

    The documents lie at `snapshots/<model>/<partition>/`. `metadata` goes into the commit.
    """
    if branch not in store.branches(prefix=branch):
        store.create_branch(branch, snapshot.source_commit)
    for name in (MANIFEST, FITTED):
        store.put(branch, f"snapshots/{model}/{partition}/{name}", snapshot.folder / name)
    return store.commit(branch, f"Snapshot of {model} {partition}", {**metadata, "snapshot": snapshot.digest})
