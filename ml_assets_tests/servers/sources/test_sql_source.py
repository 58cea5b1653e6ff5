"""A table of a real PostgreSQL as a source: days by time zone, queries, watermarks, changes and outages."""

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deployment.testbed.servers import Servers
from deployment.testbed.servers.postgresql import query
from ml_assets.data.sources import sql_source
from ml_assets.data.sources.preview import preview
from ml_assets.data.sources.protocol import ReadPartition, SourceAway, Span
from ml_assets.data.sources.sql_source import SqlReader
from ml_assets.data.tables.layout import UNDATED
from ml_assets.data.tables.publish.rejected import quarantined_rows
from ml_assets_tests.components.installation import failure_of, materialized
from ml_assets_tests.servers.running_servers import RunningServers
from ml_assets_tests.servers.sources.conftest import URL_ENV, Declare, Warehouse
from ml_assets_tests.sources.changing_sales import (
    ALL,
    CHANGES,
    Change,
    ChangingSales,
    SalesLake,
    require_that_main_follows,
)
from ml_assets_tests.sources.hourly_sales import HOURLY, HOURS, LAST, require_every_hour, rows_of, span_of
from ml_assets_tests.sources.landed_sales import as_read, reader_of, reopened, require_every_day
from ml_assets_tests.sources.random_sources import Case, Row, cases, frame_of, play
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows

TABLE = {"kind": "sql", "url_env": URL_ENV, "table": "sales"}
QUERY = {
    "kind": "sql",
    "url_env": URL_ENV,
    "query": """
        SELECT *, ':first' = ':end' AS same FROM (SELECT * FROM sales /* :first */) AS all_sales
        WHERE sold_at >= :first AND sold_at < :end -- and not :end
    """,
}
HOUR_QUERY = QUERY | {"query": "SELECT * FROM sales WHERE sold_at >= :first AND sold_at < :end"}


def test_each_day_of_a_table_lands_bit_for_bit(declare: Declare, warehouse: Warehouse) -> None:
    warehouse.store("sales", rows(*reversed(DAYS)))
    installation = declare(TABLE | {"watermark_column": "changed_at"})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    shown = materialized(result, SALES)[DAYS[4]].metadata["source watermark"].value
    assert datetime.fromisoformat(str(shown)) == rows(DAYS[4])["changed_at"].max()


def test_the_bounds_of_a_query_are_days_of_the_time_zone(declare: Declare, warehouse: Warehouse) -> None:
    warehouse.store("sales", rows(*DAYS))
    contract = declare(TABLE)._components[0].spec.contract.model_dump(mode="json")  # pyright: ignore[reportPrivateUsage]
    contract["columns"] = [*contract["columns"], {"name": "same", "dtype": "bool"}]
    installation = declare(QUERY, contract=contract)
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    for day in DAYS:
        assert installation.main.scan(SALES, [day]).drop("same").collect().equals(rows(day))
    assert reader_of(installation, SqlReader).latest() == date.fromisoformat(DAYS[-1])


@pytest.mark.parametrize("source", [TABLE, HOUR_QUERY])
def test_hours_of_utc_land_and_a_change_reopens_its_hour(
    declare: Declare, warehouse: Warehouse, source: dict[str, Any]
) -> None:
    warehouse.store("sales", rows(*DAYS))
    require_every_hour(installation := declare(source | {"watermark_column": "changed_at"}, **HOURLY))
    reader = reader_of(installation, SqlReader)
    assert reader.latest() == LAST
    read = as_read(reader, map(span_of, HOURS))
    assert reopened(reader, read, read) == set()
    sale = rows_of(HOURS[12])["sale"].item()
    warehouse.run(f"UPDATE sales SET changed_at = changed_at + interval '30 d' WHERE sale = {sale}")
    assert reopened(reader, read) == reopened(reader, read, read) == {span_of(HOURS[12])}


def test_a_date_does_not_tell_the_hour(declare: Declare, warehouse: Warehouse) -> None:
    warehouse.store("sales", rows(*DAYS))
    warehouse.run("ALTER TABLE sales ADD day date; UPDATE sales SET day = sold_at::date")
    columns = [*HOURLY["contract"]["columns"], {"name": "day", "dtype": "date"}]
    contract = HOURLY["contract"] | {"columns": columns}
    installation = declare(TABLE | {"time_column": "day"}, **HOURLY | {"contract": contract})
    said = failure_of(installation.run(SALES, partition="2024-03-08T05"))
    assert "time_column 'day' of sales" in said
    assert " is date: " in said


