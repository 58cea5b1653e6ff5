"""Reads of versions on real PostgreSQL and MLflow: killed servers cost no read, and no answer is wrong."""

import hashlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from ml_assets.model.release.known_versions import stage_reader_of
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import bundles_of, releases_of
from ml_assets.model.release.rollback import rollback
from ml_assets.use.serving.answering import Limits
from ml_assets.use.serving.app import make_app
from ml_assets.use.serving.canary import shared_secret
from ml_assets.use.serving.log_retention import LogBounds, LogRetention
from ml_assets.use.serving.request_log import RequestLog
from ml_assets.use.serving.server import started
from ml_assets.use.serving.watch import Declaration, StageWatch
from ml_assets_tests.faults.registry_reads import in_words, read_while_killed
from ml_assets_tests.release.conftest import rows
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.serving.released import register
from resources.ledger import LedgerUnavailable, Person
from resources.ledger.database import LedgerDatabase
from resources.platform import Platform

__all__ = ["rows"]  # fixture


@pytest.mark.timeout(600)
def test_killed_servers_cost_no_read_and_no_answer_is_wrong(
    servers: RunningServers, tmp_path: Path, rows: pl.DataFrame
) -> None:
    """The ten minutes of it are `benchmarks/claims/servers/registry_reads`."""
    settings = servers.settings(tmp_path / "home", lake_url=None)
    model = f"read_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    platform = Platform(settings)
    for number in (1, 2, 3):
        register(platform, rows, str(number), model)
        promote(releases_of(platform), model, number, by=Person.unchecked("ada"), reason="for the readers")
    outcome = read_while_killed(
        model,
        settings,
        servers.storage_env,
        tmp_path / "reads",
        reads=200,
        clients=2,
        seconds=5,
        kills=2,
        kill=servers.kill,
        restart=servers.restart,
        down_seconds=(0.2, 0.5),
    )
    said = in_words(outcome)
    print(said)
    assert (outcome.wrong, outcome.refused) == ([], []), said
    assert outcome.answered == 200
    assert outcome.stale > 0
    assert outcome.decided > 0


@pytest.mark.timeout(600)
def test_a_frozen_ledger_is_named_and_the_server_keeps_answering(
    servers: RunningServers, tmp_path: Path, rows: pl.DataFrame
) -> None:
    """Frozen, not killed: it takes connections and requests, and answers nothing."""
    settings = servers.settings(tmp_path / "home", lake_url=None)
    model = f"frozen_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    platform = Platform(settings)
    for number in (1, 2):
        register(platform, rows, str(number), model)
        promote(releases_of(platform), model, number, by=Person.unchecked("ada"), reason="good")
    watch = StageWatch(
        stage_reader_of(platform),
        bundles_of(platform),
        [Declaration(model=model)],
        seconds=0.1,
        secret=lambda: shared_secret(platform.artifacts, platform.ledger),
    )
    retention = LogRetention(platform.artifacts, watch, LogBounds())
    with (
        started(watch, RequestLog(platform.artifacts), retention, Limits()) as parts,
        TestClient(make_app(parts)) as http,
    ):

        def wait_until(is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            while not is_so(state := http.get("/ready").json()):
                time.sleep(0.1)
            return state

        wait_until(lambda state: state["ledger"]["unanswered_since"] is None)
        before = datetime.now(UTC)
        servers.freeze("postgresql")
        try:
            state = wait_until(lambda state: state["ledger"]["unanswered_since"] is not None)
            assert datetime.fromisoformat(state["ledger"]["unanswered_since"]) >= before - timedelta(
                minutes=1
            )
            assert "its last answer counts" in state["ledger"]["problem"]
            assert "not answer for" in state["ledger"]["problem"]
            assert (state["ready"], state["models"][model]["production"]["version"]) == (True, 2)
            assert "ml_assets_serving_ledger_unanswered_seconds 0.0" not in http.get("/metrics").text
        finally:
            servers.thaw("postgresql")
        wait_until(lambda state: state["ledger"]["unanswered_since"] is None)
        rollback(releases_of(platform), model, by=Person.unchecked("ada"), reason="after the thaw")
        wait_until(lambda state: state["models"][model]["production"]["version"] == 1)
        assert "ml_assets_serving_ledger_unanswered_seconds 0.0" in http.get("/metrics").text


def read_while_frozen(database: LedgerDatabase, servers: RunningServers) -> None:
    with database.reading() as connection:
        servers.freeze("postgresql")
        connection.scalar(sa.text("SELECT 2"))


def test_a_read_of_a_frozen_ledger_ends(servers: RunningServers, tmp_path: Path) -> None:
    """Also between two reads of one transaction."""
    url = servers.settings(tmp_path).resolved_ledger_url.reveal()
    database = LedgerDatabase(url, 0.1, "local", answer_seconds=1)
    with database.reading() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
    try:
        with pytest.raises(LedgerUnavailable, match="answer for 1 s"):
            read_while_frozen(database, servers)
    finally:
        servers.thaw("postgresql")
    with LedgerDatabase(url, 60, "local", answer_seconds=30).reading() as connection:
        assert connection.scalar(sa.text("SELECT 3")) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_frozen_reads_end_at_their_own_deadlines(servers: RunningServers, tmp_path: Path) -> None:
    """One thread watches over all calls, and another one over those of a forked child."""
    url = servers.settings(tmp_path).resolved_ledger_url.reveal()
    databases = {seconds: LedgerDatabase(url, 0.1, "local", answer_seconds=seconds) for seconds in (3, 1)}
    ended: list[float] = []

    def read(seconds: float, begins: Callable[[], object]) -> None:
        with suppress(LedgerUnavailable), databases[seconds].reading() as connection:
            connection.scalar(sa.text("SELECT 1"))
            begins()
            connection.scalar(sa.text("SELECT 2"))
        ended.append(seconds)

    with databases[1].reading() as connection:  # the thread of this process runs before the fork
        connection.scalar(sa.text("SELECT 1"))
    of_child, of_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            read(1, lambda: (os.write(of_child[1], b"."), os.read(of_parent[0], 1)))
        finally:
            os._exit(0 if ended else 1)
    begins = threading.Barrier(3)
    threads = [
        threading.Thread(target=read, args=(seconds, lambda: (begins.wait(), begins.wait())))
        for seconds in databases
    ]
    for thread in threads:
        thread.start()
    begins.wait()
    assert os.read(of_child[0], 1)
    servers.freeze("postgresql")
    try:
        begins.wait()
        os.write(of_parent[1], b".")
        for thread in threads:
            thread.join(20)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        servers.thaw("postgresql")
    assert ended == [1, 3]
