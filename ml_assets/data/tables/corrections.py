"""Corrections of a table's past: the moments at which other rows replaced those of a partition, and what they changed.

Not here: keeping the earlier rows (`earlier.py`), reading them at a moment (`reader.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ml_assets.data.tables.changed_rows import PartitionChange, ReadWindow, compare_partition
from ml_assets.data.tables.reader import TableReader
from resources.ledger import Ledger

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Correction:
    """One change of a partition that was over."""

    key: str
    known_at: datetime
    """Moment (UTC) from which on readers get the new rows."""
    change: PartitionChange | None
    """Rows and values that differ; None if the rows from before were rejected later, so that nobody reads them."""


def corrections_of(
    reader: TableReader, ledger: Ledger, table: str, key: str | None, primary_key: Sequence[str]
) -> Iterator[Correction]:
    """Yield the corrections of `table`, or of its partition `key`, by partition and moment. Reads the rows of each.

    `primary_key` names a row; rows of a table without one count as came and went.
    """
    moments = {(one.key, one.until) for one in reader.earlier(table) if key in (None, one.key)}
    for corrected, moment in sorted(moments):
        sides = [reader.as_known(table, at, ledger) for at in (moment - _MICROSECOND, moment)]
        old, new = (side.manifest(table, corrected) for side in sides)
        if old.content_digest == new.content_digest:
            yield Correction(key=corrected, known_at=moment, change=None)
            continue
        before, after = (ReadWindow(reader=side, table=table, keys=[corrected]) for side in sides)
        change = compare_partition(before, after, corrected, (old, new), primary_key)
        yield Correction(key=corrected, known_at=moment, change=change)
