"""Rows of other tables to which foreign keys refer, at one commit of main."""

import polars as pl

from ml_assets.tables.cadence import UNPARTITIONED, CadenceKind
from ml_assets.tables.reader import TableReader
from ml_assets.validation.contract import ForeignKey


class ReferredTables:
    """Look-up of referred rows. It remembers each partition that it read, with its digest."""

    def __init__(self, reader: TableReader, cadence: CadenceKind) -> None:
        """`cadence`: that of the table whose foreign keys are looked up."""
        self._reader = reader
        self._cadence = cadence
        self._read: dict[str, set[tuple[str, str, str]]] = {}
        self._frames: dict[tuple[ForeignKey, str], pl.DataFrame] = {}

    def __call__(self, foreign: ForeignKey, key: str) -> pl.DataFrame | None:
        """Return the named columns of the whole table if it has no partitions, else of partition `key`.

        None if main has no such partition, if that is one of another cadence (a day and a week may share a key), or if
        it lacks a named column. Raises `ManifestUnreadable`.
        """
        digests = self._reader.digests(foreign.table)
        theirs = UNPARTITIONED if UNPARTITIONED in digests else key
        if theirs not in digests:
            return None
        if theirs == key and self._reader.manifest(foreign.table, key).cadence != self._cadence:
            return None
        self._read.setdefault(key, set()).add((foreign.table, theirs, digests[theirs]))
        if (foreign, theirs) not in self._frames:
            rows = self._reader.scan(foreign.table, [theirs])
            if set(foreign.named) - set(rows.collect_schema()):
                return None
            self._frames[foreign, theirs] = rows.select(foreign.named).unique().collect()
        return self._frames[foreign, theirs]

    def read_for(self, key: str) -> tuple[tuple[str, str, str], ...]:
        """Return (table, key, content digest) of the partitions that were read for partition `key`, sorted."""
        return tuple(sorted(self._read.get(key, ())))
