"""A database, a bucket and a topic for the sources of each test, and an installation whose dataset reads them."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from adbc_driver_postgresql import dbapi

from deployment.testbed.servers.postgresql import make_database
from ml_assets.components import Dataset
from ml_assets_tests.components.installation import Installation, component
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.servers.sources.object_warehouse import ObjectWarehouse
from ml_assets_tests.servers.sources.streams import SERVERS_ENV, Stream
from ml_assets_tests.servers.training.s3_server import running
from ml_assets_tests.sources.sales import DATASET
from resources.platform import Platform
from resources.settings import Settings

URL_ENV = "WAREHOUSE_URL"
"""Environment variable that the declarations of these tests name."""


@dataclass(frozen=True)
class Warehouse:
    """A database that teams keep their tables in."""

    url: str

    def store(self, table: str, rows: pl.DataFrame) -> None:
        """Append rows to a table, which is made at first."""
        with dbapi.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest(table, rows.to_arrow(), mode="create_append")
            connection.commit()

    def run(self, statement: str) -> None:
        """Run one statement."""
        with dbapi.connect(self.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.executescript(statement)


@pytest.fixture
def warehouse(servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """An empty database; `URL_ENV` holds its address."""
    name = f"warehouse-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]}"
    make_database(servers.record, name)
    url = servers.record.database_url(name).replace("postgresql+psycopg2", "postgresql")
    monkeypatch.setenv(URL_ENV, url)
    return Warehouse(url)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectWarehouse]:
    """An empty bucket on a server of the test's own; declarations with `ACCESS` reach it."""
    with running(tmp_path / "objects", tmp_path / "s3.log") as server:
        made = ObjectWarehouse(server)
        made.make_bucket()
        made.set_variables(monkeypatch)
        yield made


@pytest.fixture
def stream(servers: RunningServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A topic of the shared broker, not made yet; `SERVERS_ENV` holds the broker's address."""
    address = servers.env["KAFKA_BOOTSTRAP_SERVERS"]
    monkeypatch.setenv(SERVERS_ENV, address)
    return Stream(address, f"sales-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]}")


Declare = Callable[..., Installation]


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    """Return an embedded installation whose only dataset has this source, with changes of its other attributes."""
    home = tmp_path / "home"

    def declared(
        source: dict[str, Any], patience_seconds: float | None = None, **changes: Any
    ) -> Installation:
        made = Installation(home, components=[component(Dataset, DATASET, source=source, **changes)])
        if patience_seconds is not None:
            made.platform = Platform(Settings(home=home), patience_seconds)
        return made

    return declared
