"""A million messages of a real Kafka, read by processes that are killed (SIGKILL) 40 times at random moments.

Afterwards every message is counted in the lake by partition and offset, and every sale in the rows of its day. Some
messages are repeated by the producer, some come a day late, some are no rows. Kafka is started on loopback as the tests
do, so this runs only by name (`make bench ARGS=kafka_kills`).
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import variables
from ml_assets_tests.servers.sources import kafka_kills
from ml_assets_tests.servers.sources.streams import SERVERS_ENV, Stream

SALES, KILLS, CHUNK = 1_000_000, 40, 5_000
SEED = 11


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Yield the address of a Kafka that ends with the benchmark."""
    group = Servers(folder / "servers", ("kafka",))
    try:
        yield variables(group.up())["KAFKA_BOOTSTRAP_SERVERS"]
    finally:
        group.down()


def measure(*, quick: bool) -> list[Result]:
    """Return the claims about lost and doubled messages."""
    sales, kills, chunk = (SALES // 50, KILLS // 8, CHUNK // 10) if quick else (SALES, KILLS, CHUNK)
    with tempfile.TemporaryDirectory(prefix="kafka-kills-") as made, broker(Path(made)) as address:
        os.environ[SERVERS_ENV] = address
        stream = Stream(address, "sales").make(partitions=kafka_kills.PARTITIONS)
        sent = kafka_kills.fill(stream, sales, SEED)
        outcome = kafka_kills.run(Path(made) / "home", stream, sales, sent, kills, chunk, SEED)
    what = (
        f"{sent:,} messages, {outcome.killed} readers killed, {outcome.commits:,} commits, {outcome.dead:,} dead "
        f"letters, {outcome.seconds:.0f} s"
    )
    return [
        Result(
            name=f"Kafka, messages and rows {name}: {what}",
            value=float(value),
            unit="messages",
            bar=f"0 {name} with {kills} kills",
            ok=value == 0 and outcome.killed == kills,
        )
        for name, value in (("lost", outcome.lost), ("doubled", outcome.doubled))
    ]


if __name__ == "__main__":
    arguments = parse_args(__doc__)
    raise SystemExit(emit(measure(quick=arguments.quick), json=arguments.json))
