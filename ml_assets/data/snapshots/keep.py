"""Retention of a model's training input: a branch of the lake that protects it from garbage collection.

A tag does not protect it, because garbage collection starts only from branch heads. The branch holds the snapshot's
documents and the index of each split, on top of the commit that holds the rows. So one commit id shows which rows a
model has seen.
"""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ml_assets.data.snapshots.split_reader import (
    FITTED,
    MANIFEST,
    SPLITS,
    Snapshot,
    index_name,
    open_snapshot,
)
from resources.lake import RefExists, VersionedStore

KEEP_RUN = "keep-run-"
"""Prefix of the branches that keep the inputs of training jobs."""
JOB_BRANCH = "job_branch"
"""Key of a commit's metadata: the branch on which it was first made."""


def keep_branch(fingerprint: str, window: str) -> str:
    """Return the name of the branch that keeps the input of a training job, from before its launch.

    `window` is the digest of the partitions that were read (`TableReader.objects_digest`): a later run of the same job
    may read partitions that differ in columns without a part in the training.
    """
    return f"{branches_of(fingerprint)}{window[:12]}"


def branches_of(fingerprint: str) -> str:
    """Return the prefix of the names of the branches that keep the inputs of a training job."""
    return f"{KEEP_RUN}{fingerprint[:12]}-"


def version_branch(model: str, number: int, bundle_digest: str, source_commit: str) -> str:
    """Return the name of the branch that keeps an input of a registered version as long as the version exists.

    A version has one for each commit that an evaluation of it read. The bundle is part of the name, because a new
    registry gives the same number to another version.
    """
    return f"{versions_of(model)}{number}-{bundle_digest[:12]}-{source_commit[:12]}"


def versions_of(model: str) -> str:
    """Return the prefix of the names of the branches that keep the inputs of a model's versions."""
    return f"keep-{model}-v"


@dataclass(frozen=True, kw_only=True)
class KeptInput:
    """Input of a training as the lake keeps it."""

    commit: str
    """Commit with the documents of the snapshot, on top of the rows."""
    source_commit: str
    """Commit with the rows: the first one of these partitions that a run of the job read."""


def keep_snapshot(
    store: VersionedStore,
    snapshot: Snapshot,
    source_commit: str,
    model: str,
    partition: str,
    branch: str,
    metadata: Mapping[str, str],
) -> KeptInput:
    """Keep `snapshot`, whose rows were read at `source_commit`, on `branch`; return the commits.

    A repeated call for the same job and the same partitions changes nothing, also if it read them at a later commit.
    After the version was registered and `branch` deleted, it returns the commits that the version keeps. The documents
    are at `snapshots/<model>/<partition>/`. `metadata` goes into the commit.
    """
    kept = _kept_for_a_version(store, model, branch)
    if branch not in store.branches(prefix=branch):
        with suppress(RefExists):  # another run of the same job has just created it
            store.create_branch(branch, kept or source_commit)
    if kept is None:
        for name in (MANIFEST, FITTED, *(index.path for index in snapshot.splits)):
            store.put(branch, f"snapshots/{model}/{partition}/{name}", snapshot.folder / name)
        facts = {**metadata, "snapshot": snapshot.digest, JOB_BRANCH: branch}
        kept = store.commit(branch, f"Snapshot of {model} {partition}", facts)
    return KeptInput(commit=kept, source_commit=rows_behind_kept(store, kept))


def rows_behind_kept(store: VersionedStore, commit: str) -> str:
    """Return the commit with the rows of a commit that keeps a snapshot."""
    return store.read_commit(commit).parents[0]


def commit_that_keeps(
    store: VersionedStore, model: str, fingerprint: str, bundle_digest: str, source_commit: str
) -> str | None:
    """Return the commit that keeps the snapshot of a training as it was read at `source_commit`; None if it is gone."""
    of_versions = store.branches(prefix=versions_of(model))
    heads = [head for name, head in of_versions.items() if f"-{bundle_digest[:12]}" in name]
    wanted = store.resolve(source_commit)
    for head in (*heads, *store.branches(prefix=branches_of(fingerprint)).values()):
        kept = store.read_commit(head)
        # Without the key, a run died between its branch and its commit.
        if JOB_BRANCH in kept.metadata and kept.parents[0] == wanted:
            return head
    return None


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