NO_TIMES = ["NULL", "'infinity'", "'-infinity'", "'294000-01-01'", "'9999-12-31'"]


def test_infinity_is_not_a_time(declare: Declare, warehouse: Warehouse) -> None:
    """It ended each tick of a sensor with a panic of polars, and a null landed nowhere."""
    warehouse.store("sales", rows(*DAYS))
    for number, moment in enumerate(NO_TIMES, start=900):
        warehouse.run(
            f"INSERT INTO sales SELECT {number}, {moment}, product, units, price, gift, changed_at FROM sales LIMIT 1"
        )
    source = TABLE | {"watermark_column": "changed_at"}
    said = failure_of(declare(source).run(SALES, partition=DAYS[1]))
    assert "undated sold_at: 5 rows" in said
    installation = declare(source, on_bad_rows="quarantine", quarantine={"limit": 0.5})
    reader = reader_of(installation, SqlReader)
    assert reader.latest() == date.fromisoformat(DAYS[-1])
    spec = installation._components[0].spec  # pyright: ignore[reportPrivateUsage]
    assert str(preview(spec.source, spec.source_table, installation.platform).rows)
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    aside = quarantined_rows(installation.main, SALES, UNDATED)
    assert aside["sale"].to_list() == [900, 901, 902, 903, 904]


def _write_table(
    warehouse: Warehouse,
) -> Callable[[Case, Path, Sequence[Row], Sequence[str]], dict[str, Any]]:
    """Return the writer of a random table; rows without a time have one of `NO_TIMES`."""

    def write(case: Case, folder: Path, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, Any]:
        name = f"t{folder.name}".lower()
        warehouse.run(f"DROP TABLE IF EXISTS {name}")
        warehouse.store(name, frame_of(case, rows).with_row_index("n"))
        for number, moment in enumerate(NO_TIMES):
            warehouse.run(
                f"UPDATE {name} SET at = {moment} WHERE at IS NULL AND n % {len(NO_TIMES)} = {number}"
            )
        warehouse.run(f"ALTER TABLE {name} DROP n")
        return {"kind": "sql", "url_env": URL_ENV, "table": name}

    return write


def _no_row_is_lost(warehouse: Warehouse, count: int) -> None:
    write = _write_table(warehouse)

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(["sql"]))
    def each(case: Case) -> None:
        with tempfile.TemporaryDirectory() as folder:
            play(case, Path(folder), write)

    each()


@pytest.mark.timeout(1200)
def test_each_row_of_random_tables_is_somewhere_once(warehouse: Warehouse) -> None:
    _no_row_is_lost(warehouse, 30)


@pytest.mark.nightly
@pytest.mark.timeout(36_000)
def test_each_row_of_1000_random_tables_is_somewhere_once(warehouse: Warehouse) -> None:
    _no_row_is_lost(warehouse, 1000)


def test_changed_columns_name_what_changed_since_yesterday(declare: Declare, warehouse: Warehouse) -> None:
    warehouse.store("sales", rows(*DAYS))
    installation = declare(TABLE)
    assert installation.run(SALES, partition=DAYS[0]).success
    before = installation.main.digests(SALES)
    warehouse.run("ALTER TABLE sales RENAME gift TO present")
    warehouse.run("ALTER TABLE sales ALTER price TYPE text")
    warehouse.run("ALTER TABLE sales ADD note numeric")
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[1])
    said = failure_of(result)
    assert "added: present (bool), note" in said
    assert "removed: gift (bool); changed:" in said
    assert re.search(r" changed: price \(.*string.*float64\)", said)
    assert "columns in source.query" in said
    assert installation.main.digests(SALES) == before
    (fault,) = reader_of(installation, SqlReader).check()
    assert "added: present" in fault


SPANS = [Span(day, day + timedelta(days=1)) for day in map(date.fromisoformat, DAYS)]


