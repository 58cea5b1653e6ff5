"""A topic of the real Kafka: made, filled, deleted; and sales as messages."""

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import date, datetime
from functools import cached_property
from typing import Any

import polars as pl
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

SERVERS_ENV = "STREAM_SERVERS"
"""Environment variable that the declarations of these tests name."""
_SECONDS = 30.0


class Stream:
    """One topic."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic

    @property
    def source(self) -> dict[str, Any]:
        """The section that reads it."""
        return {"kind": "kafka", "servers_env": SERVERS_ENV, "topic": self.topic}

    def make(self, partitions: int = 2, **settings: str) -> "Stream":
        """Make the topic; wait until a deleted one of its name is gone."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        for _ in range(100):
            made = self._admin.create_topics([NewTopic(self.topic, partitions, 1, config=config)])
            if _done(made[self.topic], "already exists"):
                self._wait_for(partitions)
                return self
            time.sleep(0.1)
        raise TimeoutError(f"{self.topic} is not gone")

    def delete(self) -> None:
        """Delete the topic."""
        _done(self._admin.delete_topics([self.topic])[self.topic], "Unknown topic")

    def grow(self, partitions: int) -> None:
        """Add partitions, up to this number in all."""
        _done(self._admin.create_partitions([NewPartitions(self.topic, partitions)])[self.topic], "")
        self._wait_for(partitions)

    def cut(self, partition: int, offset: int) -> None:
        """Delete the messages of a partition before `offset`, as its retention does."""
        place = TopicPartition(self.topic, partition, offset)
        self._admin.delete_records([place])[place].result(_SECONDS)

    @contextmanager
    def transaction(self, values: Iterable[bytes], *, commit: bool) -> Iterator[None]:
        """Send messages in a transaction that is open during the block; commit or abort it then."""
        producer = Producer(
            {"bootstrap.servers": self.servers, "log_level": 0, "transactional.id": self.topic}
        )
        producer.init_transactions(_SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, value, partition=0)
        producer.flush(_SECONDS)
        try:
            yield
        finally:
            (producer.commit_transaction if commit else producer.abort_transaction)(_SECONDS)

    def send(self, values: Iterable[bytes | None], partition: int = 0) -> None:
        """Append messages to one partition; return when the broker has them."""
        failed: list[object] = []
        producer = Producer(
            {"bootstrap.servers": self.servers, "log_level": 0, "enable.idempotence": True, "linger.ms": 5}
        )
        for value in values:
            while True:
                try:
                    producer.produce(
                        self.topic,
                        value,
                        partition=partition,
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(_SECONDS) == 0
        assert not failed, failed[0]

    def _wait_for(self, partitions: int) -> None:
        """Wait until the broker names all partitions: it makes them after it has answered."""
        for _ in range(100):
            if len(self._admin.list_topics(self.topic, _SECONDS).topics[self.topic].partitions) == partitions:
                return
            time.sleep(0.1)
        raise TimeoutError(f"{self.topic} has no {partitions} partitions")

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})


def messages(rows: pl.DataFrame) -> list[bytes]:
    """Return a message for each row."""
    return [message(**row) for row in rows.iter_rows(named=True)]


def message(**row: Any) -> bytes:
    """Return the message of one row."""
    return json.dumps(row, default=_text).encode()


def _text(value: object) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    raise TypeError(type(value))


def _done(future: "Future[None]", harmless: str) -> bool:
    """Wait for an order to the broker; return False if it refused it with words that hold `harmless`."""
    try:
        future.result(_SECONDS)
    except KafkaException as error:
        if harmless not in str(error):
            raise
        return False
    return True
