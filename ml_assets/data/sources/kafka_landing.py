"""Landing of a topic's new messages in the lake, chunk by chunk, each with its offsets in one commit.

A message is decoded here once: to know its day, or the reason why it is a dead letter. Not here: the client
(`kafka_topic`), the files (`stream_log`), the rows of a day (`kafka_source`).
"""

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from ml_assets.data.sources.json_messages import BadMessage, MessageDecoder
from ml_assets.data.sources.kafka_topic import (
    MessagesLost,
    Topic,
    TopicChunk,
    TopicFacts,
    TopicRecreated,
)
from ml_assets.data.sources.protocol import SourceRefused, SourceTable
from ml_assets.data.sources.stream_log import (
    DEAD_BYTES,
    DEAD_LETTER,
    MESSAGE,
    LogVersion,
    PartitionProgress,
    StreamLog,
    StreamState,
)
from ml_assets.data.tables.cadence import HOUR_KEY
from ml_assets.data.tables.landing import TRIES
from ml_assets.data.tables.layout import DEAD_LETTERS
from resources.lake import LakeBusy, MergeConflict

_CLOCK_SLACK = timedelta(minutes=5)
"""Difference between clocks of machines that read the same topic."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
        latest = None if self._rules.future is None else _micros(now + self._rules.future)
        earliest = None if state.watermark is None else state.watermark - self._rules.reopened // _MICROSECOND
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


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
