"""Client of one topic of Kafka: its identity and ends, and its messages from given offsets on, in chunks.

Offsets never come from Kafka's consumer groups: the caller states where to begin. Not here: what messages mean
(`json_messages`), where they land (`stream_log`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from ml_assets.data.sources.protocol import SourceAway, SourceRefused
from resources.retry import patiently

Answer = TypeVar("Answer")

CHUNK_MESSAGES = 100_000
CHUNK_BYTES = 32 * 2**20
"""A chunk ends when it has as many messages or bytes of values."""
_BATCH = 100
"""Messages that the client returns at once. A message may have a megabyte."""
_ANSWER_SECONDS = 10.0
_TOPIC_SECONDS = 5.0
"""Seconds to wait for a topic that the broker does not know, because a broker that just started knows none."""


class TopicGone(SourceRefused):
    """The broker has no such topic, or lacks partitions that it had."""


class TopicRecreated(SourceRefused):
    """The topic is another one than that which was read before, so the stored offsets mean nothing in it."""


class MessagesLost(SourceRefused):
    """The topic deleted messages before they were read."""


class Message(NamedTuple):
    """One message as the broker holds it."""

    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as it is now."""

    id: str
    """Identity, which a recreated topic does not share; empty if the broker does not tell."""
    bounds: Mapping[int, tuple[int, int]]
    """Partition → offset of the oldest message, offset after the newest one."""


@dataclass(frozen=True, slots=True)
class TopicChunk:
    """Messages read at once."""

    messages: Sequence[Message]
    """By partition and offset."""
    next: Mapping[int, int]
    """Partition → offset after its last message in this chunk, or after what it skips, such as aborted transactions."""


