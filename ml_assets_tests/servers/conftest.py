"""The real servers: those of the folder that `SERVERS_STATE` names, or new ones that end with the tests. Of several
test processes at once (`-n 2`) the first has the named ones, each other has new ones beside them.

A server that does not start is a failure of every test that needs it, never a skip. `make test-servers` builds and
starts them first: an empty cache needs minutes, which no test should wait for.
"""

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import load
from ml_assets_tests.scheduling import Grouped
from ml_assets_tests.servers.running_servers import RunningServers, named_folder, other_worker

_VERSIONS = pytest.StashKey[dict[str, str]]()


_TOGETHER = ("pipeline", "installed")
"""Folders whose tests share what takes minutes to make."""
_FIRST = (*_TOGETHER, "training", "test_bad_input.py")
"""Slowest tests, which begin first so that nobody waits for them in the end."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Grouped:
    """Schedule tests on several processes: tests that share fixtures stay in one process."""
    return Grouped(config, log, lambda nodeid: _place(nodeid, _TOGETHER) or nodeid.rpartition("::")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    last = len(_FIRST)
    items.sort(key=lambda item: _FIRST.index(place) if (place := _place(item.nodeid, _FIRST)) else last)


def _place(nodeid: str, places: Sequence[str]) -> str | None:
    """Return which of these folders and modules a test is in."""
    parts = Path(nodeid.partition("::")[0]).parts
    return next((place for place in places if place in parts), None)


def pytest_report_header() -> str | None:
    """Return what runs in the named folder, as the servers themselves said."""
    folder = named_folder()
    record = None if folder is None else load(folder)
    return None if record is None else _sentence(dict(record.versions))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if versions := terminalreporter.config.stash.get(_VERSIONS, {}):
        terminalreporter.write_line(_sentence(versions))


def _sentence(versions: dict[str, str]) -> str:
    return f"servers: {', '.join(versions.values())}"


@pytest.fixture(scope="session")
def servers(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServers]:
    """S3, PostgreSQL, lakeFS, MLflow, Kafka and Redis. A test may kill or freeze any: all are up again before the
    next.
    """
    named, worker = named_folder(), other_worker()
    if named is None:
        folder = tmp_path_factory.mktemp("servers") / "state"
    else:
        folder = named.with_name(f"{named.name}-{worker}") if worker else named
    group = Servers(folder)
    try:
        group.up()
        pytestconfig.stash[_VERSIONS] = dict(group.record.versions)
        yield RunningServers(group)
    finally:
        if folder != named:
            group.down()


@pytest.fixture(autouse=True)
def _all_are_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start all servers before a test that uses them, and point the S3 clients of this process to them."""
    if "servers" in request.fixturenames:
        servers: RunningServers = request.getfixturevalue("servers")
        servers.up()
        for name, value in servers.storage_env.items():
            monkeypatch.setenv(name, value)


@pytest.fixture
def own_servers(tmp_path: Path) -> Generator[Servers]:
    """S3 and PostgreSQL of one test's own, not up yet; what it starts ends with it."""
    group = Servers(tmp_path / "own", ("s3", "postgresql"))
    yield group
    group.down()
