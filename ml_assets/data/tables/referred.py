"""Rows of other tables to which foreign keys refer, at one commit of main."""

from collections.abc import Mapping, Sequence

import polars as pl

from ml_assets.data.tables.cadence import UNPARTITIONED, CadenceKind
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.contract import ForeignKey
from resources.ledger import Ledger


class ReferredTables:
    """Look-up of referred rows. It remembers each partition that it read, with its digest.

    The guard decides if a partition may be referred to, as it does for inputs of a feature table.
    """

    def __init__(
        self,
        reader: TableReader,
        ledger: Ledger,
        tables: DeclaredTables,
        cadence: CadenceKind,
        keys: Sequence[str],
    ) -> None:
        """`cadence`, `keys`: those of the partitions whose foreign keys are looked up."""
        self._reader = reader
        self._ledger = ledger
        self._tables = tables
        self._cadence = cadence
        self._keys = keys
        self._read: dict[str, set[tuple[str, str, str]]] = {}
        self._barred: dict[str, Mapping[str, str]] = {}
        self._frames: dict[tuple[ForeignKey, str], pl.DataFrame] = {}

    def __call__(self, foreign: ForeignKey, key: str) -> pl.DataFrame | str:
        """Return the named columns of the whole table if it has no partitions, else of partition `key`.

        Return the reason as text if there are no such rows that may be used. Raises `ManifestUnreadable`.
        """
        declared = self._tables.find(foreign.table)
        digests = self._reader.digests(foreign.table)
        if declared is None and UNPARTITIONED in digests and len(digests) > 1:
            return (
                f"main has the partition {UNPARTITIONED!r} and dated ones of it, and nothing declares which of them "
                "count"
            )
        kind = declared.cadence.kind if declared else None
        if kind not in (None, "none", self._cadence):
            return f"it is {kind}, and this table is {self._named_cadence}"
        is_whole = UNPARTITIONED in digests if kind is None else kind == "none"
        theirs = UNPARTITIONED if is_whole else key
        if (why := self._barred_of(foreign.table, is_whole=is_whole).get(theirs)) is not None:
            return f"{foreign.table} {theirs} {why}"
        found = self._reader.manifest(foreign.table, theirs).cadence
        if not is_whole and found != self._cadence:
            return f"main has {theirs} of it as a partition that is {found}, and this table is {self._named_cadence}"
        self._read.setdefault(key, set()).add((foreign.table, theirs, digests[theirs]))
        if (foreign, theirs) not in self._frames:
            rows = self._reader.scan(foreign.table, [theirs])
            if lacking := sorted(set(foreign.named) - set(rows.collect_schema())):
                return f"{foreign.table} {theirs} has no column {', '.join(lacking)}"
            self._frames[foreign, theirs] = rows.select(foreign.named).unique().collect()
        return self._frames[foreign, theirs]

    def read_for(self, key: str) -> tuple[tuple[str, str, str], ...]:
        """Return (table, key, content digest) of the partitions that were read for partition `key`, sorted."""
        return tuple(sorted(self._read.get(key, ())))

    @property
    def _named_cadence(self) -> str:
        return "without partitions" if self._cadence == "none" else self._cadence

    def _barred_of(self, table: str, *, is_whole: bool) -> Mapping[str, str]:
        """Return key → reason for the partitions that the guard refuses, all looked up at once."""
        if table not in self._barred:
            keys = [UNPARTITIONED] if is_whole else self._keys
            window = validate_window(self._reader, self._ledger, self._tables, table, keys)
            self._barred[table] = {
                key: window.refused.get(f"{table} {key}", why) for key, why in window.barred.items()
            }
        return self._barred[table]
