"""Partitions that workers of a pool make: the task of features, and the way of its partitions to the publisher.

A worker reads inputs at the run's commit, calls the author's function, and prepares the partitions: sorted rows, the
bytes of their files, profile and manifest. It leaves the files in a folder of this machine, where the publisher takes
them. Validation and merge stay with the publisher. Not here: the pool (`resources.pool`).
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml_assets.data.tables.declared import InputTable
from ml_assets.data.tables.derive import derive
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.publish.prepare import MadePartition, make, prepared_of
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import TableSpec, UndatedRows
from ml_assets.data.tables.user_code import resolve_function
from resources.files import unfinished_folder, whole_file
from resources.platform import Platform
from resources.pool import Handover, portable


@dataclass(frozen=True, kw_only=True)
class SentPartition:
    """A partition whose files lie in the folder of its task."""

    made: MadePartition
    """Without its rows."""
    manifest: PartitionManifest | None
    """None: it has no rows."""
    files: tuple[Path, ...] = ()
    """Files of its rows, in the order of the manifest."""
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
    folder: Path = Path()
    """Folder for the files of partitions that leave a worker (`handover_folder`)."""

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
    with handover_folder(platform) as folder:
        tasks = {
            f"{task.spec.table} {_in_words(keys)}": replace(task, keys=tuple(keys), folder=folder)
            for keys in pieces
        }
        with closing(platform.pool.map(make_features, tasks, Handover(_send, received_files))) as results:
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
    return send_files(task.folder, made)


def send_files(folder: Path, made: Sequence[MadePartition]) -> list[SentPartition]:
    """Write the files of partitions to `folder`. Runs in a worker. Raises `DiskFull`."""
    sent: list[SentPartition] = []
    for one in made:
        if one.ready is None:
            sent.append(SentPartition(made=replace(one, cause=portable(one.cause)), manifest=None))
            continue
        manifest, objects = one.ready.manifest, one.ready.stored.objects
        files = tuple(folder / f"{one.key}-{part}" for part in range(len(manifest.files)))
        for file, described in zip(files, manifest.files, strict=True):
            content = objects[described.path]
            assert isinstance(content, bytes)  # `prepare` encodes in memory
            with whole_file(file) as writing:
                writing.write_bytes(content)
        rest = replace(one, ready=None)
        sent.append(SentPartition(made=rest, manifest=manifest, files=files, undated=one.ready.undated))
    return sent


def received_files(sent: Sequence[SentPartition]) -> list[MadePartition]:
    """Return the partitions that `send_files` wrote, and delete their files."""
    made: list[MadePartition] = []
    for one in sent:
        if one.manifest is None:
            made.append(one.made)
            continue
        ready = prepared_of(one.manifest, [file.read_bytes() for file in one.files])
        made.append(replace(one.made, ready=replace(ready, undated=one.undated)))
        for file in one.files:
            file.unlink()
    return made


def handover_folder(platform: Platform) -> AbstractContextManager[Path]:
    """Yield a folder for the files of one range. It is deleted after the block, or by a later range if this process is
    killed."""
    return unfinished_folder(platform.settings.cache_folder / "pool")


def _in_words(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