class Topic:
    """Client of one topic. Every method raises `SourceRefused` or `SourceAway`. Not safe for threads."""

    def __init__(self, who: str, name: str, settings: Mapping[str, str], patience: float) -> None:
        """`who`: the table, for messages. `settings`: of librdkafka. `patience`: seconds of retries."""
        self._who = who
        self._name = name
        self._settings = dict(settings)
        self._patience = patience
        self._opened: Consumer | None = None
        self._last_error = ""
        self._refused: KafkaError | None = None

    def facts(self) -> TopicFacts:
        """Return identity and bounds of the topic."""
        bounds = self._ask(self._bounds)
        return TopicFacts(self._ask(self._identity), bounds)

    def chunks(
        self,
        start: Mapping[int, int],
        until: Mapping[int, int],
        messages: int = CHUNK_MESSAGES,
        seconds: float | None = None,
    ) -> Iterator[TopicChunk]:
        """Yield the messages from `start` on until each partition has reached `until` (exclusive), in chunks.

        Begin no chunk after `seconds`.
        """
        waiting = {one for one, offset in start.items() if offset < until[one]}
        if not waiting:
            return
        began = time.monotonic()
        consumer, reached = self._consumer, dict(start)
        consumer.assign([self._place(one, start[one]) for one in sorted(waiting)])
        try:
            while waiting and (seconds is None or time.monotonic() - began < seconds):
                yield self._chunk(consumer, reached, waiting, until, messages)
        finally:
            consumer.unassign()

    def newest(self, count: int) -> list[Message]:
        """Return about the `count` newest messages, by partition and offset."""
        bounds = self.facts().bounds
        each = -(-count // max(len(bounds), 1))
        start = {one: max(low, high - each) for one, (low, high) in bounds.items()}
        chunks = self.chunks(start, {one: high for one, (_, high) in bounds.items()})
        return [one for chunk in chunks for one in chunk.messages][:count]

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _chunk(
        self,
        consumer: Consumer,
        reached: dict[int, int],
        waiting: set[int],
        until: Mapping[int, int],
        limit: int,
    ) -> TopicChunk:
        """Read one chunk; move `reached` on and remove the partitions that are done from `waiting`."""
        messages, size, heard = list[Message](), 0, time.monotonic()
        while waiting and len(messages) < limit and size < CHUNK_BYTES:
            for one in self._consumed(consumer, min(_BATCH, limit - len(messages))):
                heard = time.monotonic()
                partition, offset = one.partition(), one.offset()
                if one.error() is not None:  # the end of a partition: all other errors were raised
                    reached[partition] = max(reached[partition], offset)
                    waiting.discard(partition)
                elif offset >= reached[partition]:
                    value = one.value()
                    messages.append(Message(partition, offset, value))
                    size += len(value or b"")
                    reached[partition] = offset + 1
                    if reached[partition] >= until[partition]:
                        waiting.discard(partition)
            if time.monotonic() - heard > self._patience:
                raise self._away()
        return TopicChunk(sorted(messages, key=lambda one: one[:2]), dict(reached))

    def _consumed(self, consumer: Consumer, count: int) -> list[Any]:
        """Return messages and ends of partitions; wait a moment for them. Raises `SourceRefused` for other errors."""
        found: list[Any] = []
        try:
            answers = consumer.consume(count, timeout=0.1)
        except KafkaException as error:
            raise self._translated(error) from error
        for one in answers:
            error = one.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                found.append(one)
            elif not _may_pass(error):
                raise self._refusal(error)
            else:
                self._note(error)
        return found

    def _bounds(self) -> dict[int, tuple[int, int]]:
        consumer = self._consumer
        # A client that cannot reach any broker answers only after the whole time.
        seconds = min(_ANSWER_SECONDS, max(self._patience / 2, 0.5))
        try:
            listed = consumer.list_topics(self._name, timeout=seconds)
        except KafkaException:
            consumer.poll(0)  # delivers the errors of connections, which say why
            raise
        found = listed.topics[self._name]
        if found.error is not None:
            raise KafkaException(found.error)
        bounds: dict[int, tuple[int, int]] = {}
        for number in sorted(found.partitions):
            answer = consumer.get_watermark_offsets(self._place(number), timeout=_ANSWER_SECONDS)
            if answer is None:
                raise TimeoutError(f"partition {number} did not tell its offsets")
            bounds[number] = answer
        return bounds

    def _identity(self) -> str:
        admin = AdminClient(dict[str, Any](self._settings))
        described = admin.describe_topics(
            TopicCollection([self._name]), request_timeout=min(_ANSWER_SECONDS, max(self._patience, 0.5))
        )
        try:
            return str(described[self._name].result().topic_id)
        except KafkaException as error:
            if _may_pass(error.args[0]):
                raise
            return ""  # the user may read, but not ask

    def _place(self, partition: int, offset: int | None = None) -> TopicPartition:
        if offset is None:
            return TopicPartition(self._name, partition)
        return TopicPartition(self._name, partition, offset)

    @property
    def _consumer(self) -> Consumer:
        if self._opened is None:
            self._opened = Consumer(
                {
                    **self._settings,
                    "group.id": "ml-assets",  # the client requires one; nothing is stored in it
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "queued.max.messages.kbytes": 16 * 2**10,
                    "reconnect.backoff.max.ms": 1_000,
                    "error_cb": self._note,
                }
            )
        return self._opened

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._last_error:  # it follows the reason
            self._last_error = error.str()
        if not _may_pass(error):  # a wrong password; the call itself only says that nobody answered
            self._refused = error

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`; retry while the broker does not answer. Raises our errors only."""

        def may_pass(error: BaseException) -> bool:
            if self._refused is not None:
                return False
            if isinstance(error, KafkaException):
                return _is_unknown(error.args[0]) or _may_pass(error.args[0])
            return isinstance(error, TimeoutError)

        def seconds(error: BaseException) -> float:
            is_unknown = isinstance(error, KafkaException) and _is_unknown(error.args[0])
            return min(self._patience, _TOPIC_SECONDS) if is_unknown else self._patience

        try:
            return patiently(call, may_pass, seconds, first_pause=0.2, longest_pause=5.0)
        except KafkaException as error:
            raise self._translated(error) from error
        except TimeoutError as error:
            self._last_error = str(error)
            raise self._away() from error

    def _translated(self, error: Exception) -> SourceRefused:
        answer: KafkaError = self._refused or error.args[0]
        if _may_pass(answer):
            self._last_error = self._last_error or answer.str()
            return self._away()
        return self._refusal(answer)

    def _away(self) -> SourceAway:
        # A broker that expects the other kind of connection looks like one that is away.
        other = "without" if "SSL" in self._settings.get("security.protocol", "") else "with"
        return SourceAway(
            f"{self._who}: Kafka did not answer for {self._patience:g} s about topic {self._name}: "
            f"{self._last_error or 'no connection'}. If it runs, it may expect connections {other} source.tls"
        )

    def _refusal(self, error: KafkaError) -> SourceRefused:
        if _is_unknown(error):
            return TopicGone(
                f"{self._who}: the broker has no topic {self._name}: correct source.topic, or make the topic. If it "
                "was deleted and made again, raise source.generation by one"
            )
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return MessagesLost(
                f"{self._who}: topic {self._name} deleted messages while they were read: raise its retention.ms, and "
                "source.generation by one to go on with the oldest message that it holds"
            )
        if _is_certificate(error):
            return SourceRefused(
                f"{self._who}: the certificate of Kafka's broker is not trusted, or is for another host: let the "
                "variable that source.ca_file_env names hold the path of the certificate that signed it, and name the "
                f"brokers as their certificates do ({error.str()})"
            )
        return SourceRefused(
            f"{self._who}: Kafka refused topic {self._name}: {error.str()}. Check the user's rights, and the variables "
            "that the source section names"
        )


def _is_unknown(error: KafkaError) -> bool:
    return error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )


def _is_certificate(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL and "certificate verify failed" in error.str()


def _may_pass(error: KafkaError) -> bool:
    """True if another try may succeed."""
    refused = (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._FATAL,
    )
    return not _is_unknown(error) and not _is_certificate(error) and error.code() not in refused
