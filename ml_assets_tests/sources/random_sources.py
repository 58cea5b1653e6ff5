"""Random sources of every kind that runs without a server, and the place of each of their rows in the lake.

Here: the rows, the ways to write them where a source finds them, and the comparison with the lake. Not here: the tests.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import polars as pl
from deltalake import write_deltalake
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ml_assets.data.sources.kinds import AnySource, open_source, read_partitions, span_of
from ml_assets.data.sources.protocol import SourceTable
from ml_assets.data.tables import layout
from ml_assets.data.tables.cadence import Cadence, CadenceKind
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import PublishResult, publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.quarantine import without_reasons
from ml_assets.data.validation.volume import VolumeRule
from ml_assets.foundation.days import begin_of
from ml_assets_tests.sources.iceberg_shop import IcebergShop
from ml_assets_tests.tables.orders_table import OrdersTable
from resources.platform import Platform
from resources.settings import Settings

TABLE = "datasets/things"
START = date(2024, 3, 8)
DAYS = 26
"""Days from `START` on of which rows are. Within them, clocks change in five of `ZONES`."""
ZONES = [
    *("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Europe/Berlin", "Africa/Casablanca"),
    *("Asia/Kathmandu", "Atlantic/Azores", "America/St_Johns"),
]
BY_PLACE = ("python", "parquet by day", "csv by day", "jsonl by day", "table")
"""Kinds of sources where the place of a row tells its partition."""
KINDS = (*BY_PLACE, "parquet", "csv", "jsonl", "delta", "iceberg")
"""Kinds that need no server. Where the place does not tell the partition of a row, its time does."""
CATALOG_ENV = "THINGS_CATALOG"
Row = tuple[int, datetime | date | None, str | None, float | None, bool | None]
_OFF = VolumeRule(kind="none", allow_empty=True)
_RUN = PublishingRun(run_id="random")
_SECTION: TypeAdapter[AnySource] = TypeAdapter(AnySource)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One source and its declaration."""

    kind: str
    """One of `KINDS`, or `sql`."""
    cadence: CadenceKind
    zone: str
    has_dates: bool
    """True if the time of a row is a date."""
    limit: float | None
    """`quarantine.limit`; None for `on_bad_rows: reject`."""
    versions: Sequence[Sequence[Row]]
    """Rows of the source at first, and after rows came late, moved, were deleted or lost their time."""

    def key_of(self, moment: datetime | date | None) -> str:
        """Return the partition of a time; of no time, the first one, or the first hour of the first file."""
        cadence = Cadence(self.cadence, START)
        if moment is None and self.cadence == "hourly":
            moment = max(begin_of(START, self.zone), begin_of(START, "UTC"))
        if isinstance(moment, datetime) and self.cadence != "hourly":
            moment = moment.astimezone(ZoneInfo(self.zone)).date()
        return cadence.key_of(START if moment is None else moment)


_SECONDS = st.one_of(
    st.integers(0, DAYS * 86_400 - 1),
    st.sampled_from([day * 86_400 + edge for day in (0, 1, 2, DAYS - 1) for edge in (0, 1, 86_399)]),
)


@st.composite
def cases(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> Case:
    """Return any case of these kinds."""
    cadence = draw(st.sampled_from(["daily", "daily", "hourly", "weekly", "monthly", "quarterly", "yearly"]))
    zone = draw(st.sampled_from(ZONES))
    has_dates = cadence != "hourly" and draw(st.booleans())

    def moment(seconds: int) -> datetime | date:
        local = datetime.combine(START, time()) + timedelta(seconds=seconds)
        # East of UTC, the first day begins before the first hour of the table.
        local += timedelta(days=1 if cadence == "hourly" else 0)
        return local.date() if has_dates else local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)

    times = st.one_of(st.none(), *[_SECONDS.map(moment)] * 4)
    row = st.tuples(
        st.integers(0, 7),
        times,
        st.sampled_from([None, "", " ", "NA", "Größe L", 'a "b", c', "0012", "line\nbreak"]),
        st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        st.sampled_from([True, False, True, False, None]),
    )
    rows: list[Row] = draw(st.lists(row, max_size=8))
    if rows and draw(st.booleans()):
        rows.append(draw(st.sampled_from(rows)))  # the same row twice
    versions = [rows]
    if draw(st.booleans()):
        kept = [one for one in rows if draw(st.booleans())]
        moved: list[Row] = [(one[0], draw(times), *one[2:]) if draw(st.booleans()) else one for one in kept]
        versions.append([*moved, *draw(st.lists(row, max_size=3))])
    return Case(
        kind=draw(st.sampled_from(kinds)),
        cadence=cast(CadenceKind, cadence),
        zone=zone,
        has_dates=has_dates,
        limit=draw(st.sampled_from([None, 0.3, 1.0])),
        versions=versions,
    )


