"""Retention of a model's training input: a branch of the lake that protects it from garbage collection.

A tag does not protect it, because garbage collection starts only from branch heads. The branch holds the snapshot's
documents and the index of each split, on top of the commit that holds the rows. So one commit id shows which rows a
model has seen.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from ml_assets.snapshots.split_reader import FITTED, MANIFEST, SPLITS, Snapshot, index_name, open_snapshot
from resources.lake import VersionedStore

KEEP_RUN = "keep-run-"
"""Prefix of the branches that keep the inputs of training jobs."""
JOB_BRANCH = "job_branch"
"""Key of a commit's metadata: the branch on which it was first made."""


def keep_branch(fingerprint: str) -> str:
    """Return the name of the branch that keeps the input of a training job, from before its launch."""
    return f"{KEEP_RUN}{fingerprint[:12]}"


def version_branch(model: str, number: int, bundle_digest: str) -> str:
    """Return the name of the branch that keeps the input of a registered version as long as the version exists.

    The bundle is part of the name, because a new registry gives the same number to another version.
    """
    return f"{versions_of(model)}{number}-{bundle_digest[:12]}"


def versions_of(model: str) -> str:
    """Return the prefix of the names of the branches that keep the inputs of a model's versions."""
    return f"keep-{model}-v"


def keep_snapshot(
    store: VersionedStore,
    snapshot: Snapshot,
    model: str,
    partition: str,
    branch: str,
    metadata: Mapping[str, str],
) -> str:
    """Keep `snapshot` on `branch`; return the commit id.

    A repeated call for the same job changes nothing. After the version was registered and `branch` deleted, it returns
    the commit that the version keeps. The documents are at `snapshots/<model>/<partition>/`. `metadata` goes into the
    commit.
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


def kept_snapshot(store: VersionedStore, branch: str, model: str, partition: str, folder: Path) -> Snapshot:
    """Copy the documents of the snapshot that `branch` keeps to `folder`, which is empty; return it without shards.

    Raises `ObjectNotFound` or `RefNotFound` if the branch does not keep it.
    """
    prefix = f"snapshots/{model}/{partition}/"
    names = [MANIFEST, FITTED, *(index_name(split) for split in SPLITS)]
    for path, local in store.fetch(branch, [f"{prefix}{name}" for name in names]).items():
        shutil.copyfile(local, folder / path.removeprefix(prefix))
    return open_snapshot(folder)


def _kept_for_a_version(store: VersionedStore, model: str, branch: str) -> str | None:
    """Return the commit that a registered version keeps for the job of `branch`; None if there is none."""
    for commit in store.branches(prefix=versions_of(model)).values():
        if store.read_commit(commit).metadata.get(JOB_BRANCH) == branch:
            return commit
    return None