@pytest.mark.parametrize("source", [TABLE, HOUR_QUERY])
def test_newer_changes_reopen_days_before_the_window(
    declare: Declare, warehouse: Warehouse, source: dict[str, Any]
) -> None:
    warehouse.store("sales", rows(*DAYS))
    reader = reader_of(declare(source | {"watermark_column": "changed_at"}), SqlReader)
    read = as_read(reader, SPANS)
    assert reopened(reader, read, SPANS[3:]) == set()
    number = 3 * date.fromisoformat(DAYS[1]).toordinal() + 2  # the sale at 23:59:59
    warehouse.run(
        f"UPDATE sales SET units = 5, changed_at = changed_at + interval '5 d' WHERE sale = {number}"
    )
    look = reader.look(read, SPANS[3:])
    assert look.changed == {SPANS[1]}
    assert look.cost["queries"] == 1


def test_the_name_of_a_column_may_have_a_dot(declare: Declare, warehouse: Warehouse) -> None:
    warehouse.store("sales", rows(*DAYS).rename({"product": "product.name"}))
    columns = [
        one | {"name": "product.name"} if one["name"] == "product" else one
        for one in DATASET["contract"]["columns"]
    ]
    installation = declare(TABLE, contract=DATASET["contract"] | {"columns": columns})
    result = installation.run(SALES, partition=DAYS[0])
    assert result.success, failure_of(result)


def test_a_window_with_a_gap_reads_no_rows_of_the_gap(declare: Declare, warehouse: Warehouse) -> None:
    """A partition whose run failed stays in the window, which begins much later."""
    warehouse.store("sales", rows(*DAYS))
    reader = reader_of(declare(TABLE), SqlReader)
    read = as_read(reader, SPANS)
    look = reader.look(read, [SPANS[0], SPANS[4]])
    assert look.changed == set()
    assert look.cost == {"queries": 1, "rows": 6}


@pytest.mark.parametrize("source", [TABLE, HOUR_QUERY])
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sales SET price = price + 1 WHERE sale = {}",
        "UPDATE sales SET gift = NULL WHERE sale = {}",
        "DELETE FROM sales WHERE sale = {}",
        "UPDATE sales SET sale = -sale, changed_at = changed_at - interval '90 d' WHERE sale = {}",
        "INSERT INTO sales SELECT * FROM sales WHERE sale = {}",
    ],
)
def test_a_change_that_nothing_dates_reopens_its_day(
    declare: Declare, warehouse: Warehouse, source: dict[str, Any], change: str
) -> None:
    """The dates of changes are older than everything that was read, or there are none."""
    warehouse.store("sales", rows(*DAYS))
    reader = reader_of(declare(source), SqlReader)
    read = as_read(reader, SPANS)
    assert reopened(reader, read, SPANS) == set()
    warehouse.run("CREATE TABLE other AS SELECT * FROM sales ORDER BY random()")
    warehouse.run("DROP TABLE sales; ALTER TABLE other RENAME TO sales")
    assert reopened(reader, read, SPANS) == set()  # the order of rows is no change
    warehouse.run(change.format(3 * date.fromisoformat(DAYS[2]).toordinal()))
    assert reopened(reader, read, SPANS) == {SPANS[2]}


@pytest.mark.parametrize("source", [TABLE, HOUR_QUERY])
def test_a_row_that_moved_reopens_both_days(
    declare: Declare, warehouse: Warehouse, source: dict[str, Any]
) -> None:
    warehouse.store("sales", rows(*DAYS))
    reader = reader_of(declare(source), SqlReader)
    read = as_read(reader, SPANS)
    number = 3 * date.fromisoformat(DAYS[1]).toordinal()
    warehouse.run(f"UPDATE sales SET sold_at = sold_at + interval '2 d' WHERE sale = {number}")
    assert reopened(reader, read, SPANS) == {SPANS[1], SPANS[3]}


def test_a_late_commit_and_a_clock_set_back_reopen_their_days(declare: Declare, warehouse: Warehouse) -> None:
    """A change is dated before the newest one that was read. A day dated after the server's clock is in doubt."""
    warehouse.store("sales", rows(*DAYS))
    reader = reader_of(declare(TABLE | {"watermark_column": "changed_at"}), SqlReader)
    read = as_read(reader, SPANS)
    number = 3 * date.fromisoformat(DAYS[3]).toordinal()
    warehouse.run(f"UPDATE sales SET changed_at = changed_at + interval '1 h' WHERE sale = {number}")
    assert reopened(reader, read) == {SPANS[3]}
    read = as_read(reader, SPANS)
    assert reader.look(read, ()).ahead == frozenset()
    read[SPANS[0]] = ReadPartition(datetime.now(UTC) + timedelta(days=1), read[SPANS[0]].version)
    look = reader.look(read, ())
    assert look.changed == look.ahead == {SPANS[0]}


