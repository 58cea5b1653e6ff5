"""Source `sql`: a table or a query of PostgreSQL, streamed by ADBC in record batches."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (ADBC and pyarrow are typed in part)

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeVar, cast

import polars as pl
from pydantic import Field, model_validator

from ml_assets.sources.errors import SourceAway, SourceRefused
from ml_assets.sources.object_storage import variable
from ml_assets.sources.protocol import OVERLAP, SourceReader, SourceRows, SourceTable, Span
from ml_assets.sources.source_section import VariableName
from ml_assets.sources.tabular import (
    TabularSource,
    faults_of_columns,
    fit,
    newest_complete_day,
    require_columns,
    time_column,
    typed_time_column,
    watermark_of,
)
from ml_assets.sources.watched_call import ServerSilent, watched
from resources.addresses import Address
from resources.platform import Platform
from resources.retry import patiently

Answer = TypeVar("Answer")

BATCH_BYTES = 8 * 2**20
"""Bytes of a record batch: beside the rows of a partition, one batch is in memory."""
_ANSWER_SECONDS = 10
"""Time for a new connection. A server that needs longer is away."""
_REMEDY = "choose and cast the columns in source.query; cast numeric, uuid, json and interval, which have no type here"
_FIRST, _END = "ml_assets.first", "ml_assets.end"
"""Settings of the session that hold the bounds. COPY, which streams, takes no parameters of its own."""
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
    query: str | None = None
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


class SqlReader(SourceReader):
    """Rows of a table or query, read in read-only transactions."""

    def __init__(self, section: SqlSource, table: SourceTable, platform: Platform) -> None:
        self._section = section
        self._table = table
        self._address = Address(variable(section.url_env, platform))
        self._patience = 60.0 if platform.patience_seconds is None else platform.patience_seconds
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
        frame = self._ask(lambda: self._read(span))
        return SourceRows(
            frame=frame, watermark=watermark_of(frame, self._section.watermark_column, self._table)
        )

    def latest(self) -> date | None:
        """See `SourceReader`."""
        column = _quoted(time_column(self._section, self._table))
        newest = self._value(f"SELECT max({column}) FROM {self._whole}")
        return newest_complete_day(newest, self._table, self._section.complete_after_hours)

    @property
    def records_changes(self) -> bool:
        """See `SourceReader`."""
        return self._section.watermark_column is not None

    @property
    def overlap(self) -> timedelta:
        """See `SourceReader`. A query may choose the rows of a day by another column than `time_column`."""
        return OVERLAP if self._section.query is None else timedelta(0)

    def now(self) -> datetime:
        """Return the time of the server's clock."""
        return cast(datetime, self._value("SELECT clock_timestamp()"))

    def changed(self, after: datetime) -> Mapping[date, datetime]:
        """See `SourceReader`."""
        mark = _quoted(cast(str, self._section.watermark_column))
        day = _quoted(time_column(self._section, self._table))
        # The session's time zone decides to which day a moment belongs.
        partition = f"date_trunc('hour', {day})" if self._table.is_hourly else f"{day}::date"
        rows = self._ask(
            lambda: self._rows(
                f"SELECT {partition} AS day, max({mark}) AS newest FROM {self._whole} "
                f"WHERE {mark} > '{after.isoformat()}'::timestamptz AND {day} IS NOT NULL GROUP BY 1"
            )
        )
        return dict(rows.select("day", "newest").iter_rows())

    def preview(self, rows: int) -> pl.DataFrame:
        """See `SourceReader`."""
        newest = self._section.time_column or (self._table.contract and self._table.contract.event_time)
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
        if self._section.table is not None:
            return _quoted(self._section.table)
        return f"({self._bounded_query}) AS source"

    @property
    def _bounded_query(self) -> str:
        kind = "timestamptz" if self._table.is_hourly else "date"
        return _with_bounds(cast(str, self._section.query), kind)

    def _read(self, span: Span | None) -> pl.DataFrame:
        found = self._columns()
        require_columns(found, self._table, self._place, _REMEDY)
        if self._section.query is not None:
            days = ("-infinity", "infinity") if span is None else (str(span.first), str(span.end))
            return self._rows(self._bounded_query, days, fitted=True)
        names = self._table.contract.names if self._table.contract else tuple(found)
        query = f"SELECT {', '.join(map(_quoted, names))} FROM {self._whole}"
        if span is None:
            return self._rows(query, fitted=True)
        column, dtype = typed_time_column(found, self._section, self._table, self._place)
        if dtype == pl.Date:
            cast_to, bounds = "date", (str(span.first), str(span.end))
        else:
            first, end = span.moments(self._table.time_zone)
            cast_to, bounds = "timestamptz", (first.isoformat(), end.isoformat())
        where = (
            f" WHERE {_quoted(column)} >= current_setting('{_FIRST}')::{cast_to} "
            f"AND {_quoted(column)} < current_setting('{_END}')::{cast_to}"
        )
        return self._rows(query + where, bounds, fitted=True)

    def _columns(self) -> Mapping[str, pl.DataType]:
        """Return the columns of the source, without reading rows."""
        with self._cursor(("-infinity", "infinity")) as cursor:
            return _types(cursor.adbc_execute_schema(f"SELECT * FROM {self._whole}"))

    def _rows(
        self, query: str, bounds: tuple[str, str] = ("-infinity", "infinity"), *, fitted: bool = False
    ) -> pl.DataFrame:
        """Return the rows of `query`, converted batch by batch; `fitted` with the columns of the contract."""
        frames: list[pl.DataFrame] = []
        with self._cursor(bounds) as cursor:
            cursor.execute(query)
            reader = cursor.fetch_record_batch()
            empty = pl.DataFrame(schema=_types(reader.schema))
            for batch in reader:
                frame = cast(pl.DataFrame, pl.from_arrow(_without_extensions(batch)))
                frames.append(fit(frame, self._table, self._place, _REMEDY) if fitted else frame)
        if not frames:
            return fit(empty, self._table, self._place, _REMEDY) if fitted else empty
        return pl.concat(frames, rechunk=False)

    def _value(self, query: str) -> Any:
        return self._ask(lambda: self._rows(query)).item()

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
        from adbc_driver_manager import Error

        def once() -> Answer:
            try:
                return watched(call, self._is_answering, self._patience, _ANSWER_SECONDS)
            except BaseException as error:
                if isinstance(error, ServerSilent | KeyboardInterrupt):
                    self._connection = None  # a thread still waits on it
                self.close()  # its transaction, or the connection itself, is broken
                raise

        try:
            return patiently(once, _may_pass, lambda _: self._patience, first_pause=0.2, longest_pause=5.0)
        except (Error, OSError) as error:
            said = self._address.hide_in(_line(error))
            if _may_pass(error):
                raise SourceAway(
                    f"{self._table.name}: PostgreSQL at {self._address} ({self._section.url_env}) did not answer for "
                    f"{self._patience:g} s: {said}"
                ) from error
            raise SourceRefused(
                f"{self._table.name}: PostgreSQL at {self._address} refused {self._place}: {said}. Check "
                f"{self._section.url_env}, the rights of its user, and the source section"
            ) from error

    def _is_answering(self) -> bool:
        """Return True if the server answers a connection, with a refusal or with the result of a query."""
        from adbc_driver_manager import Error

        try:
            with _connect(self._address) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
        except (Error, OSError) as error:
            return "FATAL:" in str(error)
        return True


