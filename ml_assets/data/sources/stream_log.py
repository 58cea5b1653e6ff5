"""Log of a stream in the lake: its messages by day, its dead letters, and the offsets up to which it was read.

One commit of main holds messages and offsets, so no crash loses or repeats a message. Two readers at once cannot both
land: both change the file of offsets, so the second merge is a conflict. Not here: the client of the stream, and the
rows of a day (`kafka_source`).

Files are merged when a new one is at least half as large as the last one, so a day has few files, and each message is
written few times.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from ml_assets.data.sources.json_messages import FIRST_EVENT
from ml_assets.data.tables import layout, parquet
from ml_assets.data.tables.cadence import begin_of_key
from ml_assets.data.tables.landing import MAIN
from ml_assets.foundation.days import after, begin_of
from resources.lake import LakeError, ObjectNotFound, ObjectStat, VersionedStore
from resources.threads import side_by_side

MESSAGE = {
    "generation": pl.Int32(),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
    "value": pl.Binary(),
}
"""Columns of the messages of a day. `value` holds the bytes as they were sent."""
DEAD_LETTER = MESSAGE | {"size": pl.Int64(), "kind": pl.String(), "reason": pl.String()}
"""Columns of the dead letters. `value` holds at most `DEAD_BYTES` of the message; `size` counts all of its bytes."""
DEAD_BYTES = 64 * 2**10
_MERGED_BYTES = 32 * 2**20
"""Size in memory from which a file of messages is not merged with older ones."""
_FORMAT = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IDLE = timedelta(days=1)
_LONGEST = timedelta(days=2)
"""More than any day has, also one in which clocks are set back."""


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Progress of reading in one partition of the topic."""

    next: int
    """Offset of the next message to read."""
    end: int
    """Offset of the partition's end when it was last read."""
    newest: int | None = None
    """Greatest event time, in microseconds since 1970; None before the first row."""


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """Messages of a topic that were read."""

    topic: str
    topic_id: str
    """Identity that the broker gave the topic; empty if it does not tell."""
    generation: int
    """Number of times that somebody let reading begin anew."""
    chunk: int = 0
    """Number of commits."""
    messages: int = 0
    """Messages landed in days, in all generations."""
    dead: Mapping[str, int] = field(default_factory=dict[str, int])
    """Kind of dead letter → number, in all generations."""
    partitions: Mapping[int, PartitionProgress] = field(default_factory=dict[int, PartitionProgress])
    watermark: int | None = None
    """Microseconds since 1970. All rows with an earlier event time were read, unless they come late."""
    read_at: str = ""
    """Moment of the last commit by the clock of its machine, ISO 8601 in UTC."""

    @property
    def watermark_moment(self) -> datetime | None:
        """`watermark` as a moment."""
        return None if self.watermark is None else _EPOCH + timedelta(microseconds=self.watermark)

    def advanced(self, partitions: Mapping[int, PartitionProgress], lateness: timedelta) -> "StreamState":
        """Return the state with further progress; the watermark never goes back."""
        found = _lowest_progress(partitions)
        known = [] if self.watermark is None else [self.watermark]
        if found is not None:
            known.append(max(FIRST_EVENT, found - lateness // timedelta(microseconds=1)))
        return replace(self, partitions=partitions, watermark=max(known, default=None))

    def to_json(self) -> bytes:
        """Return canonical JSON."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "StreamState":
        """Read the state in `data`."""
        facts: dict[str, Any] = json.loads(data)
        del facts["format"]
        partitions = {
            int(number): PartitionProgress(**one) for number, one in facts.pop("partitions").items()
        }
        return cls(**facts, partitions=partitions)


def _lowest_progress(partitions: Mapping[int, PartitionProgress]) -> int | None:
    """Return the least event time up to which each partition was read; None if one was not read at all.

    A partition that was read to its end does not hold the others back if it has no message yet, or none of the last day
    of event time.
    """
    newest = max((one.newest for one in partitions.values() if one.newest is not None), default=None)
    if newest is None:
        return None
    recent = newest - _IDLE // timedelta(microseconds=1)
    holding = [
        one.newest
        for one in partitions.values()
        if one.next < one.end or (one.newest is not None and one.newest >= recent)
    ]
    read = [one for one in holding if one is not None]
    return min(read) if len(read) == len(holding) else None


Moments = tuple[datetime, datetime]
"""Time from one moment up to and without another."""


@dataclass(frozen=True, slots=True)
class LogVersion:
    """The log at one commit of main."""

    commit_id: str
    state: StreamState | None
    """None if nothing was landed yet."""
    segments: Mapping[str, Sequence[ObjectStat]]
    """Day, hour, or `DEAD_LETTERS` → its files, oldest first. Hours are those of a table that was hourly."""

    @property
    def chunk(self) -> int:
        """Number of commits that landed."""
        return self.state.chunk if self.state else 0

    def sections(self, time_zone: str) -> "Sections":
        """Return the days and hours with messages. Days begin in `time_zone`."""
        return Sections((one for one in self.segments if one != layout.DEAD_LETTERS), time_zone)

    def version_of(self, sections: Iterable[str]) -> str | None:
        """Return the number of the last commit with messages of these sections."""
        numbers = [_number(self.segments[section][-1]) for section in sections]
        return str(max(numbers)) if numbers else None


class Sections:
    """Days and hours of a stream, to be found by time. A table that had days before it had hours has both."""

    def __init__(self, keys: Iterable[str], time_zone: str) -> None:
        self._times = {key: _time_of(key, time_zone) for key in keys}
        self._keys = sorted(self._times, key=lambda key: (self._times[key][0], key))
        self._begins = [self._times[key][0] for key in self._keys]

    def within(self, time: Moments | None) -> list[str]:
        """Return the days and hours that overlap `time`, oldest first; all if it is None."""
        if time is None:
            return list(self._keys)
        low, high = bisect_left(self._begins, time[0] - _LONGEST), bisect_left(self._begins, time[1])
        return [key for key in self._keys[low:high] if time[0] < self._times[key][1]]

    def is_cut(self, key: str, time: Moments | None) -> bool:
        """True if a part of a day or hour lies outside `time`."""
        first, end = self._times[key]
        return time is not None and not (time[0] <= first and end <= time[1])


def _time_of(key: str, time_zone: str) -> Moments:
    first = begin_of_key(key)
    if first is None:
        raise ValueError(f"{key} is neither a day nor an hour")
    return begin_of(first, time_zone), begin_of(after(first), time_zone)


class StreamLog:
    """Messages of the stream behind one table."""

    def __init__(self, store: VersionedStore, table: str) -> None:
        self._store = store
        self._table = table

    def newest(self) -> LogVersion:
        """Return the log as main holds it now."""
        return self._at(self._store.resolve(MAIN))

    def _at(self, commit_id: str) -> LogVersion:
        path = layout.stream_state_path(self._table)
        state: StreamState | None = None
        with suppress(ObjectNotFound):
            state = StreamState.from_json(self._store.fetch(commit_id, [path])[path].read_bytes())
        segments: dict[str, list[ObjectStat]] = defaultdict(list)
        for one in self._store.list(commit_id, layout.stream_prefix(self._table)):
            if (place := layout.section_of_segment(one.path)) is not None:
                segments[place[0]].append(one)
        return LogVersion(commit_id, state, dict(segments))

    def read(self, version: LogVersion, sections: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the messages of days or hours, one frame per file."""
        paths = [one.path for section in sections for one in version.segments.get(section, ())]
        local = self._store.fetch(version.commit_id, paths) if paths else {}
        for path in paths:
            yield pl.read_parquet(local[path])

    def newest_dead_letters(self, version: LogVersion, count: int) -> list[dict[str, Any]]:
        """Return the newest dead letters, the newest first, by the names in `DEAD_LETTER`."""
        found: list[dict[str, Any]] = []
        for one in reversed(version.segments.get(layout.DEAD_LETTERS, ())):
            if len(found) >= count:
                break
            local = self._store.fetch(version.commit_id, [one.path])[one.path]
            found += pl.scan_parquet(local).tail(count - len(found)).collect().reverse().rows(named=True)
        return found

    def append(self, version: LogVersion, state: StreamState, news: Mapping[str, pl.DataFrame]) -> LogVersion:
        """Land messages together with the offsets in `state`; return the new version.

        `news` is day, hour, or `DEAD_LETTERS` → messages. Raises `MergeConflict` if another process landed since
        `version`, and `LakeBusy`; then nothing changed.
        """
        state = replace(state, chunk=version.chunk + 1)
        puts: dict[str, bytes] = {layout.stream_state_path(self._table): state.to_json()}
        older: list[str] = []
        for section, frame in news.items():
            content, merged = self._merged(version, section, frame)
            puts[layout.segment_path(self._table, section, state.chunk)] = content
            older += [one.path for one in merged]
        facts = {"table": self._table, "audit": "passed", "stream": state.topic, "chunk": str(state.chunk)}
        message = f"Land messages of {state.topic} for {self._table}"
        branch = layout.audit_branch(self._table, "stream", str(state.chunk))
        self._store.create_branch(branch, version.commit_id)
        try:
            side_by_side(lambda item: self._store.put(branch, *item), puts.items())
            side_by_side(lambda path: self._store.remove(branch, path), older)
            self._store.commit(branch, message, facts)
            head = self._store.merge(branch, MAIN, message, facts)
        finally:
            with suppress(LakeError):  # an error here would hide the one above
                self._store.delete_branch(branch)
        return self._at(head)

    def _merged(
        self, version: LogVersion, section: str, frame: pl.DataFrame
    ) -> tuple[bytes, list[ObjectStat]]:
        """Return the file of `frame` and of the last files that are not much larger, and those files."""
        files, merged = list(version.segments.get(section, ())), list[ObjectStat]()
        content = _encoded(frame)
        while files and files[-1].size <= 2 * len(content) and frame.estimated_size() <= _MERGED_BYTES:
            last = files.pop()
            merged.append(last)
            local = self._store.fetch(version.commit_id, [last.path])[last.path]
            frame = pl.concat([pl.read_parquet(local), frame])
            content = _encoded(frame)
        return content, merged


def _number(segment: ObjectStat) -> int:
    place = layout.section_of_segment(segment.path)
    return place[1] if place else 0


def _encoded(frame: pl.DataFrame) -> bytes:
    (content,) = parquet.encode(frame)
    return content
