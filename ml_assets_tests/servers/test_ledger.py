"""The ledger on a real PostgreSQL: the same promises as on SQLite, through restarts, races and migrations."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from ml_assets_tests.resources import ledger_writer
from ml_assets_tests.resources.ledger_chains import (
    KINDS,
    assert_a_changed_row_is_named,
    assert_nothing_is_decided_on_a_changed_row,
    assert_several_reads_see_one_state,
    assert_several_writers_make_one_chain,
    assert_times_and_letters_come_back_as_they_were,
)
from ml_assets_tests.resources.ledger_environments import assert_each_ledger_belongs_to_one_environment
from ml_assets_tests.resources.ledger_writer import (
    EVALUATION,
    NEW,
    assert_decisions_hold_verdicts_back,
    write_one_of_each,
)
from ml_assets_tests.resources.next_ledger_version import (
    assert_a_failed_upgrade_changes_nothing,
    assert_an_upgrade_keeps_every_row,
)
from ml_assets_tests.servers.running_servers import RunningServers
from resources.ledger import (
    ClockRefused,
    Ledger,
    LedgerBusy,
    LedgerError,
    LedgerUnavailable,
    Person,
    VerdictRow,
    database,
    decision_rows,
    migrations,
)
from resources.ledger.tables import metadata


@pytest.fixture
def url(servers: RunningServers, tmp_path: Path) -> str:
    return servers.settings(tmp_path).resolved_ledger_url.reveal()


@pytest.fixture
def connection(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_what_was_written_is_found_by_another_process(url: str) -> None:
    ledger = Ledger(url)
    ledger.record_verdicts([NEW])
    acceptance = ledger.accept(NEW.table, NEW.key, 1, Person.unchecked("ada"), "a strike")
    promotion = ledger.models.promote(
        "m",
        "1",
        "production",
        by=Person.unchecked("ada"),
        reason="first",
        bundle_digest="b",
        evaluation_digest="e",
    )
    other = Ledger(url)
    (row,) = other.histories(NEW.table, [NEW.key])[NEW.key]
    assert (row.status, row.acceptance) == ("accepted", acceptance)
    assert other.models.in_production("m") == promotion
    assert other.models.in_production("m", at=promotion.at) == promotion
    assert other.volumes(NEW.table) == {NEW.key: 842}


def test_processes_that_come_first_at_once_and_write_at_once_lose_nothing(url: str) -> None:
    """Four find an empty database together; every verdict gets a number of its own."""
    names, rounds = ("one", "two", "three", "four"), 10
    program = [sys.executable, ledger_writer.__file__, url]
    writers = [subprocess.Popen([*program, name, str(rounds)]) for name in names]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 4
    verdicts = Ledger(url).histories(NEW.table, [NEW.key])[NEW.key]
    assert [one.number for one in verdicts] == list(range(1, 4 * rounds + 1))
    for name in names:
        assert [one.rows for one in verdicts if one.run_id == name] == list(range(rounds))


def test_processes_of_two_environments_never_share_a_ledger(servers: RunningServers, tmp_path: Path) -> None:
    """Four find each database empty together."""
    homes = [tmp_path / str(number) for number in range(5)]
    urls = [servers.settings(home).resolved_ledger_url.reveal() for home in homes]
    assert_each_ledger_belongs_to_one_environment(list(zip(homes, urls, strict=True)))


def test_one_holds_the_turn_of_a_table_until_its_connection_breaks(
    url: str, connection: sa.Connection
) -> None:
    ledger, other = Ledger(url), Ledger(url)
    with ledger.turn(NEW.table):
        assert other.record_verdicts([NEW])[0].number == 1, "only turns wait"
        with other.turn("datasets/other"):
            pass
        with pytest.raises(LedgerBusy, match=f"the lock on {NEW.table}"), other.turn(NEW.table, 0.2):
            pass
    end = sa.text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    with pytest.raises(LedgerUnavailable, match="held the lock on"), other.turn(NEW.table):
        connection.execute(end)
    with ledger.turn(NEW.table):
        pass


def test_many_holders_of_turns_still_read(url: str) -> None:
    """Twenty requests with turns had all ten connections of a process of the API, and each waited for another one."""
    ledger, holders = Ledger(url), 20
    everyone = threading.Barrier(holders, timeout=60)

    def hold(number: int) -> dict[str, VerdictRow]:
        with ledger.turn(f"table {number}"):
            everyone.wait()
            return ledger.newest_verdicts(NEW.table)

    with ThreadPoolExecutor(holders) as threads:
        assert [*threads.map(hold, range(holders), timeout=60)] == [{}] * holders


def test_a_process_without_a_free_connection_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_POOL_SECONDS", 0.2)
    ledger = database.LedgerDatabase(url, 30.0, "local")
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(ledger.reading())
        with pytest.raises(LedgerBusy, match=r"all its 10 connections for 0\.2 s"):
            stack.enter_context(ledger.reading())
    with ledger.reading() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1


def test_a_server_that_dies_during_a_turn_is_named(url: str, servers: RunningServers) -> None:
    """The end of the turn must not hide the error of its block: a decision ended with the driver's traceback."""
    ledger = Ledger(url, patience_seconds=0.1)
    with pytest.raises(LedgerUnavailable, match="check that the server"), ledger.turn("t"):  # noqa: PT012
        servers.kill("postgresql")
        ledger.newest_verdicts(NEW.table)


