"""Threads that run one at a time, in an order a test chooses: every call to lake or ledger may be the last for a while.

Not here: what the threads do, and what must hold afterwards (`test_races`).
"""

import functools
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ml_assets_tests.tables.orders_table import OrdersTable
from resources.lake.local import LocalStore
from resources.ledger import Ledger

LAKE = ("resolve", "create_branch", "fetch", "commit", "merge", "delete_branch")
LEDGER = ("newest_verdicts", "find_verdicts", "record_verdicts", "accept")
_STUCK_SECONDS = 120.0


class Interleaving:
    """Runs jobs in threads. Before each call, `choose(n)` says which of the `n` jobs that can go on does."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose = choose
        self._changed = threading.Condition()
        self._parked: dict[str, bool] = {}
        self._running: str | None = None
        self._holder: str | None = None

    def run(self, jobs: Mapping[str, Callable[[], object]]) -> dict[str, object]:
        """Job → its result, or the exception it ended with."""
        ended: dict[str, object] = {}

        def work(name: str) -> None:
            self.pause(name)
            try:
                result = jobs[name]()
            except Exception as error:
                result = error
            with self._changed:
                ended[name] = result
                self._running = None
                self._changed.notify_all()

        threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in jobs]
        for thread in threads:
            thread.start()
        with self._changed:
            while len(ended) < len(jobs):
                all_stand = self._changed.wait_for(
                    lambda: self._running is None and len(self._parked) + len(ended) == len(jobs),
                    _STUCK_SECONDS,
                )
                assert all_stand, f"{self._running} neither ended nor made another call"
                self._go_on()
        for thread in threads:
            thread.join()
        return ended

    def pause(self, name: str, *, wants_turn: bool = False) -> None:
        """Stop this job until it is chosen; one that wants the turn is not while another has it."""
        with self._changed:
            self._parked[name] = wants_turn
            self._running = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._running == name)

    @contextmanager
    def turn(self, name: str) -> Generator[None]:
        """Stop this job until it is chosen to take the turn."""
        self.pause(name, wants_turn=True)
        try:
            yield
        finally:
            self._holder = None

    def _go_on(self) -> None:
        ready = sorted(name for name, wants in self._parked.items() if not (wants and self._holder))
        if ready:
            name = ready[self._choose(len(ready))]
            self._holder = name if self._parked.pop(name) else self._holder
            self._running = name
            self._changed.notify_all()


def place_of(folder: Path, name: str, schedule: Interleaving) -> OrdersTable:
    """Lake and ledger as the job `name` sees them: each call waits until the schedule lets it happen."""
    orders = OrdersTable(folder)
    orders.store = type("WatchedStore", (LocalStore,), _paused(LocalStore, LAKE, name, schedule))(
        folder / "lake"
    )
    methods = _paused(Ledger, LEDGER, name, schedule)

    @contextmanager
    def turn(ledger: Any, table: str) -> Generator[None]:
        with schedule.turn(name), Ledger.turn(ledger, table):
            yield

    url = f"sqlite:///{folder / 'ledger.db'}"
    orders.ledger = type("WatchedLedger", (Ledger,), methods | {"turn": turn})(url)
    return orders


def _paused(owner: type, names: tuple[str, ...], job: str, schedule: Interleaving) -> dict[str, Any]:
    def paused(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            schedule.pause(job)
            return method(*arguments, **options)

        return call

    return {name: paused(getattr(owner, name)) for name in names}
