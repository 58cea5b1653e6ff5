"""Source `sql`: a table or a query of PostgreSQL, streamed by ADBC in record batches."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (ADBC and pyarrow are typed in part)

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any, Literal, Self, cast

import polars as pl
from pydantic import Field, model_validator

from ml_assets.data.sources.protocol import (
    CLOCKS_DIFFER,
    OVERLAP,
    Answer,
    Look,
    ReadPartition,
    SourceReader,
    SourceRefused,
    SourceRows,
    SourceTable,
    Span,
    TabularSource,
    VariableName,
    ahead_of,
    differing,
    redated,
    variable,
)
from ml_assets.data.sources.tabular import (
    FIRST_DAY,
    NEVER,
    faults_of_columns,
    fit,
    has_time,
    newest_day,
    require_columns,
    time_column,
    typed_time_column,
    undated_rows,
    watermark_of,
)
from ml_assets.data.tables.spec import MOST_UNDATED, UndatedRows
from resources.addresses import Address
from resources.platform import Platform
from resources.threads import ServerSilent, watched

BATCH_BYTES = 8 * 2**20
"""Bytes of a record batch: beside the rows of a partition, one batch is in memory."""
_ANSWER_SECONDS = 10
"""Time for a new connection. A server that needs longer is away."""
_REMEDY = "choose and cast the columns in source.query; cast numeric, uuid, json and interval, which have no type here"
_FIRST, _END = "ml_assets.first", "ml_assets.end"
"""Settings of the session that hold the bounds. COPY, which streams, takes no parameters of its own."""
_ALL = ("-infinity", "infinity")
"""Bounds of all rows."""
_CHECKSUM = "ml_assets.checksum"
"""Column beside the rows of a partition."""
_TEXT = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | (\$\w*\$).*?\1 | --[^\n]* | /\*.*?\*/ | :: | :(?P<bound>first|end)\b""",
    re.VERBOSE | re.DOTALL,
)
_PASSING = ("08", "40", "53", "57")
"""Classes of SQLSTATE that may be gone at the next try: connection, conflict, resources, shutdown."""

_BUSY = "starting up|shutting down|too many|recovery|terminating"
"""Texts of a server that refuses connections for a while; libpq gives no SQLSTATE for them."""


class SqlSource(TabularSource):
    """Source that is a table or a query of PostgreSQL."""

    kind: Literal["sql"]
    """PostgreSQL."""
    url_env: VariableName
    """Environment variable with the address: `postgresql://user:password@host:port/database`."""
    table: Annotated[str, Field(pattern=r"^\w+(\.\w+)?$")] | None = None
    """Table or view, `name` or `schema.name`, with exactly the columns of the contract. Give `table` or `query`."""
    query: str | None = Field(
        default=None, examples=["SELECT * FROM orders WHERE day >= :first AND day < :end"]
    )
    """Query with the columns of the contract. `:first` and `:end` are the first day of the partition and the day after
    its last one; compared with a moment, a day begins at midnight in `contract.event_time_zone`. Of hourly partitions,
    they are the moments at which the hour and the next one begin."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise ValueError("a source of kind sql needs either `table` or `query`")
        return self

    @property
    def bounds(self) -> frozenset[str]:
        """Bounds that the query uses: `first` and `end`, or some of them."""
        found = _TEXT.finditer(self.query or "")
        return frozenset(one["bound"] for one in found if one["bound"])


@dataclass(frozen=True, slots=True)
class _Places:
    """Spans as places between sorted moments, as PostgreSQL's `width_bucket` numbers them."""

    bounds: Sequence[str]
    """Moments at which spans begin or end, sorted."""
    spans: Mapping[int, Span]
    """Place → span. A place between two spans is absent."""

    @classmethod
    def of(cls, spans: Iterable[Span], table: SourceTable) -> "_Places":
        moments = {span: span.moments(table.time_zone) for span in spans}
        by_begin = {begin: span for span, (begin, _) in moments.items()}
        bounds = sorted({*by_begin, *(end for _, end in moments.values())})
        places = {number: by_begin[one] for number, one in enumerate(bounds, 1) if one in by_begin}
        return cls([one.isoformat() for one in bounds], places)

    @property
    def ranges(self) -> list[tuple[str, str]]:
        """Return begin and end of the times without a gap between their spans, sorted."""
        found: list[tuple[str, str]] = []
        for place in sorted(self.spans):
            begin, end = self.bounds[place - 1], self.bounds[place]
            begin = found.pop()[0] if found and found[-1][1] == begin else begin
            found.append((begin, end))
        return found


