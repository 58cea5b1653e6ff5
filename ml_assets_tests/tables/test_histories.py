"""Random histories: whatever happens to tables and declarations, no window passes whose newest state is not accepted.

A machine publishes good and bad days, builds features on features, accepts, mends, writes past the audit, and edits
contracts, code, lookback and cadence. Beside the real lake and ledger it keeps a book of its own. Whenever somebody
would train, the guard must say of the window exactly what follows from the book: refused, stale, or neither.
"""

import atexit
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from ml_assets.data.tables.cadence import Cadence, CadenceKind
from ml_assets.data.tables.declared import NOTHING_DECLARED, DeclaredTable, DeclaredTables
from ml_assets.data.tables.derive import plan
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.publish.prepare import prepare
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from ml_assets_tests.tables.orders_table import OrdersTable
from resources.ledger import Person

HISTORIES = int(os.environ.get("HISTORIES", "60"))
"""Number of histories; the nightly plays 100,000."""
SHARD = 500
"""Histories of one test. Shards fill both cores under `-n 2`, and what hypothesis remembers stays small."""
pytestmark = pytest.mark.timeout(240 + 3 * min(HISTORIES, SHARD))

ORDERS, HABITS, SUMMARY = "datasets/orders", "features/habits", "features/summary"
INPUT = {HABITS: ORDERS, SUMMARY: HABITS}
TABLES = st.sampled_from([ORDERS, HABITS, SUMMARY])
DAYS = ["2013-01-07", "2013-01-08"]
"""A Monday, whose key its week has too, and the day after it."""
KEYS = st.sampled_from(DAYS)
BAD, TOO_MUCH = -1, 3
"""Contents that every contract rejects, and that the tight one does."""
CONTENTS = st.sampled_from([1, 2, TOO_MUCH, BAD])
RUN = PublishingRun(run_id="history")
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Thousands of fsyncs cost nothing there."""


@cache
def _contract(*, tight: bool) -> Contract:
    amount = {"name": "amount", "dtype": "int64", "ge": 0, "le": 2 if tight else 100}
    at = {"name": "at", "dtype": "datetime"}
    return Contract.model_validate({"event_time": "at", "columns": [at, amount]})


def _rows(key: str, content: int) -> pl.DataFrame:
    at = datetime.fromisoformat(key).replace(tzinfo=UTC)
    return pl.DataFrame({"at": [at], "amount": [content]}, schema_overrides={"at": pl.Datetime("us", "UTC")})


@dataclass(frozen=True)
class Declared:
    """Declaration in the files of a table."""

    cadence: CadenceKind = "daily"
    tight: bool = False
    code: int = 1
    lookback: int = 1

    @property
    def rules(self) -> tuple[str, bool]:
        """Everything that a verdict depends on beside the rows."""
        return self.cadence, self.tight

    def rejects(self, content: int) -> bool:
        """Validate rows as the contract does."""
        return content == BAD or (self.tight and content == TOO_MUCH)

    def window(self) -> list[str]:
        """Keys of the window."""
        return DAYS if self.cadence == "daily" else DAYS[:1]

    def needs(self, key: str) -> list[str]:
        """Keys of the input that `key` is made from."""
        at = DAYS.index(key)
        return DAYS[max(0, at - self.lookback) : at + 1]


@dataclass
class ExpectedPartition:
    """A partition with its manifest."""

    content: int
    made: Declared
    inputs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Key of the input table → content."""
    behind: frozenset[tuple[str, str, int]] = frozenset()
    """(table, key, content) of what those were made from."""


@dataclass
class ExpectedAttempt:
    """A row of the ledger."""

    content: int
    rules: tuple[str, bool]
    status: str
    evidence: ExpectedPartition


def _spec(table: str, declared: Declared) -> TableSpec:
    kind, name = table.split("/")
    return TableSpec(
        kind=kind,
        name=name,
        contract=_contract(tight=declared.tight),
        cadence=Cadence(declared.cadence, date.fromisoformat(DAYS[0])),
        volume=VolumeRule(),
        code_version=f"v{declared.code}",
        inputs={INPUT[table]: declared.lookback} if table in INPUT else {},
    )


def _incoming(reader: TableReader, table: str, key: str, content: int, reads: list[str]) -> Incoming:
    """Rows made from `reads` of the table's input."""
    read = {INPUT[table]: reads} if reads else {}
    inputs = {source: reader.input_digests(source, keys) for source, keys in read.items()}
    return Incoming(key=key, data=_rows(key, content), inputs=inputs, behind=reader.behind(read))


@cache
def _whole() -> Path:
    """An installation with every partition of each table, to be copied: histories begin where there is much to lose."""
    folder = Path(tempfile.mkdtemp(prefix="histories-", dir=_MEMORY))
    atexit.register(shutil.rmtree, folder)
    orders = OrdersTable(folder)
    for table, lookback in ((ORDERS, 1), (HABITS, 1), (SUMMARY, 0)):
        declared, reader = Declared(lookback=lookback), TableReader.at(orders.store)
        incoming: list[Incoming] = []
        for key in DAYS:
            reads = declared.needs(key) if table in INPUT else []
            incoming.append(_incoming(reader, table, key, 1, reads))
        publish(orders.store, orders.ledger, _spec(table, declared), incoming, RUN, NOTHING_DECLARED)
    return folder


