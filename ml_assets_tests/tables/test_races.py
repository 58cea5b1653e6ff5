"""Publishes and acceptances of one partition at once: the newest verdict is always about what main holds."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Barrier, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets_tests.tables.interleaving import Interleaving, place_of
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, keys
from resources.lake.local import LocalStore
from resources.ledger import Acceptance, NothingToAccept, Person

DAY = keys(1)[0]
JOBS: dict[str, Callable[[OrdersTable], object]] = {
    "mend": lambda orders: orders.publish({DAY: day(DAY, factor=2)}),
    "mend otherwise": lambda orders: orders.publish({DAY: day(DAY, factor=3)}),
    "undo": lambda orders: orders.publish({DAY: day(DAY)}),
    "spoil": lambda orders: orders.publish({DAY: day(DAY, factor=-1)}),
    "spoil otherwise": lambda orders: orders.publish({DAY: day(DAY, factor=-2)}),
    "accept": lambda orders: accept_partition(
        orders.store, orders.ledger, ORDERS, DAY, Person.unchecked("ada"), "refunds"
    ),
    "accept too": lambda orders: accept_partition(
        orders.store, orders.ledger, ORDERS, DAY, Person.unchecked("bob"), "refunds"
    ),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day that passed, and was rejected after that. All jobs have one run id."""
    folder = tmp_path_factory.mktemp("begun")
    orders = OrdersTable(folder)
    JOBS["undo"](orders)
    JOBS["spoil"](orders)
    return folder


def _run(begun: Path, names: set[str], choose: Callable[[int], int]) -> dict[str, object]:
    """Run jobs in the order that `choose` makes; check what must hold afterwards."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(shutil.copytree(begun, Path(temporary) / "place"))
        schedule = Interleaving(choose)

        def job(name: str) -> Callable[[], object]:
            orders = place_of(folder, name, schedule)
            return lambda: JOBS[name](orders)

        # Opened before the schedule begins: opening makes calls of its own.
        ended = schedule.run({name: job(name) for name in sorted(names)})
        for name, result in ended.items():
            if isinstance(result, Exception):
                assert isinstance(result, NothingToAccept), f"{name}: {result!r}"
        _assert_they_agree(OrdersTable(folder))
        return ended


def _assert_they_agree(orders: OrdersTable) -> None:
    verdicts = orders.ledger.histories(ORDERS, [DAY])[DAY]
    newest = verdicts[-1]
    reader = TableReader.at(orders.store)
    held = reader.digests(ORDERS)[DAY]
    if not newest.blocks:
        assert held == newest.content_digest, "main holds what the newest verdict is about"
    assert held in {one.content_digest for one in verdicts if not one.blocks}, (
        "main never holds rejected rows"
    )
    assert reader.manifest(ORDERS, DAY).content_digest == held
    kept = {one.branch for one in verdicts if one.status in ("rejected", "accepted")}
    assert set(orders.store.branches("audit-")) == kept, "evidence alone is kept"


# Some thirty calls a job; after the last choice the first job that can goes on.
@settings(max_examples=20)
@given(
    names=st.sets(st.sampled_from(sorted(JOBS)), min_size=2, max_size=3),
    choices=st.lists(st.integers(0, 2), max_size=60),
)
def test_newest_attempt_and_main_agree_in_any_order_of_calls(
    begun: Path, names: set[str], choices: list[int]
) -> None:
    order = iter(choices)
    _run(begun, names, lambda ready: next(order, 0) % ready)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("steps", [2, 5, 7, 8, 9, 10, 11])
def test_accepting_never_overwrites_a_day_that_is_mended_meanwhile(
    begun: Path, first: int, steps: int
) -> None:
    """One job makes some calls, the other runs to its end, the first goes on: in both orders."""
    made = iter([first] * steps + [1 - first] * 200)
    ended = _run(begun, {"accept", "mend"}, lambda ready: next(made) % ready)
    assert isinstance(ended["accept"], Acceptance | NothingToAccept)


def test_two_people_who_accept_at_once_get_one_acceptance(begun: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(begun, tmp_path / "place"))
    both = Barrier(2)

    class MeetingStore(LocalStore):
        def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
            found = super().fetch(ref, paths)
            both.wait(60)  # each has read the evidence before either merges
            return found

    given: list[Acceptance] = []

    def accept(author: str) -> None:
        store = MeetingStore(folder / "lake")
        given.append(
            accept_partition(
                store, OrdersTable(folder).ledger, ORDERS, DAY, Person.unchecked(author), "refunds"
            )
        )

    people = [Thread(target=accept, args=(author,)) for author in ("ada", "bob")]
    for person in people:
        person.start()
    for person in people:
        person.join(200)
    assert len(given) == 2
    assert given[0] == given[1]
    _assert_they_agree(OrdersTable(folder))


def test_accepting_does_not_cover_a_newer_attempt(begun: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(begun, tmp_path / "place"))

    class SlowStore(LocalStore):
        def fetch(self, ref: str, paths: Sequence[str]) -> dict[str, Path]:
            JOBS["spoil otherwise"](OrdersTable(folder))
            return super().fetch(ref, paths)

    before = OrdersTable(folder).store.resolve("main")
    with pytest.raises(NothingToAccept, match=r"newer than verdict 2\. "):
        accept_partition(
            SlowStore(folder / "lake"),
            OrdersTable(folder).ledger,
            ORDERS,
            DAY,
            Person.unchecked("ada"),
            "refunds",
        )
    assert OrdersTable(folder).store.resolve("main") == before
