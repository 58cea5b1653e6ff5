"""Writers of an online store, for tests of any implementation: a model in memory, and processes that race."""

import multiprocessing
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from resources.addresses import Address
from resources.online import OnlineRow, OnlineStore, open_online_store

SECOND = 1_000_000
HOUR = 3_600 * SECOND
TTL = 24 * HOUR
TABLE = "features/visits"


def now_us() -> int:
    """Return the moment now, microseconds since 1970."""
    return time.time_ns() // 1_000


def row(entity: str, event_us: int, known_us: int) -> OnlineRow:
    """Return a row whose content names its two moments."""
    content = f"{event_us} {known_us}".encode()
    return OnlineRow(entity=entity, event_us=event_us, known_us=known_us, content=content)


@dataclass
class NewestInMemory:
    """Model of a store: entity → newest row that was written."""

    held: dict[str, OnlineRow] = field(default_factory=dict[str, OnlineRow])

    def write(self, rows: list[OnlineRow]) -> int:
        """Keep each row unless its entity has a newer one; return the number of kept rows."""
        written = 0
        for one in rows:
            other = self.held.get(one.entity)
            if other is None or (one.event_us, one.known_us) >= (other.event_us, other.known_us):
                self.held[one.entity] = one
                written += 1
        return written

    def read(self, entity: str, begin_us: int) -> OnlineRow | None:
        """Return the row of an entity, unless it expired long before `begin_us`."""
        one = self.held.get(entity)
        return one if one is not None and one.event_us + TTL > begin_us else None


def race(
    address: Address | None, default: Path, environment: str, *, processes: int, rows: int
) -> dict[str, int]:
    """Let processes write the same rows in different orders; return entity → event of the newest row.

    A process that reads an older row than it read before ends with an error, which raises here.
    """
    context = multiprocessing.get_context("spawn")
    base = now_us()
    workers = [
        context.Process(target=_write_shuffled, args=(address, default, environment, base, rows, seed))
        for seed in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes
    return {f"e{number}": base + rows - 1 for number in range(4)}


def _write_shuffled(
    address: Address | None, default: Path, environment: str, base: int, rows: int, seed: int
) -> None:
    store: OnlineStore = open_online_store(address, default, environment=environment, patience_seconds=60.0)
    order = [(entity, step) for entity in range(4) for step in range(rows)]
    random.Random(seed).shuffle(order)
    seen: dict[str, int] = {}
    for start in range(0, len(order), 7):
        some = [row(f"e{entity}", base + step, base) for entity, step in order[start : start + 7]]
        store.write(TABLE, some, None)
        for one in some:
            (found,) = store.read(TABLE, [one.entity])
            assert found is not None
            assert found.event_us >= max(seen.get(one.entity, 0), one.event_us), "an older row came back"
            seen[one.entity] = found.event_us
