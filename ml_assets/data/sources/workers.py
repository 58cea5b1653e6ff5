"""Partitions of a source that workers of a pool read: one task for each, as many at once as the source allows.

A worker reads the rows of its partition and prepares it; see `tables.publish.workers`. Not here: the readers.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from ml_assets.data.sources.kinds import open_source, read_partitions
from ml_assets.data.sources.protocol import PartitionOpen, SourceSection, SourceTable
from ml_assets.data.tables.publish.prepare import MadePartition, make
from ml_assets.data.tables.publish.workers import SentPartition, received_files, send_files
from ml_assets.data.tables.spec import TableSpec
from resources.platform import Platform
from resources.pool import Handover
from resources.pool.exchange import Exchange


@dataclass(frozen=True, kw_only=True)
class SourceTask:
    """A partition to read."""

    platform: Platform
    section: SourceSection
    table: SourceTable
    spec: TableSpec
    key: str
    exchange: Exchange
    """Way of the partition's files out of a worker."""


def read_by_workers(
    platform: Platform,
    section: SourceSection,
    table: SourceTable,
    spec: TableSpec,
    keys: Sequence[str],
    require_closed: Callable[[str], None],
) -> Generator[MadePartition]:
    """Yield the partitions `keys` in order, `section.reads_at_once` of them read at the same time.

    `require_closed` raises `PartitionOpen` for a partition that still gets rows, which is not read. Raises what
    `PartitionPool.map` raises; faults of the source are reasons of its partitions.
    """
    still_open: dict[str, PartitionOpen] = {}
    for key in keys:
        try:
            require_closed(key)
        except PartitionOpen as error:
            still_open[key] = error
    with platform.exchange() as exchange:
        tasks = {
            f"{spec.table} {key}": SourceTask(
                platform=platform, section=section, table=table, spec=spec, key=key, exchange=exchange
            )
            for key in keys
            if key not in still_open
        }
        handover = Handover(_send, partial(_received, exchange))
        with closing(platform.pool.map(read_source, tasks, handover, section.reads_at_once)) as made:
            for key in keys:
                fault = still_open.get(key)
                yield next(made) if fault is None else MadePartition(key, None, str(fault), fault)


def read_source(task: SourceTask) -> MadePartition:
    """Read and prepare the partition of a task. Faults of the source are its reason."""
    with closing(open_source(task.section, task.table, task.platform)) as reader:
        [incoming] = read_partitions(reader, task.spec.cadence, [task.key], lambda _: None)
        return make(task.spec, incoming)


def _send(task: SourceTask, made: MadePartition) -> list[SentPartition]:
    return send_files(task.exchange, [made])


def _received(exchange: Exchange, sent: Sequence[SentPartition]) -> MadePartition:
    [made] = received_files(exchange, sent)
    return made