class SalesTable(ChangingSales):
    """A table of PostgreSQL."""

    def __init__(self, warehouse: Warehouse, source: dict[str, Any]) -> None:
        self._warehouse = warehouse
        self._source = source
        warehouse.run("DROP TABLE IF EXISTS sales")

    @property
    def source(self) -> dict[str, Any]:
        return self._source

    def insert(self, frame: pl.DataFrame) -> None:
        self._warehouse.store("sales", frame)

    def delete(self, sale: int) -> None:
        self._warehouse.run(f"DELETE FROM sales WHERE sale = {sale}")


@pytest.mark.parametrize("source", [TABLE, HOUR_QUERY | {"watermark_column": "changed_at"}])
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(changes=st.lists(CHANGES, max_size=8))
def test_main_follows_random_changes_of_a_table(
    warehouse: Warehouse, source: dict[str, Any], changes: list[Change]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sales = SalesTable(warehouse, source)
        require_that_main_follows(sales, SalesLake(Path(folder), sales.source | ALL), changes)


def test_a_recheck_of_a_thousand_days_is_one_fast_query(declare: Declare, warehouse: Warehouse) -> None:
    """The bar is 50 ms on an idle machine (`claims/servers/sql_source.py`); a machine may be ten times slower."""
    warehouse.run(
        "CREATE TABLE sales AS SELECT n::int8 AS sale, timestamptz '2021-06-12Z' + n * interval '30 s' AS sold_at, "
        "'tea' AS product, (n % 100)::int2 AS units, n::float8 AS price, n % 2 = 0 AS gift, "
        "timestamptz '2021-06-13Z' + n * interval '30 s' AS changed_at FROM generate_series(1, 2880 * 1000) AS n; "
        "CREATE INDEX ON sales (sold_at); CREATE INDEX ON sales (changed_at); ANALYZE sales"
    )
    reader = reader_of(declare(TABLE | {"watermark_column": "changed_at"}), SqlReader)
    first = date(2021, 6, 12)
    spans = [Span(first + timedelta(days=n), first + timedelta(days=n + 1)) for n in range(1000)]
    newest = as_read(reader, spans[-4:])
    read = {span: ReadPartition(datetime(2021, 6, 13, tzinfo=UTC), "1:1") for span in spans} | newest
    took: list[float] = []
    for _ in range(20):
        begun = time.perf_counter()
        look = reader.look(read, spans[-2:])
        took.append(time.perf_counter() - begun)
        assert look.changed == frozenset()
        assert look.cost["queries"] == 1
    assert min(took) < 0.5, took


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"table": "sale"}, 'relation "sale" does not exist'),
        ({"table": "sales", "time_column": "nope"}, "time_column 'nope' of sales is missing"),
        ({"query": "SELECT * FROM sales"}, "does not use :first and :end"),
        ({"query": "DELETE FROM sales WHERE sold_at >= :first AND sold_at < :end RETURNING *"}, "refused"),
    ],
)
def test_a_wrong_section_is_refused_with_its_remedy(
    declare: Declare, warehouse: Warehouse, source: dict[str, Any], said: str
) -> None:
    warehouse.store("sales", rows(*DAYS))
    installation = declare({"kind": "sql", "url_env": URL_ENV, **source})
    assert said in failure_of(installation.run(SALES, partition=DAYS[0]))
    assert declare(TABLE).run(SALES, partition=DAYS[0]).success  # no row was deleted


def test_a_wrong_password_is_refused_and_never_shown(
    declare: Declare, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, servers: RunningServers
) -> None:
    secret = "a-wrong-secret"
    monkeypatch.setenv(URL_ENV, warehouse.url.replace(servers.record.database_password, secret))
    said = failure_of(declare(TABLE).run(SALES, partition=DAYS[0]))
    assert "password authentication failed" in said
    assert f"Check {URL_ENV}" in said
    assert secret not in said
    monkeypatch.delenv(URL_ENV)
    assert f"the environment variable {URL_ENV} is not set" in failure_of(
        declare(TABLE).run(SALES, partition=DAYS[0])
    )


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """A PostgreSQL with the sales, for this test alone, because lakeFS and MLflow need the others'."""
    group = Servers(tmp_path / "own", ("postgresql",))
    try:
        group.up()
        url = group.record.database_url("ledger").replace("postgresql+psycopg2", "postgresql")
        monkeypatch.setenv(URL_ENV, url)
        Warehouse(url).store("sales", rows(*DAYS))
        yield group
    finally:
        group.down()


