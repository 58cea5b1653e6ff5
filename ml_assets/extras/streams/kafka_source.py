"""Source `kafka`: a topic of JSON messages into days by event time, each message exactly once.

A read first lands all new messages in the log of the stream (`kafka_log`), each chunk in one commit with its offsets.
The rows of a day then come from that log alone, so they stay when the topic deletes its messages.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from ml_assets.data.sources.file_formats import parsed
from ml_assets.data.sources.json_messages import BadMessage, MessageDecoder
from ml_assets.data.sources.protocol import (
    Look,
    PageFacts,
    ReadPartition,
    SourceReader,
    SourceRefused,
    SourceRows,
    SourceTable,
    Span,
    differing,
)
from ml_assets.data.sources.text_values import TextForm, ValueRefused
from ml_assets.data.validation.contract import Contract
from ml_assets.extras.streams.kafka_log import (
    Landing,
    LandingRules,
    LogVersion,
    Moments,
    StreamLog,
    require_same_topic,
)
from ml_assets.extras.streams.kafka_topic import CHUNK_MESSAGES, Topic
from ml_assets.extras.streams.sections import KafkaSource
from ml_assets.foundation.days import HOUR
from resources.platform import Platform

HIDDEN = "(hidden)"
_SHOWN_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that is no row."""

    topic: str
    partition: int
    offset: int
    reason: str
    bytes: int
    """Size of the whole message."""
    message: str
    """First bytes of it; `HIDDEN` if the contract has a sensitive column."""


def newest_dead_letters(
    log: StreamLog, version: LogVersion, contract: Contract | None, count: int
) -> Sequence[DeadLetter]:
    """Return the newest dead letters, the newest first. Without a contract, no bytes are shown."""
    topic = version.state.topic if version.state else ""
    is_hidden = contract is None or any(column.sensitive for column in contract.by_name.values())
    return [
        DeadLetter(
            topic=topic,
            partition=one["partition"],
            offset=one["offset"],
            reason=one["reason"],
            bytes=one["size"],
            message=HIDDEN if is_hidden else (one["value"] or b"")[:_SHOWN_BYTES].decode(errors="replace"),
        )
        for one in log.newest_dead_letters(version, count)
    ]


SENSOR_SECONDS = 20.0
"""Seconds after which `latest` begins no further chunk, because Dagster ends a sensor after a minute."""
_LOOKED_AT = 100
"""Newest messages that `check` decodes."""
_SHOWN_DEAD = 20