def play(
    case: Case, folder: Path, write: "Callable[[Case, Path, Sequence[Row], Sequence[str]], dict[str, Any]]"
) -> None:
    """Ingest each version of a case. Fail unless each row is on main, in quarantine or in a named rejection, once.

    `write` writes the rows of a source and returns its section.
    """
    orders = OrdersTable(folder)
    spec = _spec(case)
    table = SourceTable(name=TABLE, contract=spec.contract, start=START, is_hourly=case.cadence == "hourly")
    platform = Platform(Settings.model_validate({"home": folder}))
    every = [row for rows in case.versions for row in rows]
    keys = sorted({case.key_of(row[1]) for row in every} | {case.key_of(None)})
    for rows in case.versions:
        section = _SECTION.validate_python(write(case, folder, rows, keys))
        reader = open_source(section, table, platform)
        incoming = read_partitions(reader, spec.cadence, keys, lambda _: None)
        result = publish(orders.store, orders.ledger, spec, incoming, _RUN, NOTHING_DECLARED)
        assert not result.failed
        _require_each_once(case, orders, result, rows)


def _spec(case: Case) -> TableSpec:
    return TableSpec(
        kind="datasets",
        name="things",
        contract=contract(case.zone, has_dates=case.has_dates),
        cadence=Cadence(case.cadence, START),
        volume=_OFF,
        quarantine_limit=case.limit,
        code_version="v1",
    )


def _require_each_once(case: Case, orders: OrdersTable, result: PublishResult, rows: Sequence[Row]) -> None:
    main, aside = TableReader.at(orders.store), cast(str, layout.quarantine_of(TABLE))
    found: Counter[Row] = Counter()

    def add(reader: TableReader, key: str) -> None:
        good = _rows_of(reader, TABLE, key)
        assert {case.key_of(row[1]) for row in good if row[1] is not None} <= {key}
        found.update(good + _rows_of(reader, aside, key))

    for key, merged in result.merged.items():
        add(main, key)
        counts = main.manifest(TABLE, key).reconciliation
        assert counts is not None
        assert counts.missing(merged.rows) == 0
    for key, rejected in result.rejected.items():
        add(TableReader.at(orders.store, rejected.branch), key)  # what was set aside is evidence, too
    undated = [row for row in rows if row[1] is None] if case.kind not in BY_PLACE else []
    if result.merged:
        found.update(_rows_of(main, aside, layout.UNDATED))
    elif undated:
        for one in result.rejected.values():
            assert [each.failing_rows for each in one.verdict.findings if each.rule == "undated"] == [
                len(undated)
            ]
        found.update(undated)
    assert found == Counter(map(_plain, rows)), case


def _rows_of(reader: TableReader, table: str, key: str) -> list[Row]:
    if key not in reader.keys(table):
        return []
    frame = reader.scan(table, [key]).collect()
    frame = without_reasons(frame) if table.startswith(layout.QUARANTINE) else frame
    return [_plain(cast(Row, row)) for row in frame.rows()]


def _plain(row: Row) -> Row:
    """Return a row whose negative zero is zero, as the lake stores it, and whose time is of UTC.

    The last day of the year 9999 means no time, and stays in quarantine as it is.
    """
    at = row[1].astimezone(UTC) if isinstance(row[1], datetime) else row[1]
    at = None if at is not None and at.year == MAXYEAR else at
    return (row[0], at, row[2], None if row[3] is None else row[3] + 0.0, row[4])