def test_an_outage_is_waited_for_and_costs_one_wait(declare: Declare, own_server: Servers) -> None:
    reader = reader_of(declare(TABLE), SqlReader)
    assert reader.latest() == date.fromisoformat(DAYS[-1])
    own_server.kill("postgresql")
    impatient = declare(TABLE, patience_seconds=0.5)
    result = impatient.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert " for 0.5 s" in failure_of(result)
    assert materialized(result, SALES) == {}
    back = threading.Timer(0.5, own_server.up)
    back.start()
    assert reader.latest() == date.fromisoformat(DAYS[-1])
    back.join()


def test_a_frozen_server_is_given_up_and_a_slow_query_is_not(
    declare: Declare, own_server: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process keeps its connections, so nothing but another connection tells it from a slow query."""
    try:
        slow = "SELECT * FROM sales, pg_sleep(2) WHERE sold_at >= :first AND sold_at < :end"
        slow = slow.replace("SELECT *", f"SELECT {', '.join(rows(DAYS[0]).columns)}")
        installation = declare({"kind": "sql", "url_env": URL_ENV, "query": slow}, patience_seconds=0.2)
        assert installation.run(SALES, partition=DAYS[0]).success
        before = installation.main.digests(SALES)
        monkeypatch.setattr(sql_source, "_ANSWER_SECONDS", 2)
        for connected in (True, False):
            reader = reader_of(declare(TABLE, patience_seconds=0.2), SqlReader)
            assert not connected or reader.latest() == date.fromisoformat(DAYS[-1])
            own_server.freeze("postgresql")
            with pytest.raises(SourceAway, match=r"for 0\.2 s") as raised:
                reader.latest()
            assert ("kept the connection" in str(raised.value)) == connected
            if connected:
                said = failure_of(installation.run(SALES, partition=DAYS[0], last=DAYS[4]))
                assert " for 0.2 s" in said
            own_server.thaw("postgresql")
            assert reader.latest() == date.fromisoformat(DAYS[-1])
            assert installation.main.digests(SALES) == before
    finally:
        own_server.thaw("postgresql")


def test_a_server_that_freezes_during_a_query_is_given_up(
    declare: Declare, own_server: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        monkeypatch.setattr(sql_source, "_ANSWER_SECONDS", 2)
        slow = "SELECT * FROM sales, pg_sleep(600) WHERE sold_at >= :first AND sold_at < :end"
        reader = reader_of(
            declare({"kind": "sql", "url_env": URL_ENV, "query": slow}, patience_seconds=0.5), SqlReader
        )

        def freeze_it() -> None:
            sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            while query(own_server.record, sleeping).strip() == "0":
                time.sleep(0.05)
            own_server.freeze("postgresql")

        froze = threading.Thread(target=freeze_it)
        froze.start()
        with pytest.raises(SourceAway, match="kept the connection"):
            reader.preview(3)
        froze.join()
    finally:
        own_server.thaw("postgresql")


def test_a_partition_of_many_batches_is_whole(declare: Declare, warehouse: Warehouse) -> None:
    """Rows of about 20 MB arrive in several record batches, with the types of the contract."""
    warehouse.run(
        "CREATE TABLE sales AS SELECT n::int8 AS sale, timestamptz '2024-03-08 12:00Z' AS sold_at, "
        "repeat('tea', 40) AS product, (n % 100)::int4 AS units, n::real AS price, n % 2 = 0 AS gift, "
        "timestamptz '2024-03-09Z' AS changed_at FROM generate_series(1, 100000) AS n"
    )
    installation = declare(TABLE)
    result = installation.run(SALES, partition=DAYS[0])
    assert result.success, failure_of(result)
    stored = installation.main.scan(SALES, [DAYS[0]]).collect()
    assert stored["sale"].to_list() == list(range(1, 100_001))
    assert stored["units"].dtype == pl.Int16
    assert stored["price"].to_list()[-1] == 100_000.0
    assert stored["changed_at"].unique().to_list() == [datetime(2024, 3, 9, tzinfo=UTC)]
