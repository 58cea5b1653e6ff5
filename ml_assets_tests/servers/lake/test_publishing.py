"""Write–audit–publish on a real lakeFS with its audit hook: a year in one merge, two publishers at once, acceptance."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import polars as pl
import pytest

from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.history.log import unaudited
from ml_assets.data.tables.publish.publish import PublishResult, publish
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets_tests.servers.lake.repositories import Repository
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys, spec
from resources.lake import VersionedStore
from resources.ledger import Ledger, Person


@pytest.fixture
def store(repository: Repository) -> VersionedStore:
    return repository.make_ready().store()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


def publish_days(
    store: VersionedStore, ledger: Ledger, frames: dict[str, pl.DataFrame], run: str = "run00001"
) -> PublishResult:
    incoming = [Incoming(key=key, data=frame) for key, frame in frames.items()]
    facts = PublishingRun(run_id=run, url=f"http://127.0.0.1:3000/runs/{run}")
    return publish(store, ledger, spec(), incoming, facts, NOTHING_DECLARED)


def test_a_year_lands_in_one_merge_with_the_digests_of_the_embedded_lake(
    store: VersionedStore, ledger: Ledger, repository: Repository, tmp_path: Path
) -> None:
    before = store.resolve("main")
    year = days(365)
    result = publish_days(store, ledger, year)
    assert result.rejected == {}
    merge, previous = store.log("main", limit=2)
    assert (merge.id, previous.id) == (result.commit_id, before)
    assert merge.metadata["audit"] == "passed"
    assert list(store.branches()) == ["main"]

    embedded = OrdersTable(tmp_path / "embedded").publish(year)
    assert {key: one.content_digest for key, one in result.merged.items()} == {
        key: one.content_digest for key, one in embedded.merged.items()
    }
    rows = TableReader.at(repository.elsewhere("elsewhere").store()).scan(ORDERS, keys(365)).collect()
    assert rows.equals(pl.concat(year.values()))

    again = publish_days(store, ledger, year, run="run00002")
    assert again.commit_id == result.commit_id
    assert not any(one.changed for one in again.merged.values())
    assert list(store.branches()) == ["main"]


def test_two_publishers_at_once_lose_nothing_and_the_later_merge_wins(
    store: VersionedStore, ledger: Ledger, repository: Repository
) -> None:
    publish_days(store, ledger, days(5))
    at_once = Barrier(2)

    def correct(factor: float) -> PublishResult:
        own = repository.elsewhere(f"publisher-{factor}").store()
        # Two days both change, and two that only one of them does.
        first = 3 if factor == 2 else 5
        frames = {key: day(key, factor=factor) for key in (*keys(2), *keys(2, start=first))}
        at_once.wait()
        return publish_days(own, ledger, frames, run=f"run{factor:05.0f}")

    with ThreadPoolExecutor(2) as pool:
        two, three = pool.map(correct, (2.0, 3.0))
    reader = TableReader.at(store)
    digests = reader.digests(ORDERS)
    assert sorted(digests) == keys(7)
    newest = next(store.log("main", limit=1))
    winner = two if newest.id == two.commit_id else three
    assert newest.id == winner.commit_id
    for key in keys(2):
        assert digests[key] == winner.merged[key].content_digest
    for result in (two, three):
        for key in set(result.merged) - set(keys(2)):
            assert digests[key] == result.merged[key].content_digest
    assert unaudited(store, 100) == []
    assert list(store.branches()) == ["main"]


def test_what_a_person_accepts_passes_the_hook(store: VersionedStore, ledger: Ledger) -> None:
    bad = day(keys(1)[0]).with_columns(pl.lit(-1.0).alias("amount"))
    result = publish_days(store, ledger, {keys(1)[0]: bad})
    assert list(result.rejected) == keys(1)
    assert TableReader.at(store).keys(ORDERS) == []
    accept_partition(store, ledger, ORDERS, keys(1)[0], Person.unchecked("ada"), "refunds of that day")
    assert TableReader.at(store).keys(ORDERS) == keys(1)
    accepted = next(store.log("main", limit=1))
    assert accepted.metadata["audit"] == "accepted"
    assert accepted.metadata["accepted_by"] == "ada"
    assert unaudited(store, 100) == []


def test_many_publishers_of_different_tables_all_land(store: VersionedStore, repository: Repository) -> None:
    def land(number: int) -> None:
        own = repository.elsewhere(f"publisher-{number % 4}").store()
        for part in range(5):
            branch = f"audit-{number}-{part}"
            own.create_branch(branch, "main")
            own.put(branch, f"x/{number:02}-{part}", b"%d" % number)
            own.commit(branch, "write", {})
            own.merge(branch, "main", f"publish {number} {part}", {"audit": "passed"})
            own.delete_branch(branch)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(land, range(8)))
    assert [entry.path for entry in store.list("main")] == [
        f"x/{number:02}-{part}" for number in range(8) for part in range(5)
    ]
    messages = [commit.message for commit in store.log("main", limit=1_000)]
    assert len(messages) == len(set(messages))
