"""Keeping what a model was trained on: a branch of the lake that garbage collection may not pass.

A tag would not do: only branch heads are roots. The branch holds the snapshot's documents on top of the commit
whose rows they name, and the index of each split, so one commit id answers which rows a model has seen.
"""

from collections.abc import Mapping

from ml_assets.snapshots.split_reader import FITTED, MANIFEST, Snapshot
from resources.lake import VersionedStore

JOB_BRANCH = "job_branch"
"""Key of a commit's metadata: the branch it was first made on."""


def keep_branch(fingerprint: str) -> str:
    """Name of the branch that keeps the input of a training job, from before its launch."""
    return f"keep-run-{fingerprint[:12]}"


def version_branch(model: str, number: int, bundle_digest: str) -> str:
    """Name of the branch that keeps the input of a registered version for as long as the version lives.

    The bundle is part of it: a registry that begins anew gives the same number to another version.
    """
    return f"{_versions_of(model)}{number}-{bundle_digest[:12]}"


def _versions_of(model: str) -> str:
    return f"keep-{model}-v"


def keep_snapshot(
    store: VersionedStore,
    snapshot: Snapshot,
    model: str,
    partition: str,
    branch: str,
    metadata: Mapping[str, str],
) -> str:
    """Keep `snapshot` on `branch`; the commit id. The same job again changes nothing, also after its version
    was registered and `branch` released: then it is the commit the version keeps.

    The documents lie at `snapshots/<model>/<partition>/`. `metadata` goes into the commit.
    """
    kept = _kept_for_a_version(store, model, branch)
    if branch not in store.branches(prefix=branch):
        store.create_branch(branch, kept or snapshot.source_commit)
    if kept is not None:
        return kept
    for name in (MANIFEST, FITTED, *(index.path for index in snapshot.splits)):
        store.put(branch, f"snapshots/{model}/{partition}/{name}", snapshot.folder / name)
    facts = {**metadata, "snapshot": snapshot.digest, JOB_BRANCH: branch}
    return store.commit(branch, f"Snapshot of {model} {partition}", facts)


def _kept_for_a_version(store: VersionedStore, model: str, branch: str) -> str | None:
    """The commit a registered version keeps of the job whose branch was `branch`."""
    for commit in store.branches(prefix=_versions_of(model)).values():
        if store.read_commit(commit).metadata.get(JOB_BRANCH) == branch:
            return commit
    return None
