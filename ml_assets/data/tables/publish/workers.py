"""Partitions that workers of a pool make: the task of features, and the way of its partitions to the publisher.

A worker reads inputs at the run's commit, calls the author's function, and prepares the partitions: sorted rows, the
bytes of their files, profile and manifest. It sends the files to the publisher, which validates and merges. Not here:
the pool (`resources.pool`) and the way of the files (`resources.pool.exchange`).
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
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
from resources.platform import Platform
from resources.pool import Handover, portable
from resources.pool.exchange import Exchange


@dataclass(frozen=True, kw_only=True)
class SentPartition:
    """A partition whose files were sent."""

    made: MadePartition
    """Without its rows."""
    manifest: PartitionManifest | None
    """None: it has no rows."""
    files: tuple[str, ...] = ()
    """Names of the files of its rows, in the order of the manifest."""
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
    exchange: Exchange | None = None
    """Way of the partitions' files out of a worker."""

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
    with platform.exchange() as exchange:
        tasks = {
            f"{task.spec.table} {_in_words(keys)}": replace(task, keys=tuple(keys), exchange=exchange)
            for keys in pieces
        }
        handover = Handover(_send, partial(received_files, exchange))
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
    assert task.exchange is not None  # `features_of` gives it
    return send_files(task.exchange, made)


def send_files(exchange: Exchange, made: Sequence[MadePartition]) -> list[SentPartition]:
    """Send the files of partitions. Runs in a worker. Raises what `Exchange.send` raises."""
    sent: list[SentPartition] = []
    for one in made:
        if one.ready is None:
            sent.append(SentPartition(made=replace(one, cause=portable(one.cause)), manifest=None))
            continue
        manifest, objects = one.ready.manifest, one.ready.stored.objects
        names = tuple(f"{one.key}-{part}" for part in range(len(manifest.files)))
        for name, described in zip(names, manifest.files, strict=True):
            content = objects[described.path]
            assert isinstance(content, bytes)  # `prepare` encodes in memory
            with exchange.send(name) as file:
                file.write_bytes(content)
        rest = replace(one, ready=None)
        sent.append(SentPartition(made=rest, manifest=manifest, files=names, undated=one.ready.undated))
    return sent


def received_files(exchange: Exchange, sent: Sequence[SentPartition]) -> list[MadePartition]:
    """Return the partitions that `send_files` sent, and delete their files. Raises what `Exchange.receive` raises."""
    names = [name for one in sent for name in one.files]
    made: list[MadePartition] = []
    with exchange.receive(names) as paths:
        place = dict(zip(names, paths, strict=True))
        for one in sent:
            if one.manifest is None:
                made.append(one.made)
                continue
            ready = prepared_of(one.manifest, [place[name].read_bytes() for name in one.files])
            made.append(replace(one.made, ready=replace(ready, undated=one.undated)))
    exchange.remove(names)
    return made


def _in_words(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}"