@cache
def contract(zone: str, *, has_dates: bool) -> Contract:
    """Return the contract of all cases: a row that repeats an id, or has no flag or no time, breaks it."""
    return Contract.model_validate(
        {
            "primary_key": ["id"],
            "event_time": "at",
            "event_time_zone": zone,
            "columns": [
                {"name": "id", "dtype": "int64"},
                {"name": "at", "dtype": "date" if has_dates else "datetime"},
                {"name": "text", "dtype": "string", "nullable": True},
                {"name": "number", "dtype": "float64", "nullable": True},
                {"name": "flag", "dtype": "bool"},
            ],
        }
    )


def frame_of(case: Case, rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows as a frame."""
    at = pl.Date() if case.has_dates else pl.Datetime("us", "UTC")
    schema = {"id": pl.Int64(), "at": at, "text": pl.String(), "number": pl.Float64(), "flag": pl.Boolean()}
    return pl.DataFrame(rows, schema, orient="row")


ANSWERS: dict[str, pl.DataFrame] = {}
"""Partition → its rows, for the source that is a function."""


def answer(first: date) -> pl.DataFrame:
    """Return the rows of the partition that begins with a day or an hour."""
    return ANSWERS[f"{first:%Y-%m-%dT%H}" if isinstance(first, datetime) else first.isoformat()]


def write_here(case: Case, folder: Path, rows: Sequence[Row], keys: Sequence[str]) -> dict[str, Any]:
    """Write all rows of a source without a server; return its section.

    Where the place tells the partition, rows without a time stand in the first one.
    """
    frame = frame_of(case, rows)
    parts = {key: frame_of(case, [row for row in rows if case.key_of(row[1]) == key]) for key in keys}
    if case.kind == "python":
        ANSWERS.clear()
        ANSWERS.update(parts)
        return {"kind": "python", "function": f"{__name__}.answer"}
    if case.kind == "table":
        other = OrdersTable(folder / "other")
        columns = [
            one | {"nullable": True} for one in _spec(case).contract.model_dump(mode="json")["columns"]
        ]
        loose = Contract.model_validate({"columns": columns})
        spec = TableSpec(
            kind="datasets", name="things", contract=loose, cadence=Cadence(case.cadence, START), volume=_OFF
        )
        incoming = [Incoming(key=key, data=part) for key, part in parts.items()]
        assert not publish(other.store, other.ledger, spec, incoming, _RUN, NOTHING_DECLARED).rejected
        return {"kind": "table", "table": TABLE, "lake": str(folder / "other/lake")}
    if case.kind == "delta":
        write_deltalake(folder / "delta", frame.to_arrow(), mode="overwrite")
        return {"kind": "delta", "path": str(folder / "delta")}
    if case.kind == "iceberg":
        shop = IcebergShop(f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse")
        shop.write(frame)
        os.environ[CATALOG_ENV] = shop.address
        return {"kind": "iceberg", "catalog_env": CATALOG_ENV, "table": "shop.sales"}
    files, suffix = folder / "files", case.kind.split()[0]
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    if case.kind not in BY_PLACE:
        for n in range(2):
            _write_file(files / f"{n}.{suffix}", frame[n::2])
            shutil.copy(files / f"{n}.{suffix}", files / f".{n}.{suffix}")  # hidden
        return {"kind": "file", "path": f"{files}/*.{suffix}"}
    cadence = Cadence(case.cadence, START)
    for key in keys:
        span = span_of(cadence, key)
        for day in span.days(case.zone) if span else ():
            if not (files / f"{day}.{suffix}").exists():
                is_of = [row for row in rows if _day_of(case, row) == day]
                _write_file(files / f"{day}.{suffix}", frame_of(case, is_of))
    return {"kind": "file", "path": f"{files}/%Y-%m-%d.{suffix}"}


def _day_of(case: Case, row: Row) -> date:
    at = row[1]
    if at is None:
        return START
    return at.astimezone(ZoneInfo(case.zone)).date() if isinstance(at, datetime) else at


def _write_file(path: Path, frame: pl.DataFrame) -> None:
    if path.suffix == ".parquet":
        frame.write_parquet(path)
        return
    if frame.schema["at"] != pl.Date:
        frame = frame.with_columns(pl.col("at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))
    if path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_ndjson(path)