class Histories(RuleBasedStateMachine):
    """One installation, and a book of what happened to it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="histories-", dir=_MEMORY))
        shutil.copytree(_whole(), self.folder, dirs_exist_ok=True)
        self.orders = OrdersTable(self.folder)
        # As Dagster's daemon does beside runs: else each query of the ledger would be the last connection, which
        # writes SQLite's log back and removes it. That took a third of a history's time.
        self.beside = sqlite3.connect(self.folder / "ledger.db")
        self.beside.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self.declared = {ORDERS: Declared(), HABITS: Declared(), SUMMARY: Declared(lookback=0)}
        self.main: dict[tuple[str, str], ExpectedPartition] = {}
        self.newest: dict[tuple[str, str], ExpectedAttempt] = {}
        self.validated: dict[tuple[str, str, int], ExpectedAttempt] = {}
        for table in self.declared:
            for key in DAYS:
                self._note(table, key, 1)

    def teardown(self) -> None:
        """Look once more where a model would train; leave nothing."""
        try:
            self.look_at(SUMMARY)
        finally:
            self.beside.close()
            shutil.rmtree(self.folder)

    # --- what happens ---

    @rule(key=KEYS, content=CONTENTS)
    def publish_a_day(self, key: str, content: int) -> None:
        """Publish a day. New content can repair a rejected day or reject a good one."""
        if key in self.declared[ORDERS].window():
            self._publish(ORDERS, key, content)

    @rule(table=st.sampled_from([HABITS, SUMMARY]), content=CONTENTS)
    def build(self, table: str, content: int) -> None:
        """Build what the plan allows, which must be what the book allows."""
        declared, reader = self.declared[table], TableReader.at(self.orders.store)
        tables, spec = self._tables(), self._spec(table)
        keys = declared.window()
        possible = plan(reader, self.orders.ledger, tables, tables.inputs_of(table), keys, spec.cadence)
        allowed = [
            key for key in keys if all(self._usable(INPUT[table], needed) for needed in declared.needs(key))
        ]
        assert [key for keys in possible.ranges for key in keys] == allowed
        for key in allowed:
            self._publish(table, key, content)

    @rule(table=TABLES, key=KEYS)
    def accept(self, table: str, key: str) -> None:
        """A person accepts what the newest verdict rejected."""
        verdict = self.newest.get((table, key))
        if verdict is None or verdict.status != "rejected":
            return
        accept_partition(
            self.orders.store, self.orders.ledger, table, key, Person.unchecked("ada"), "it is real"
        )
        verdict.status = "accepted"
        self.main[table, key] = verdict.evidence

    @rule(table=TABLES)
    def change_the_contract(self, table: str) -> None:
        """Tighten it, or loosen it again."""
        self.declared[table] = replace(self.declared[table], tight=not self.declared[table].tight)

    @rule(table=TABLES)
    def change_the_code(self, table: str) -> None:
        """Change it, or change it back."""
        self.declared[table] = replace(self.declared[table], code=3 - self.declared[table].code)

    @rule(table=st.sampled_from([HABITS, SUMMARY]))
    def change_the_lookback(self, table: str) -> None:
        """Look a day back, or no longer."""
        self.declared[table] = replace(self.declared[table], lookback=1 - self.declared[table].lookback)

    @rule()
    def change_the_cadence(self) -> None:
        """Days become weeks, or weeks days."""
        for table, one in self.declared.items():
            self.declared[table] = replace(one, cadence="weekly" if one.cadence == "daily" else "daily")

    @rule(key=KEYS, content=CONTENTS)
    def write_past_the_audit(self, key: str, content: int) -> None:
        """Somebody merges rows by hand; so a run looks, too, that was killed before its verdict was recorded."""
        if key not in self.declared[ORDERS].window():
            return
        rows = _rows(key, content)
        prepared = prepare(self._spec(ORDERS), Incoming(key=key, data=rows), rows)
        store = self.orders.store
        store.create_branch("by-hand", "main")
        for path, data in prepared.stored.objects.items():
            store.put("by-hand", path, data)
        store.commit("by-hand", "by hand", {})
        store.merge("by-hand", "main", "by hand", {})
        store.delete_branch("by-hand")
        self.main[ORDERS, key] = ExpectedPartition(content, self.declared[ORDERS])

    # --- what must hold ---

    @rule(table=TABLES)
    def look_at(self, table: str) -> None:
        """Compare the guard with the book."""
        window, reader = self.declared[table].window(), TableReader.at(self.orders.store)
        validation = validate_window(reader, self.orders.ledger, self._tables(), table, window)
        usable = [key for key in window if self._usable(table, key)]
        assert [key for key in window if key not in validation.barred] == usable, validation
        current = [key for key in usable if not self._is_stale(table, key)]
        assert [key for key in usable if key not in validation.stale] == current, validation
        assert validation.ok == (usable == window)

    def _usable(self, table: str, key: str) -> bool:
        """Return True if the partition is on main and none of its inputs is rejected."""
        return self._on_main(table, key) is not None and not self._is_spoiled(table, key)

    def _on_main(self, table: str, key: str) -> ExpectedPartition | None:
        record = self.main.get((table, key))
        return record if record and record.made.cadence == self.declared[table].cadence else None

    def _is_spoiled(self, table: str, key: str) -> bool:
        """Rejected, or rows that no passing verdict covers, at any depth."""
        declared, verdict, record = (
            self.declared[table],
            self.newest.get((table, key)),
            self._on_main(table, key),
        )
        if verdict and verdict.status == "rejected" and (record or verdict.rules == declared.rules):
            return True
        if record and (verdict is None or verdict.content != record.content):
            return True
        read = self._read(table, key)
        if record and any(
            self._was_rejected_since(table, needed, content) for needed, content in record.inputs.items()
        ):
            return True
        origins = [self.validated.get(one) for one in record.behind] if record else []
        if any(verdict is not None and verdict.status == "rejected" for verdict in origins):
            return True
        return any(self._is_spoiled(INPUT[table], needed) for needed in read)

    def _was_rejected_since(self, table: str, key: str, content: int) -> bool:
        """The rows it was made from are on main no longer, and the newest verdict on them rejects them."""
        source = INPUT[table]
        now = self.main.get((source, key))
        verdict = self.validated.get((source, key, content))
        return (
            (now is None or now.content != content) and verdict is not None and verdict.status == "rejected"
        )

    def _read(self, table: str, key: str) -> set[str]:
        """Keys of the input it was made from, or would be."""
        record = self._on_main(table, key)
        needed = (
            self.declared[table].needs(key) if table in INPUT and key in self.declared[table].window() else []
        )
        return {*needed, *(record.inputs if record else ())}

    def _is_stale(self, table: str, key: str) -> bool:
        """Made otherwise than it would be made now."""
        declared, record, verdict = (
            self.declared[table],
            self._on_main(table, key),
            self.newest.get((table, key)),
        )
        if record is None:
            return True
        if (record.made.tight, record.made.code) != (declared.tight, declared.code):
            return True
        if verdict is not None and verdict.rules != declared.rules:
            return True
        if table not in INPUT:
            return False
        source = INPUT[table]
        if set(record.inputs) != set(declared.needs(key)):
            return True
        return any(
            self.main[source, needed].content != content or self._is_stale(source, needed)
            for needed, content in record.inputs.items()
        )

    # --- the book ---

    def _publish(self, table: str, key: str, content: int) -> None:
        reads = self.declared[table].needs(key) if table in INPUT else []
        one = _incoming(TableReader.at(self.orders.store), table, key, content, reads)
        result = publish(
            self.orders.store, self.orders.ledger, self._spec(table), [one], RUN, NOTHING_DECLARED
        )
        status = self._note(table, key, content)
        assert list(result.rejected) == [key] * (status == "rejected")

    def _note(self, table: str, key: str, content: int) -> str:
        declared = self.declared[table]
        reads = declared.needs(key) if table in INPUT else []
        read = {needed: self.main[INPUT[table], needed] for needed in reads}
        behind = {
            (INPUT[INPUT[table]], origin, made_from)
            for one in read.values()
            for origin, made_from in one.inputs.items()
        }
        inputs = {needed: one.content for needed, one in read.items()}
        record = ExpectedPartition(content, declared, inputs, frozenset(behind))
        before = self.newest.get((table, key))
        again = before is not None and (before.content, before.rules) == (content, declared.rules)
        accepted = again and before is not None and before.status == "accepted"
        status = "rejected" if declared.rejects(content) and not accepted else "passed"
        if not again:  # the same said again of the same rows is no new verdict
            self.newest[table, key] = ExpectedAttempt(content, declared.rules, status, record)
            self.validated[table, key, content] = self.newest[table, key]
        if status != "rejected":
            self.main[table, key] = record
        return status

    def _spec(self, table: str) -> TableSpec:
        return _spec(table, self.declared[table])

    def _tables(self) -> DeclaredTables:
        return DeclaredTables(DeclaredTable.of(self._spec(table)) for table in self.declared)


@pytest.mark.parametrize("first", range(0, HISTORIES, SHARD))
def test_guard_agrees_with_the_book_in_any_history(first: int) -> None:
    """One shard: the histories from number `first` on, with other random numbers than every other shard."""
    chosen = settings(max_examples=min(SHARD, HISTORIES - first), stateful_step_count=10)

    class ShardHistories(Histories):
        pass

    # Without a seed of its own each shard of a derandomized profile would play the same histories.
    run_state_machine_as_test(
        seed(first)(ShardHistories) if chosen.derandomize else ShardHistories, settings=chosen
    )
