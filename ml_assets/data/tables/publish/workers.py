"""Partitions that workers of a pool make: the task of features, and the way of its partitions to the publisher.

A worker reads inputs at the run's commit, calls the author's function, and prepares the partitions: sorted rows, the
bytes of their files, profile and manifest. It leaves the files in a folder of the artifacts' storage, where the
publisher takes them. Validation and merge stay with the publisher. Not here: the pool (`resources.pool`).
"""

import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ml_assets.data.tables.declared import InputTable
from ml_assets.data.tables.derive import derive
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.publish.prepare import MadePartition, make, prepared_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import TableSpec, UndatedRows
from ml_assets.data.tables.user_code import resolve_function
from resources.artifacts import ArtifactMissing, Artifacts
from resources.files import whole_file
from resources.platform import Platform
from resources.pool import Handover, PoolRefused, portable


@dataclass(frozen=True, kw_only=True)
class SentPartition:
    """A partition whose files lie in the folder of its task."""

    made: MadePartition
    """Without its rows."""
    manifest: PartitionManifest | None
    """None: it has no rows."""
    files: tuple[str, ...] = ()
    """Names in the folder, in the order of the manifest's files."""
    undated: UndatedRows | None = None
    """See `Incoming`. They are few."""


@dataclass(frozen=True, kw_only=True)
class FeatureTask:
    """Neighbouring partitions of a feature table, made by one call of its function."""

    platform: Platform
    reader: TableReader
    """The lake at the run's commit."""
    spec: TableSpec
    inputs: tuple[InputTable, ...]
    function: str
    """`package.module.function`, which a worker imports."""
    partition_date: str
    keys: tuple[str, ...] = ()
    folder: str = ""
    """Folder of the artifacts for the files of partitions that leave a worker."""

    def __getstate__(self) -> dict[str, Any]:
        """Travel to a worker with the commit in place of the reader."""
        return {**vars(self), "reader": self.reader.commit_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, reader=TableReader(state["platform"].lake, state["reader"]))


def features_of(task: FeatureTask, pieces: Iterable[Sequence[str]]) -> Generator[MadePartition]:
    """Yield the partitions of `pieces`, runs of neighbouring keys, in order. Each piece is a task of the pool.

    Raises what `PartitionPool.map` raises; the name of a task is its table with its first and last key.
    """
    platform = task.platform
    with folder_of_a_run(platform.artifacts) as folder:
        tasks = {
            f"{task.spec.table} {_in_words(keys)}": replace(task, keys=tuple(keys), folder=folder)
            for keys in pieces
        }
        handover = Handover(_send, partial(received_files, platform.artifacts, folder))
        with closing(platform.pool.map(make_features, tasks, handover)) as results:
            for made in results:
                yield from made


def make_features(task: FeatureTask) -> list[MadePartition]:
    """Return the partitions of a task. Raises `FeatureFunctionError`."""
    rows = derive(
        task.reader,
        task.platform.ledger,
        task.inputs,
        [task.keys],
        task.spec.cadence,
        resolve_function(task.function),
        task.partition_date,
    )
    return [make(task.spec, one) for one in rows]


def _send(task: FeatureTask, made: list[MadePartition]) -> list[SentPartition]:
    return send_files(task.platform.artifacts, task.folder, made)


def send_files(artifacts: Artifacts, folder: str, made: Sequence[MadePartition]) -> list[SentPartition]:
    """Write the files of partitions to a folder of the artifacts, and push them. Runs in a worker."""
    place = artifacts.folder(folder)
    sent: list[SentPartition] = []
    for one in made:
        if one.ready is None:
            sent.append(SentPartition(made=replace(one, cause=portable(one.cause)), manifest=None))
            continue
        manifest, objects = one.ready.manifest, one.ready.stored.objects
        names = tuple(f"{one.key}-{part}" for part in range(len(manifest.files)))
        for name, file in zip(names, manifest.files, strict=True):
            content = objects[file.path]
            assert isinstance(content, bytes)  # `prepare` encodes in memory
            # A worker that lost its connection may still write the file that another attempt writes again.
            with whole_file(place / name) as writing:
                writing.write_bytes(content)
        rest = replace(one, ready=None)
        sent.append(SentPartition(made=rest, manifest=manifest, files=names, undated=one.ready.undated))
    artifacts.push(folder, [name for one in sent for name in one.files])
    return sent


def received_files(artifacts: Artifacts, folder: str, sent: Sequence[SentPartition]) -> list[MadePartition]:
    """Return the partitions that `send_files` wrote, and delete their files. Raises `PoolRefused`."""
    names = [name for one in sent for name in one.files]
    try:
        place = artifacts.pull(folder, names) if names else artifacts.folder(folder)
    except ArtifactMissing as error:
        raise PoolRefused(
            f"a worker wrote {names[0]} to a disk that this process does not see: set ML_ASSETS_ARTIFACTS_URL to "
            "s3://bucket/prefix, or to file:///folder of a disk that all machines share"
        ) from error
    made: list[MadePartition] = []
    for one in sent:
        if one.manifest is None:
            made.append(one.made)
            continue
        contents = [(place / name).read_bytes() for name in one.files]
        ready = replace(prepared_of(one.manifest, contents), undated=one.undated)
        made.append(replace(one.made, ready=ready))
    artifacts.remove(folder, names)
    return made


@contextmanager
def folder_of_a_run(artifacts: Artifacts) -> Generator[str]:
    """Yield the name of a folder of the artifacts for this caller alone; delete what is left in it after the block."""
    name = f"pool/{uuid.uuid4().hex}"
    try:
        yield name
    finally:
        artifacts.remove(name)
        with suppress(OSError):  # a lost worker of Ray may still write there
            artifacts.folder(name).rmdir()


def _in_words(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
