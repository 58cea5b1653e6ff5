"""Log of a topic in the lake: its messages by day, its dead letters, its offsets, and the landing of new messages.

One commit of main holds messages and offsets, so no crash loses or repeats a message. Two readers at once cannot both
land: both change the file of offsets, so the second merge is a conflict. A message is decoded here once: to know its
day, or the reason why it is a dead letter. Not here: the client (`kafka_topic`), and the rows of a day
(`kafka_source`).

Files are merged when a new one is at least half as large as the last one, so a day has few files, and each message is
written few times.
"""

import json
import random
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from ml_assets.data.sources.json_messages import (
    EPOCH,
    FIRST_EVENT,
    MICROSECOND,
    BadMessage,
    MessageDecoder,
    micros,
)
from ml_assets.data.sources.protocol import SourceRefused, SourceTable
from ml_assets.data.tables import layout, parquet
from ml_assets.data.tables.cadence import HOUR_KEY, begin_of_key
from ml_assets.data.tables.layout import DEAD_LETTERS, MAIN
from ml_assets.data.tables.publish.publish import TRIES
from ml_assets.extras.streams.kafka_topic import (
    MessagesLost,
    Topic,
    TopicChunk,
    TopicFacts,
    TopicRecreated,
)
from ml_assets.foundation.days import after, begin_of
from resources.lake import LakeBusy, LakeError, MergeConflict, ObjectNotFound, ObjectStat, VersionedStore
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
        return None if self.watermark is None else EPOCH + timedelta(microseconds=self.watermark)

    def advanced(self, partitions: Mapping[int, PartitionProgress], lateness: timedelta) -> "StreamState":
        """Return the state with further progress; the watermark never goes back."""
        found = _lowest_progress(partitions)
        known = [] if self.watermark is None else [self.watermark]
        if found is not None:
            known.append(max(FIRST_EVENT, found - lateness // MICROSECOND))
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
    recent = newest - _IDLE // MICROSECOND
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


_CLOCK_SLACK = timedelta(minutes=5)
"""Difference between clocks of machines that read the same topic."""


class ClockSetBack(SourceRefused):
    """The clock of this machine is behind an earlier read, so today's events would count as future ones."""


@dataclass(frozen=True, kw_only=True)
class LandingRules:
    """Keys of the section that decide where a message lands."""

    topic: str
    generation: int
    lateness: timedelta
    """Distance of the watermark from the lowest progress of a partition."""
    reopened: timedelta
    """Time before the watermark in which a late event is still a row."""
    future: timedelta | None
    """Time after the present in which an event is still a row; None: any time."""


class Landing:
    """Landing of one topic in the log of one table."""

    def __init__(
        self, table: SourceTable, rules: LandingRules, topic: Topic, log: StreamLog, decoder: MessageDecoder
    ) -> None:
        self._table = table
        self._rules = rules
        self._topic = topic
        self._log = log
        self._decoder = decoder

    def run(self, chunk_messages: int, seconds: float | None = None) -> LogVersion:
        """Land all messages up to the present ends of the partitions; return the log. Begin no chunk after `seconds`.

        If another process lands at the same time, go on from its offsets. Raises `SourceRefused`, `SourceAway`, and
        `LakeBusy` or `MergeConflict` after `TRIES` lost races in which nobody landed.
        """
        began, tries, version = time.monotonic(), 0, self._log.newest()
        while True:
            left = None if seconds is None else seconds - (time.monotonic() - began)
            if left is not None and left <= 0 and version.state is not None:
                return version
            try:
                return self._run(version, chunk_messages, left)
            except (MergeConflict, LakeBusy):
                before, version = version.chunk, self._log.newest()
                tries = tries + 1 if version.chunk == before else 0
                if tries == TRIES:
                    raise
                time.sleep(random.uniform(0.5, 1.5) * 0.05 * 2**tries)

    def _run(self, version: LogVersion, chunk_messages: int, seconds: float | None) -> LogVersion:
        topic = self._topic.facts()
        require_same_topic(self._table.name, self._rules, version.state, topic)
        state = self._begin(version.state, topic)
        start = {number: one.next for number, one in state.partitions.items()}
        until = {number: high for number, (_, high) in topic.bounds.items()}
        for chunk in self._topic.chunks(start, until, chunk_messages, seconds):
            if chunk.next == {number: one.next for number, one in state.partitions.items()}:
                continue  # nothing but a transaction that is still open
            state, news = self._sorted(state, chunk, until)
            version = self._log.append(version, state, news)
            state = version.state or state
        return version

    def _begin(self, state: StreamState | None, topic: TopicFacts) -> StreamState:
        """Return the state to go on from: that of the last commit, with partitions that the topic got since."""
        if state is None or state.generation < self._rules.generation:
            fresh = StreamState(topic=self._rules.topic, topic_id=topic.id, generation=self._rules.generation)
            kept = (
                {}
                if state is None
                else {"chunk": state.chunk, "messages": state.messages, "dead": state.dead}
            )
            state = replace(fresh, **kept)
        else:
            now, read_at = datetime.now(UTC), datetime.fromisoformat(state.read_at)
            if now < read_at - _CLOCK_SLACK:
                raise ClockSetBack(
                    f"{self._table.name}: the clock of this machine says {now.isoformat(timespec='seconds')}, and the "
                    f"topic was last read at {read_at.isoformat(timespec='seconds')}: set the clock"
                )
        added = {
            number: PartitionProgress(low, high)
            for number, (low, high) in topic.bounds.items()
            if number not in state.partitions
        }
        return replace(state, topic_id=state.topic_id or topic.id, partitions={**state.partitions, **added})

    def _sorted(
        self, state: StreamState, chunk: TopicChunk, until: Mapping[int, int]
    ) -> tuple[StreamState, dict[str, pl.DataFrame]]:
        """Return the state after a chunk, and its messages by day or hour, with the dead letters among them."""
        now = datetime.now(UTC)
        latest = None if self._rules.future is None else micros(now + self._rules.future)
        earliest = None if state.watermark is None else state.watermark - self._rules.reopened // MICROSECOND
        good: list[tuple[Any, ...]] = []
        times: list[int] = []
        dead: list[tuple[Any, ...]] = []
        counts: Counter[str] = Counter()
        newest = {number: one.newest for number, one in state.partitions.items()}
        for partition, offset, value in chunk.messages:
            try:
                moment = self._decoder.event_time(self._decoder.decode(value))
                if latest is not None and moment > latest:
                    raise BadMessage("future", "its event time is in the future")
                newest[partition] = max(moment, newest[partition] or moment)
                if earliest is not None and moment < earliest:
                    raise BadMessage("late", "it came later than source.reopen_days allows")
            except BadMessage as error:
                counts[error.kind] += 1
                size = len(value or b"")
                kept = None if value is None else value[:DEAD_BYTES]
                dead.append((state.generation, partition, offset, kept, size, error.kind, str(error)))
            else:
                good.append((state.generation, partition, offset, value))
                times.append(moment)
        partitions = {
            number: PartitionProgress(
                next=chunk.next.get(number, one.next),
                end=max(until[number], chunk.next.get(number, one.next)),
                newest=newest[number],
            )
            for number, one in state.partitions.items()
        }
        state = replace(
            state.advanced(partitions, self._rules.lateness),
            messages=state.messages + len(good),
            dead=dict(sorted((Counter(state.dead) + counts).items())),
            read_at=now.isoformat(),
        )
        news = self._by_partition(good, times)
        if dead:
            news[DEAD_LETTERS] = pl.DataFrame(dead, DEAD_LETTER, orient="row")
        return state, news

    def _by_partition(self, good: Sequence[tuple[Any, ...]], times: Sequence[int]) -> dict[str, pl.DataFrame]:
        """Return day → messages, by the days of the table's time zone; hour → messages for an hourly table."""
        if not good:
            return {}
        moments = pl.Series(times, dtype=pl.Int64()).cast(pl.Datetime("us", "UTC"))
        if self._table.is_hourly:
            sections = moments.dt.strftime(HOUR_KEY)
        else:
            sections = moments.dt.convert_time_zone(self._table.time_zone).dt.date().cast(pl.String)
        frame = pl.DataFrame(good, MESSAGE, orient="row").with_columns(section=sections)
        parts = frame.partition_by("section", as_dict=True, include_key=False, maintain_order=True)
        return {section: part for (section,), part in parts.items()}


def require_same_topic(who: str, rules: LandingRules, state: StreamState | None, topic: TopicFacts) -> None:
    """Raise `SourceRefused` unless the offsets in `state` are offsets of `topic` that it still holds.

    `who` is the table.
    """
    if state is None or state.generation < rules.generation:
        return
    again = f"source.generation: {state.generation + 1}"
    if state.generation > rules.generation:
        raise SourceRefused(
            f"{who}: the lake was read with source.generation {state.generation}, and the declaration says "
            f"{rules.generation}: write source.generation: {state.generation}"
        )
    if state.topic != rules.topic:
        raise TopicRecreated(
            f"{who}: its offsets are those of topic {state.topic}, not of {rules.topic}: to go on with the other "
            f"topic, set {again}"
        )
    remedy = f"set {again}: reading begins with its oldest message, and no landed row is lost or doubled"
    if state.topic_id and topic.id and state.topic_id != topic.id:
        raise TopicRecreated(f"{who}: topic {rules.topic} was deleted and made again: {remedy}")
    for number, one in state.partitions.items():
        if number not in topic.bounds or one.next > topic.bounds[number][1]:
            raise TopicRecreated(
                f"{who}: topic {rules.topic} no longer reaches offset {one.next} of partition {number}, which was "
                f"read: it was made again or cut off. Then {remedy}"
            )
        low = topic.bounds[number][0]
        if one.next < low:
            raise MessagesLost(
                f"{who}: topic {rules.topic} deleted the offsets {one.next} to {low - 1} of partition {number} "
                "before they were read. Let it keep messages for longer (retention.ms), and read it more often. "
                f"To go on without them, {remedy}"
            )
