"""Filling of an online store: the newest row of each entity, from validated partitions of a feature table.

The rows are those of the lake, which the feature function made. So the same function serves offline and online. Not
here: the comparison with rows that the store holds already (`resources.online`), the check of partitions (`guard`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from ml_assets.data.tables.online_rows import OnlineTable
from ml_assets.data.tables.reader import TableReader
from resources.online import OnlineStore

_PARTITIONS_AT_ONCE = 28


class EntityAmbiguous(ValueError):
    """An entity has several newest rows."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Result of filling."""

    rows: int
    """Rows of the partitions."""
    sent: int
    """Newest rows of their entities that have not expired."""
    written: int
    """Rows among them that were stored. The store had a newer row of the other entities."""
    nameless: int
    """Rows that name no entity, because a column of it is null."""


def fill_online(
    store: OnlineStore, declared: OnlineTable, reader: TableReader, keys: Sequence[str]
) -> Filled:
    """Store the newest rows of partitions `keys`. Repeating it changes nothing.

    A row's version is the time of the reader's commit: if partitions are corrected, a run that reads the later commit
    wins, whichever writes first. Raises `EntityAmbiguous` if two rows of an entity have the newest moment, `LakeError`
    and `OnlineStoreError`.
    """
    known_at = reader.store.read_commit(reader.commit_id).created_at
    names = [name for name, _ in declared.columns]
    entity, at = list(declared.entity), declared.event_at
    rows = nameless = sent = written = 0
    for start in range(0, len(keys), _PARTITIONS_AT_ONCE):
        some = reader.scan(declared.table, keys[start : start + _PARTITIONS_AT_ONCE]).select(names).collect()
        named = some.drop_nulls(entity)
        rows += some.height
        nameless += some.height - named.height
        newest = named.filter(pl.col(at) == pl.col(at).max().over(entity))
        _require_one_each(declared, newest)
        if declared.ttl is not None:
            newest = newest.filter(pl.col(at) > datetime.now(UTC) - declared.ttl)
        sent += newest.height
        written += store.write(declared.table, declared.rows_of(newest, known_at), declared.ttl_us)
    return Filled(rows=rows, sent=sent, written=written, nameless=nameless)


def _require_one_each(declared: OnlineTable, newest: pl.DataFrame) -> None:
    """Raise `EntityAmbiguous` if an entity has several rows."""
    entity = list(declared.entity)
    twice = newest.filter(pl.struct(entity).is_duplicated())
    if twice.height:
        raise EntityAmbiguous(
            f"{declared.table}: {twice.select(entity).n_unique()} entities have several rows with the newest "
            f"{declared.event_at}. Add columns to `online.entity` ({', '.join(entity)}) that tell these rows apart"
        )
