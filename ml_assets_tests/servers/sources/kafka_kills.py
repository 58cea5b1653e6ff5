"""A topic that is read by processes of which each is killed (SIGKILL) at a random moment, until all of it is read.

Messages: sales of ten days in three partitions. Some are repeated by the producer, some come a day late, some are no
rows. Used by a test and, with a million messages, by `benchmarks/claims/servers/kafka_kills.py`.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from ml_assets.components import Dataset
from ml_assets.data.sources.kinds import open_source
from ml_assets.data.sources.protocol import Span
from ml_assets.extras.streams.kafka_source import KafkaReader
from ml_assets_tests.faults.child_processes import forkserver
from ml_assets_tests.servers.sources.streams import SERVERS_ENV, Stream, message
from resources.platform import Platform
from resources.settings import Settings

FIRST = datetime(2024, 5, 1, tzinfo=UTC)
DAYS, PARTITIONS = 10, 3
_POISON = b'{"sale": "unknown"}'
_ALIVE_SECONDS = 600.0


def spec(topic: str) -> Any:
    """Return the declaration of the table that reads the topic."""
    contract = {
        "primary_key": ["sale"],
        "event_time": "sold_at",
        "columns": [
            {"name": "sale", "dtype": "int64"},
            {"name": "sold_at", "dtype": "datetime"},
            {"name": "price", "dtype": "float64"},
        ],
    }
    return Dataset.spec_type.model_validate(
        {
            "name": "sales",
            "partitions": {"cadence": "daily", "start": FIRST.date()},
            "contract": contract,
            "source": {"kind": "kafka", "servers_env": SERVERS_ENV, "topic": topic},
        }
    )


def reader(home: Path, topic: str) -> KafkaReader:
    """Return the reader of the topic with an embedded lake in `home`."""
    declared = spec(topic)
    opened = open_source(declared.source, declared.source_table, Platform(Settings(home=home)))
    assert isinstance(opened, KafkaReader)
    return opened


def fill(stream: Stream, sales: int, seed: int) -> int:
    """Send `sales` sales and the disturbances; return the number of messages."""
    draw, sent = random.Random(seed), 0
    for partition in range(PARTITIONS):
        values = list(_values(range(partition, sales, PARTITIONS), sales, draw))
        stream.send(values, partition)
        sent += len(values)
    return sent


def _values(numbers: range, sales: int, draw: random.Random) -> Iterator[bytes]:
    for number in numbers:
        moment = FIRST + timedelta(days=DAYS) * number / sales
        if draw.random() < 0.02:  # a day of delay
            moment = max(FIRST, moment - timedelta(days=1))
        value = message(sale=number, sold_at=moment, price=draw.random())
        yield value
        if draw.random() < 0.01:  # repeated by the producer
            yield value
        if draw.random() < 0.001:
            yield _POISON


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Messages that arrived after all kills."""

    killed: int
    """Processes that died in the middle of the topic."""
    commits: int
    lost: int
    """Messages that are neither in a day nor among the dead letters, and sales without a row."""
    doubled: int
    """Messages that landed twice, and sales with two rows."""
    dead: int
    seconds: float


def run(home: Path, stream: Stream, sales: int, sent: int, kills: int, chunk: int, seed: int) -> Outcome:
    """Kill `kills` readers at random moments, let the last one end, and count."""
    draw, began = random.Random(seed), time.monotonic()
    killed, rate = 0, 20_000.0
    for number in range(kills):
        before = _landed(home, stream)
        share = (sent - before) / (kills - number + 2)  # some are left for the end
        lives = draw.uniform(0, 1.6) * share / rate
        if _killed_after(home, stream, chunk, lives):
            killed += 1
            gained = _landed(home, stream) - before
            if gained and lives > 0.05:
                rate = 0.7 * rate + 0.3 * gained / lives
    child, _ = _child(home, stream, chunk)
    child.join(_ALIVE_SECONDS)
    assert child.exitcode == 0
    return _counted(home, stream, sales, sent, killed, time.monotonic() - began)


def _landed(home: Path, stream: Stream) -> int:
    state = reader(home, stream.topic).landed.state
    return 0 if state is None else sum(one.next for one in state.partitions.values())


def _child(home: Path, stream: Stream, chunk: int) -> tuple[ForkServerProcess, Connection]:
    """Start a process that reads the topic to its end; it says when it begins."""
    context = forkserver(__name__)
    hears, says = context.Pipe(duplex=False)
    child = context.Process(target=_read_to_the_end, args=(home, stream.servers, stream.topic, chunk, says))
    child.start()
    return child, hears


def _killed_after(home: Path, stream: Stream, chunk: int, seconds: float) -> bool:
    """Start a reader and kill it `seconds` after it began to read; return False if it had ended before."""
    child, hears = _child(home, stream, chunk)
    hears.recv()
    time.sleep(seconds)
    child.kill()
    child.join()
    return child.exitcode == -signal.SIGKILL


def _counted(home: Path, stream: Stream, sales: int, sent: int, killed: int, seconds: float) -> Outcome:
    opened = reader(home, stream.topic)
    version = opened.landed
    assert version.state is not None
    offsets: Counter[tuple[int, int]] = Counter()
    for frame in opened.log.read(version, list(version.segments)):
        offsets.update(frame.select("partition", "offset").iter_rows())
    rows: Counter[int] = Counter()
    for day in range(DAYS):
        first = (FIRST + timedelta(days=day)).date()
        rows.update(opened.read(Span(first, first + timedelta(days=1))).frame["sale"].to_list())
    return Outcome(
        killed=killed,
        commits=version.state.chunk,
        lost=(sent - len(offsets)) + (sales - len(rows)),
        doubled=(offsets.total() - len(offsets)) + (rows.total() - len(rows)),
        dead=sum(version.state.dead.values()),
        seconds=seconds,
    )


def _read_to_the_end(home: Path, servers: str, topic: str, chunk: int, says: Connection) -> None:
    os.environ[SERVERS_ENV] = servers
    opened = reader(home, topic)
    says.send("reads")
    opened.land(chunk)