class KafkaReader(SourceReader):
    """Rows of a topic, from its log in the lake. Reading and `latest` land new messages first."""

    looks_at = "new messages of the topic"

    def __init__(self, section: KafkaSource, table: SourceTable, platform: Platform) -> None:
        self._section = section
        super().__init__(table, platform)
        self._platform = platform
        self._topic = Topic(table.name, section.topic, section.client_settings(platform), self._patience)
        self._landed: LogVersion | None = None

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`. The first read lands all messages that the topic holds at that moment.

        Raises `SourceRefused` for a day without messages that the stream has not passed, and if messages landed under
        another contract do not fit today's.
        """
        version = self._landed or self.land()
        state = version.state
        within = None if span is None else span.moments(self._table.time_zone)
        there = version.sections(self._table.time_zone)
        limits = {one: within if there.is_cut(one, within) else None for one in there.within(within)}
        watermark = state.watermark_moment if state else None
        ends = None if within is None else within[1]
        if not limits and (watermark is None or (ends is not None and watermark < ends)):
            reached = f"its watermark is {watermark.isoformat()}" if watermark else "it has no watermark yet"
            raise SourceRefused(
                f"{self._table.name}: topic {self._section.topic} has no message for "
                f"{span.first if span else 'this table'} yet, and {reached}: wait for the stream to pass this time"
            )
        frame = self._rows(version, limits)
        rows = frame.unique(maintain_order=True)
        return SourceRows(
            frame=rows,
            returned=frame.height,
            repeated=frame.height - rows.height,
            # Bounded by the partition's end: else each later read would state another watermark for the same rows.
            watermark=watermark if ends is None or watermark is None else min(watermark, ends),
            version=version.version_of(limits),
        )

    def latest(self) -> date | None:
        """See `SourceReader`. Lands new messages, for `SENSOR_SECONDS` at most."""
        version = self.land(seconds=SENSOR_SECONDS)
        watermark = version.state.watermark_moment if version.state else None
        if watermark is None:
            return None
        if self._table.is_hourly:
            return watermark.replace(minute=0, second=0, microsecond=0) - HOUR
        return watermark.astimezone(ZoneInfo(self._table.time_zone)).date() - timedelta(days=1)

    def land(self, chunk_messages: int = CHUNK_MESSAGES, seconds: float | None = None) -> LogVersion:
        """Land all messages up to the present ends of the partitions; return the log. Begin no chunk after `seconds`.

        Raises `SourceRefused`, `SourceAway`, and errors of the lake.
        """
        self._landed = None
        self._landed = self._landing.run(chunk_messages, seconds)
        return self._landed

    @property
    def landed(self) -> LogVersion:
        """The log as the last landing of this reader left it, or as main holds it now. Lands nothing."""
        return self._landed or self.log.newest()

    def look(self, read: Mapping[Span, ReadPartition], window: Collection[Span]) -> Look:
        """See `SourceReader`. Lands new messages. The log in the lake knows the versions of all partitions."""
        latest = self.latest()
        version = self.landed
        there = version.sections(self._table.time_zone)
        versions = {
            span: version.version_of(there.within(span.moments(self._table.time_zone))) for span in read
        }
        return Look(
            latest=latest,
            changed=differing(read, versions),
            cost={"days of landed messages": len(versions)},
        )

    def preview(self, rows: int) -> pl.DataFrame:
        """See `SourceReader`. Lands nothing; leaves out messages that are not JSON objects."""
        lines = [one for message in self._topic.newest(rows) if (one := _line(message.value)) is not None]
        if not lines:
            return pl.DataFrame()
        try:
            return parsed(b"\n".join(lines), "jsonl", "", None, TextForm())
        except ValueRefused as error:
            raise SourceRefused(
                f"{self._table.name}: a field of the newest {len(lines)} messages of {self._section.topic} has values "
                f"of different types ({error}): change their producer"
            ) from error

    def check(self) -> Sequence[str]:
        """See `SourceReader`. Lands nothing; decodes the newest messages."""
        require_same_topic(self._table.name, self._rules, self.log.newest().state, self._topic.facts())
        bad: Counter[str] = Counter()
        newest, decoder = self._topic.newest(_LOOKED_AT), self._decoder()
        for message in newest:
            try:
                decoder.decode(message.value)
            except BadMessage as error:
                bad[str(error)] += 1
        return [
            f"{self._table.name}: {count} of the newest {len(newest)} messages of {self._section.topic} would be dead "
            f"letters ({reason}): change their producer, or the contract"
            for reason, count in bad.most_common()
        ]

    def facts(self) -> PageFacts:
        """See `SourceReader`. Shows no bytes of dead letters if the contract has a sensitive column."""
        version = self.landed
        state = version.state
        if state is None:
            return {}
        moment = state.watermark_moment
        return {
            "stream watermark": moment.isoformat() if moment else "none yet",
            "messages landed": state.messages,
            "dead letters": sum(state.dead.values()),
            "newest dead letters": [
                asdict(one) for one in newest_dead_letters(self.log, version, self._contract, _SHOWN_DEAD)
            ],
        }

    def close(self) -> None:
        """Close the connection, and land new messages again at the next read."""
        self._landed = None
        self._topic.close()

    @property
    def log(self) -> StreamLog:
        """The log of the stream in the lake."""
        return StreamLog(self._platform.lake, self._table.name)

    @property
    def _contract(self) -> Contract:
        if self._table.contract is None:
            raise SourceRefused(
                f"{self._table.name}: a topic needs a contract to be read: add it to defs.yaml"
            )
        return self._table.contract

    def _decoder(self, *, absent_is_null: bool = False) -> MessageDecoder:
        column = self._section.time_column or self._contract.event_time or ""
        return MessageDecoder(self._contract, column, absent_is_null=absent_is_null)

    @property
    def _rules(self) -> LandingRules:
        section = self._section
        return LandingRules(
            topic=section.topic,
            generation=section.generation,
            lateness=timedelta(hours=section.lateness_hours),
            reopened=timedelta(days=section.reopen_days),
            future=None
            if self._contract.max_future_hours is None
            else timedelta(hours=self._contract.max_future_hours),
        )

    @property
    def _landing(self) -> Landing:
        return Landing(self._table, self._rules, self._topic, self.log, self._decoder())

    def _rows(self, version: LogVersion, limits: Mapping[str, Moments | None]) -> pl.DataFrame:
        """Return the rows of days and hours, one for each message. `limits`: day or hour → the time of its rows that
        count; None if all do."""
        decoder = self._decoder(absent_is_null=True)
        frames: list[pl.DataFrame] = []
        unfit: list[tuple[int, int, str]] = []
        for section, limit in limits.items():
            for messages in self.log.read(version, [section]):
                rows: list[Any] = []
                for _, partition, offset, value in messages.iter_rows():
                    try:
                        row = decoder.decode(value)
                        if limit is None or limit[0] <= decoder.moment(row) < limit[1]:
                            rows.append(row)
                    except BadMessage as error:
                        unfit.append((partition, offset, str(error)))
                frames.append(decoder.frame(rows))
        if unfit:
            partition, offset, why = unfit[0]
            raise SourceRefused(
                f"{self._table.name}: {len(unfit)} messages of {next(iter(limits))} do not fit the contract, which "
                f"changed since they landed. The first is offset {offset} of partition {partition}: {why}. Make a new "
                "column nullable, or choose a wider type"
            )
        if not frames:
            return decoder.frame([])
        return pl.concat(frames)


def _line(value: bytes | None) -> bytes | None:
    """Return a JSON object as one line; None for another message."""
    try:
        document: object = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return json.dumps(document).encode() if isinstance(document, dict) else None