def _connect(address: Address) -> Any:
    from adbc_driver_postgresql import dbapi

    url = re.sub(r"^postgres(ql)?(\+\w+)?://", "postgresql://", address.reveal())
    if "connect_timeout" not in url:
        url += f"{'&' if '?' in url else '?'}connect_timeout={_ANSWER_SECONDS:d}"
    return dbapi.connect(url)


def _with_bounds(query: str, kind: str) -> str:
    """Return a query with its bounds replaced by values of type `kind`, but not those in texts, names and comments."""

    def replaced(found: re.Match[str]) -> str:
        bound = found["bound"]
        return f"current_setting('ml_assets.{bound}')::{kind}" if bound else found[0]

    # The line break ends a comment at the end of the query.
    return _TEXT.sub(replaced, query).strip().rstrip(";") + "\n"


def _quoted(name: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def _types(fields: Any) -> dict[str, pl.DataType]:
    """Return name → polars type of an Arrow schema. A type that Arrow lacks keeps its name in PostgreSQL."""
    import pyarrow as pa

    plain = pa.schema([pa.field(one.name, _storage(one.type)) for one in fields])
    frame = cast(pl.DataFrame, pl.from_arrow(plain.empty_table()))
    special = {one.name for one in fields if isinstance(one.type, pa.BaseExtensionType)}
    return {name: pl.Object() if name in special else dtype for name, dtype in frame.schema.items()}


def _storage(dtype: Any) -> Any:
    import pyarrow as pa

    if isinstance(dtype, pa.BaseExtensionType):
        return dtype.storage_type
    return pa.string() if pa.types.is_interval(dtype) else dtype


def _without_extensions(batch: Any) -> Any:
    """Return a batch with the stored form of types that Arrow lacks: numeric and json as text, uuid as bytes."""
    import pyarrow as pa

    columns = [one.storage if isinstance(one.type, pa.BaseExtensionType) else one for one in batch.columns]
    return pa.record_batch(columns, names=batch.schema.names)


def _may_pass(error: BaseException) -> bool:
    from adbc_driver_manager import Error, OperationalError

    if isinstance(error, Error):
        state = error.sqlstate
        if state:
            return state[:2] in _PASSING
        is_refused = "FATAL:" in str(error) and not re.search(_BUSY, str(error))
        return isinstance(error, OperationalError) and not is_refused
    # pyarrow raises errors of a stream as OSError, with the text of libpq.
    return isinstance(error, OSError) and not isinstance(error, SourceRefused) and "ERROR:" not in str(error)


def _line(error: Exception) -> str:
    text = str(error).partition("Query was:")[0]
    return " ".join(text.split()).rstrip(".")[:300]
