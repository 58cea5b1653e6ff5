"""Partitions on main that differ from their source: by versions of their rows, and by the dates of changes.

A version notices every change, and costs a look at the rows or files of a partition, so a sensor asks for the newest
partitions alone. A source with `watermark_column` also dates its changes, which finds changed rows of any age. Not
here: asking the sources (`SourceReader.look`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from ml_assets.data.sources.protocol import ReadPartition, Span

OVERLAP = timedelta(days=2)
"""More than a clock that is set back by a day, and than any transaction that a database should have."""
CLOCKS_DIFFER = timedelta(hours=1)
"""Difference of two clocks that is no reason to doubt them."""


def version_of_files(files: Iterable[tuple[object, ...]]) -> str:
    """Return the version of the rows in files, 32 hex digits. A file is its name and facts that change with it."""
    listed = sorted(json.dumps(list(one)) for one in files)
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:32]


def differing(read: Mapping[Span, ReadPartition], versions: Mapping[Span, str | None]) -> frozenset[Span]:
    """Return the partitions whose version on main is not the source's; None: the source has no rows of it."""
    return frozenset(span for span, version in versions.items() if read[span].version != version)


def ahead_of(now: datetime, read: Mapping[Span, ReadPartition]) -> frozenset[Span]:
    """Return the partitions with changes that are later than `now`, the time of the source's clock.

    The clock was set back, or was ahead before: what changes now looks older than what was read already.
    """
    limit = now + CLOCKS_DIFFER
    return frozenset(
        span for span, one in read.items() if one.watermark is not None and one.watermark > limit
    )


def unread_after(
    read: Mapping[Span, ReadPartition], ahead: frozenset[Span], overlap: timedelta = OVERLAP
) -> datetime | None:
    """Return the moment after which changes may be unread; None if main has no change with a date.

    A change may be dated up to `overlap` before the newest one that was read: a long transaction commits late, or a
    clock was set back.
    """
    marks = [one.watermark for span, one in read.items() if one.watermark and span not in ahead]
    return max(marks) - overlap if marks else None


def redated(
    read: Mapping[Span, ReadPartition], newest: Mapping[Span, datetime], after: datetime
) -> frozenset[Span]:
    """Return the partitions whose newest change is not the one on main. `newest`: changes after `after`."""

    def differs(span: Span, stored: datetime | None) -> bool:
        found = newest.get(span)
        if found is None:  # nothing is newer than `after` there, so nothing may be newer on main
            return stored is not None and stored > after
        return found != stored

    return frozenset(span for span, one in read.items() if differs(span, one.watermark))