class SqlReader(SourceReader):
    """Rows of a table or query, read in read-only transactions."""

    looks_at = "their rows, by one query"

    def __init__(self, section: SqlSource, table: SourceTable, platform: Platform) -> None:
        self._section = section
        super().__init__(table, platform)
        self._address = Address(variable(section.url_env, platform))
        self._connection: Any = None
        if not re.match(r"postgres(ql)?(\+\w+)?://", self._address.reveal()):
            raise SourceRefused(
                f"{table.name}: {section.url_env} holds no address of PostgreSQL: set it to "
                "postgresql://user:password@host:port/database"
            )
        if section.query is not None and table.start is not None and section.bounds != {"first", "end"}:
            raise SourceRefused(
                f"{table.name}: source.query does not use :first and :end, so each partition would get all rows: add "
                "WHERE day >= :first AND day < :end"
            )

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`."""
        frame, undated, version = self._ask(lambda: self._read(span))
        return SourceRows(
            frame=frame,
            returned=frame.height + undated.frame.height,
            undated=undated,
            watermark=watermark_of(frame, self._section.watermark_column, self._table),
            version=version,
        )

    def latest(self) -> date | None:
        """See `SourceReader`."""
        return self.look({}, ()).latest

    def look(self, read: Mapping[Span, ReadPartition], window: Collection[Span]) -> Look:
        """See `SourceReader`. One query finds the newest day, the versions of `window`, and changes of any age."""
        time, mark = _quoted(time_column(self._section, self._table)), self._section.watermark_column
        rechecked, spans = _Places.of(window, self._table), _Places.of(read, self._table)
        parts = [
            f"SELECT 'latest', 0, 0, '', max({time})::timestamptz FROM {self._whole} WHERE {_has_time(time)}"
        ]
        if window:
            parts.append(self._versions(rechecked, time))
        if read and mark is not None:
            parts += self._changes(read, spans, time, _quoted(mark))
        query = " UNION ALL ".join(f"({part})" for part in parts)
        found = self._ask(
            lambda: self._rows(f"SELECT * FROM ({query}) AS look(part, place, rows, checksum, at)")
        )
        of = {
            part[0]: rows
            for part, rows in found.partition_by("part", as_dict=True, include_key=False).items()
        }
        latest, empty = of["latest"]["at"].item(), found.clear()
        sums = {place: f"{rows}:{sum_}" for place, rows, sum_, _ in of.get("version", empty).iter_rows()}
        versions = {span: sums.get(place, "0:0") for place, span in rechecked.spans.items()}
        changed, ahead = differing(read, versions), frozenset[Span]()
        if "clock" in of:
            ahead = ahead_of(of["clock"]["at"].item(), read)
            after = of["after"]["at"].item()
            dated = of.get("change", empty).select("place", "at").iter_rows()
            newest = {spans.spans[place]: at for place, at in dated if place in spans.spans}
            changed |= ahead | (redated(read, newest, after) if after is not None else frozenset())
        return Look(
            latest=newest_day(latest, self._table),
            changed=changed,
            ahead=ahead,
            cost={"queries": 1, "rows": int(found["rows"].sum())},
        )

    def _versions(self, window: "_Places", time: str) -> str:
        """Return the query of number and checksum of the rows of each place in `window`."""
        if self._section.query is None:
            lies_in = " OR ".join(
                f"({time} >= '{first}'::timestamptz AND {time} < '{end}'::timestamptz)"
                for first, end in window.ranges
            )
            return (
                f"SELECT 'version', width_bucket({time}::timestamptz, {_array(window.bounds)}), count(*), "
                f"sum({self._checksum})::text, NULL::timestamptz FROM {self._whole} WHERE {lies_in} GROUP BY 2"
            )
        # Each span has bounds of its own, so that the query chooses its rows as it does when they are read.
        kind = "timestamptz" if self._table.is_hourly else "date"
        firsts, ends = zip(*((str(span.first), str(span.end)) for span in window.spans.values()), strict=True)
        places = f"'{{{','.join(map(str, window.spans))}}}'::int[]"
        query = _with_bounds(self._section.query, lambda bound: f"ml_assets_span.{bound}_day")
        return (
            f"SELECT 'version', place, found.* FROM unnest({places}, {_array(firsts, kind)}, {_array(ends, kind)}) AS "
            f"ml_assets_span(place, first_day, end_day), LATERAL (SELECT count(*), "
            f"coalesce(sum({self._checksum}), 0)::text, NULL::timestamptz FROM ({query}) AS source) AS found"
        )

    def _changes(
        self, read: Mapping[Span, ReadPartition], spans: "_Places", time: str, mark: str
    ) -> list[str]:
        """Return the queries of the server's clock, of the moment of `unread_after`, and of the changes since."""
        # A query may choose the rows of a day by another column than `time_column`.
        overlap = OVERLAP if self._section.query is None else timedelta(0)
        marks = {one.watermark.isoformat() for one in read.values() if one.watermark is not None}
        after = (
            f"(SELECT max(mark) - interval '{overlap.days} d' FROM unnest({_array(sorted(marks))}) AS mark "
            f"WHERE mark <= now() + interval '{CLOCKS_DIFFER.seconds} s')"
        )
        return [
            "SELECT 'clock', 0, 0, '', now()",
            f"SELECT 'after', 0, 0, '', {after}",
            f"SELECT 'change', width_bucket({time}::timestamptz, {_array(spans.bounds)}), count(*), '', max({mark}) "
            f"FROM {self._whole} WHERE {mark} > {after} AND {_has_time(mark)} AND {_has_time(time)} GROUP BY 2",
        ]

    @property
    def _checksum(self) -> str:
        """Number of a row that follows from its values. The sum over rows does not depend on their order."""
        names = self._table.columns
        return f"""hashtextextended(ROW({", ".join(map(_quoted, names))})::text COLLATE "C", 0)"""

    def preview(self, rows: int) -> pl.DataFrame:
        """See `SourceReader`."""
        newest = self._section.time_column or self._table.event_time
        order = f" ORDER BY {_quoted(newest)} DESC" if newest else ""
        query = f"SELECT * FROM {self._whole}{order} LIMIT {rows:d}"
        found, frame = self._ask(lambda: (self._columns(), self._rows(query)))
        # What arrives as text or bytes has a type of its own, which a contract cannot name.
        special = [name for name, dtype in found.items() if dtype == pl.Object()]
        return frame.with_columns(pl.Series(name, frame[name].to_list(), dtype=pl.Object) for name in special)

    def check(self) -> Sequence[str]:
        """See `SourceReader`."""
        found = self._ask(self._columns)
        return faults_of_columns(found, self._section, self._table, self._place, _REMEDY)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(Exception):  # it may be broken, and nothing was written
                self._connection.close()
            self._connection = None

    @property
    def _place(self) -> str:
        return self._section.table or "the result of source.query"

    @property
    def _whole(self) -> str:
        """Whole table, or whole query, as an item of FROM."""
        if self._section.query is None:
            return ".".join(map(_quoted, cast(str, self._section.table).split(".")))
        kind = "timestamptz" if self._table.is_hourly else "date"
        query = _with_bounds(self._section.query, lambda name: f"current_setting('ml_assets.{name}')::{kind}")
        return f"({query}) AS source"

    def _read(self, span: Span | None) -> tuple[pl.DataFrame, UndatedRows, str | None]:
        """Return the rows of `span`, those without a time, and the version. A query itself chooses rows, also by their
        nulls. Without a partition there is no version."""
        found = self._columns()
        require_columns(found, self._table, self._place, _REMEDY)
        names = self._table.columns or found
        columns = ", ".join(map(_quoted, names))
        if span is None:
            batches = self._batches(f"SELECT {columns} FROM {self._whole}")
            rows = pl.concat([fit(one, self._table, self._place, _REMEDY) for one in batches], rechunk=False)
            return rows, UndatedRows(), None
        query = f'SELECT {columns}, {self._checksum} AS "{_CHECKSUM}" FROM {self._whole}'
        if self._section.query is not None:
            rows, version = self._partition(query, (str(span.first), str(span.end)))
            return rows, UndatedRows(), version
        column, dtype = typed_time_column(found, self._section, self._table, self._place)
        if dtype == pl.Date:
            cast_to, bounds = "date", (str(span.first), str(span.end))
        else:
            first, end = span.moments(self._table.time_zone)
            cast_to, bounds = "timestamptz", (first.isoformat(), end.isoformat())
        named = _quoted(column)
        # One statement, so that a row which gets its time meanwhile is neither in both parts nor in none.
        rows, version = self._partition(
            f"{query} WHERE {named} >= current_setting('{_FIRST}')::{cast_to} "
            f"AND {named} < current_setting('{_END}')::{cast_to} "
            f"UNION ALL (SELECT {columns}, NULL FROM {self._whole} WHERE ({_has_time(named)}) IS NOT TRUE "
            f"LIMIT {MOST_UNDATED + 1})",
            bounds,
        )
        is_dated = has_time(column, dtype)
        return rows.filter(is_dated), undated_rows(rows.filter(~is_dated), column), version

    def _partition(self, query: str, bounds: tuple[str, str]) -> tuple[pl.DataFrame, str]:
        """Return the rows of `query`, fitted batch by batch, and their version: number and sum of the checksums. Rows
        without a checksum do not count."""
        frames: list[pl.DataFrame] = []
        count = total = 0
        for batch in self._batches(query, bounds):
            checksums = batch.get_column(_CHECKSUM).drop_nulls()
            count += checksums.len()
            total += int(checksums.cast(pl.Int128).sum())  # 64 bits would overflow
            frames.append(fit(batch.drop(_CHECKSUM), self._table, self._place, _REMEDY))
        return pl.concat(frames, rechunk=False), f"{count}:{total}"

    def _columns(self) -> Mapping[str, pl.DataType]:
        """Return the columns of the source, without reading rows."""
        with self._cursor(_ALL) as cursor:
            return _types(cursor.adbc_execute_schema(f"SELECT * FROM {self._whole}"))

    def _rows(self, query: str, bounds: tuple[str, str] = _ALL) -> pl.DataFrame:
        # The types of the frame without rows may be PostgreSQL's own, which arrive as texts or bytes.
        empty, *frames = self._batches(query, bounds)
        return pl.concat(frames, rechunk=False) if frames else empty

    def _batches(self, query: str, bounds: tuple[str, str] = _ALL) -> Iterator[pl.DataFrame]:
        """Yield a frame without rows, for its types, then the rows of `query` in batches."""
        with self._cursor(bounds) as cursor:
            cursor.execute(query)
            reader = cursor.fetch_record_batch()
            yield pl.DataFrame(schema=_types(reader.schema))
            for batch in reader:
                yield cast(pl.DataFrame, pl.from_arrow(_without_extensions(batch)))

    @contextmanager
    def _cursor(self, bounds: tuple[str, str]) -> Iterator[Any]:
        """Yield a cursor in a read-only transaction with the bounds and the table's time zone."""
        if self._connection is None:
            self._connection = _connect(self._address)
        connection = self._connection  # that of this call, also after the reader gave the call up
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(
                f"SELECT set_config('{_FIRST}', $1, true), set_config('{_END}', $2, true), "
                "set_config('TimeZone', $3, true)",
                (*bounds, self._table.time_zone),
            )
            cursor.fetchall()
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(BATCH_BYTES)})
            yield cursor
        connection.rollback()

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`; retry while the server does not answer. Raises our errors only."""

        def once() -> Answer:
            try:
                return watched(call, self._is_answering, self._patience, _ANSWER_SECONDS)
            except BaseException as error:
                if isinstance(error, ServerSilent | KeyboardInterrupt):
                    self._connection = None  # a thread still waits on it
                self.close()  # its transaction, or the connection itself, is broken
                raise

        try:
            return self._patiently(once, _may_pass)
        except (_driver().Error, OSError) as error:
            said = self._address.hide_in(_line(error))
            if _may_pass(error):
                raise self._away(f"PostgreSQL at {self._address} ({self._section.url_env})", said) from error
            raise SourceRefused(
                f"{self._table.name}: PostgreSQL at {self._address} refused {self._place}: {said}. Check "
                f"{self._section.url_env}, the rights of its user, and the source section"
            ) from error

    def _is_answering(self) -> bool:
        """Return True if the server answers a connection, with a refusal or with the result of a query."""
        try:
            with _connect(self._address) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
        except (_driver().Error, OSError) as error:
            return "FATAL:" in str(error)
        return True


def _driver() -> Any:
    """Return the driver of the extra `postgres`: `connect`, and the classes of its errors."""
    from adbc_driver_postgresql import dbapi

    return dbapi


def _connect(address: Address) -> Any:
    url = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", address.reveal())
    if "connect_timeout" not in url:
        url += f"{'&' if '?' in url else '?'}connect_timeout={_ANSWER_SECONDS:d}"
    return _driver().connect(url)


def _with_bounds(query: str, value: Callable[[str], str]) -> str:
    """Return a query with its bounds, `first` and `end`, replaced by `value`, but not in texts, names and comments."""

    def replaced(found: re.Match[str]) -> str:
        return value(found["bound"]) if found["bound"] else found[0]

    # The line break ends a comment at the end of the query.
    return _TEXT.sub(replaced, query).strip().rstrip(";") + "\n"


def _has_time(quoted: str) -> str:
    """Return the condition of `has_time` in SQL. `infinity` is later than all days, and a null is not true."""
    # A column of dates ignores the time.
    return f"{quoted} >= '{FIRST_DAY} 00:00+00' AND {quoted} < '{NEVER} 00:00+00'"


def _array(values: Iterable[str], kind: str = "timestamptz") -> str:
    return f"'{{{','.join(values)}}}'::{kind}[]"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _types(fields: Any) -> dict[str, pl.DataType]:
    """Return name → polars type of an Arrow schema. A type that Arrow lacks keeps its name in PostgreSQL."""
    import pyarrow as pa

    def stored(dtype: Any) -> Any:
        if isinstance(dtype, pa.BaseExtensionType):
            return dtype.storage_type
        return pa.string() if pa.types.is_interval(dtype) else dtype

    plain = pa.schema([pa.field(one.name, stored(one.type)) for one in fields])
    frame = cast(pl.DataFrame, pl.from_arrow(plain.empty_table()))
    special = {one.name for one in fields if isinstance(one.type, pa.BaseExtensionType)}
    return {name: pl.Object() if name in special else dtype for name, dtype in frame.schema.items()}


def _without_extensions(batch: Any) -> Any:
    """Return a batch with the stored form of types that Arrow lacks: numeric and json as text, uuid as bytes."""
    import pyarrow as pa

    columns = [one.storage if isinstance(one.type, pa.BaseExtensionType) else one for one in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _may_pass(error: Any) -> bool:
    driver = _driver()
    if isinstance(error, driver.Error):
        state = error.sqlstate
        if state:
            return state[:2] in _PASSING
        is_refused = "FATAL:" in str(error) and not re.search(_BUSY, str(error))
        return isinstance(error, driver.OperationalError) and not is_refused
    # pyarrow raises errors of a stream as OSError, with the text of libpq.
    return isinstance(error, OSError) and not isinstance(error, SourceRefused) and "ERROR:" not in str(error)


def _line(error: Exception) -> str:
    text = str(error).partition("Query was:")[0]
    return " ".join(text.split()).rstrip(".")[:300]