def test_newest_revision_makes_exactly_the_tables_the_code_works_with(
    url: str, connection: sa.Connection
) -> None:
    Ledger(url).record_verdicts([NEW])
    context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
    assert compare_metadata(context, metadata) == []
    assert migrations.revision_of(connection) == migrations.NEWEST


def test_an_upgrade_keeps_every_row(url: str, tmp_path: Path) -> None:
    assert_an_upgrade_keeps_every_row(url, tmp_path)


def test_a_failed_upgrade_changes_nothing(url: str, tmp_path: Path) -> None:
    assert_a_failed_upgrade_changes_nothing(url, tmp_path)


WAYS_TO_CHANGE = (
    "UPDATE {table} SET at = at",
    "DELETE FROM {table}",
    "TRUNCATE {table}",
    "TRUNCATE {table} CASCADE",
    "INSERT INTO {table} SELECT * FROM {table} ON CONFLICT ({key}) DO UPDATE SET at = EXCLUDED.at",
    "WITH gone AS (DELETE FROM {table} RETURNING *) SELECT * FROM gone",
    "MERGE INTO {table} USING (SELECT 1) AS one ON true WHEN MATCHED THEN UPDATE SET at = {table}.at",
)


@pytest.mark.parametrize("role", ["origin", "replica", "local"])
@pytest.mark.parametrize("table", sorted(metadata.tables))
def test_nothing_written_can_be_changed(url: str, table: str, role: str) -> None:
    """Nor replaced; a session that calls itself a replica, where ordinary triggers rest, gets no further."""
    ledger = Ledger(url)
    ledger.record_verdicts([replace(NEW, status="rejected")])
    ledger.accept(NEW.table, NEW.key, 1, Person.unchecked("ada"), "a strike")
    write_one_of_each(ledger)
    key = ", ".join(f'"{column.name}"' for column in metadata.tables[table].primary_key)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"SET session_replication_role = {role}"))
        before = connection.execute(sa.text(f"SELECT * FROM {table}")).all()
        assert before
        for statement in WAYS_TO_CHANGE:
            with pytest.raises(sa.exc.DatabaseError, match=f"{table} is append-only"):
                connection.execute(sa.text(statement.format(table=table, key=key)))
        assert connection.execute(sa.text(f"SELECT * FROM {table}")).all() == before
    engine.dispose()


def test_writers_of_several_models_make_one_chain(url: str) -> None:
    assert_several_writers_make_one_chain(url)


def test_times_and_letters_come_back_as_they_were(url: str) -> None:
    assert_times_and_letters_come_back_as_they_were(url)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_row_of_each_kind_is_named(url: str, kind: str) -> None:
    assert_a_changed_row_is_named(url, kind)


def test_several_reads_see_one_state(url: str) -> None:
    assert_several_reads_see_one_state(url)


def test_nothing_is_decided_on_a_changed_row(url: str) -> None:
    assert_nothing_is_decided_on_a_changed_row(url)


def test_no_verdict_is_recorded_during_a_promotion_or_registration(url: str) -> None:
    assert_decisions_hold_verdicts_back(Ledger(url))


def test_server_that_comes_back_in_time_is_not_noticed(url: str, servers: RunningServers) -> None:
    ledger = Ledger(url, patience_seconds=200)
    ledger.record_verdicts([NEW])
    servers.kill("postgresql")
    written: list[int] = []
    writing = threading.Thread(target=lambda: written.append(ledger.record_verdicts([NEW])[0].number))
    writing.start()
    writing.join(1.0)
    assert writing.is_alive()  # it waits
    servers.restart("postgresql")
    writing.join(200)
    assert written == [2]
    assert [one.number for one in ledger.histories(NEW.table, [NEW.key])[NEW.key]] == [1, 2]


def test_server_that_stays_away_is_named_without_its_password(url: str, servers: RunningServers) -> None:
    servers.kill("postgresql")
    with pytest.raises(LedgerUnavailable, match="check that the server") as caught:
        Ledger(url, patience_seconds=0.5).newest_verdicts(NEW.table)
    assert servers.secrets["database_password"] not in str(caught.value)


def test_wrong_password_and_missing_database_are_refused_at_once(url: str, servers: RunningServers) -> None:
    wrong = url.replace(servers.secrets["database_password"], "wrong")
    with pytest.raises(LedgerError, match="password authentication failed"):
        Ledger(wrong).newest_verdicts(NEW.table)
    with pytest.raises(LedgerError, match='database "nowhere" does not'):
        Ledger(url.rpartition("/")[0] + "/nowhere").newest_verdicts(NEW.table)


def test_address_without_a_driver_finds_the_one_that_is_locked(url: str) -> None:
    assert Ledger(url.replace("+psycopg2", "")).record_verdicts([NEW])[0].number == 1


@pytest.mark.parametrize("by", [timedelta(hours=25), timedelta(days=400), -timedelta(days=1)])
def test_the_server_dates_decisions_of_a_process_with_a_wrong_clock(
    url: str, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    """On SQLite such a process is refused. Here the database has a clock of its own, which decides."""
    log, before = Ledger(url).models, datetime.now(UTC)
    right = decision_rows.process_time
    monkeypatch.setattr(decision_rows, "process_time", lambda: right() + by)
    log.record_evaluation(EVALUATION)
    (row,) = log.evaluations(EVALUATION.model)
    assert before <= row.at <= datetime.now(UTC)
    with pytest.raises(ClockRefused) as refused:
        log.record_evaluation(replace(EVALUATION, evaluation_digest="later"), at=before + timedelta(hours=25))
    assert refused.value.dated == "new row"
    assert log.head().place == 1
