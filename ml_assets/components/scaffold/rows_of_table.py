"""Rows of a PostgreSQL table that a person names by its address, and the SQL of each column.

The address has a password: it is only used here, and no file, message or output repeats it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (ADBC is typed in part)

import re
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows
from resources.addresses import hide_credentials
from resources.extras import missing_extra

_ADDRESS = re.compile(r"(?P<server>postgres(?:ql)?://[^/?]+/[^/?]+)/(?P<table>\w+(?:\.\w+)?)")
_KEPT = "smallint|integer|bigint|real|double precision|boolean|text|date|timestamp with(out)? time zone"
_CASTS = {
    "numeric": "::double precision",
    "uuid": "::text",
    "character": "::text",
    "character varying": "::text",
}
"""Type of PostgreSQL, without its length → cast to a type that a table can have."""
_KINDS = """
SELECT attname::text, CASE WHEN typtype = 'e' THEN 'uuid' ELSE format_type(atttypid, NULL) END
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def is_address(text: str) -> bool:
    """Return True for an address of PostgreSQL."""
    return text.startswith(("postgres://", "postgresql://"))


def read_table(address: str) -> FileRows:
    """Read the table at `postgresql://user:password@host:port/database/schema.table`. Raises `CsvRefused`."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        raise CsvRefused(
            f"--from {hide_credentials(address)} names no table: write "
            "postgresql://user:password@host:port/database/table, or …/schema.table"
        )
    server, table = re.sub("^postgres(ql)?", "postgresql", parts["server"]), parts["table"]
    quoted = ".".join(map(_quoted, table.split(".")))
    kinds = _ask(server, _KINDS.format(table=quoted))
    if kinds.is_empty():
        raise CsvRefused(f"table {table} is not in {hide_credentials(server)}: correct its name and schema")
    sql = {name: cast for name, kind in kinds.iter_rows() if (cast := _cast(name, kind))}
    if not sql:
        raise CsvRefused(f"table {table} has no column of a type that a table here can have")
    chosen = ", ".join(f"{cast} AS {_quoted(name)}" for name, cast in sql.items())
    frame = _ask(server, f"SELECT {chosen} FROM {quoted}")
    if frame.is_empty():
        raise CsvRefused(f"table {table} has no rows")
    return FileRows(Path(table), "sql", frame, b"", sql=sql)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cast(name: str, kind: str) -> str:
    """Return the SQL of a column; empty for a type that a table cannot have."""
    if re.fullmatch(_KEPT, kind):
        return _quoted(name)
    return f"{_quoted(name)}{_CASTS[kind]}" if kind in _CASTS else ""


def _ask(server: str, query: str) -> pl.DataFrame:
    try:
        from adbc_driver_postgresql import dbapi
    except ModuleNotFoundError as error:
        raise CsvRefused(f"--from postgresql://…: {missing_extra(error)}") from error
    try:
        with dbapi.connect(f"{server}?connect_timeout=10") as connection, connection.cursor() as cursor:
            cursor.execute(query)
            found = pl.from_arrow(cursor.fetch_arrow_table())
    except dbapi.Error as error:
        said = hide_credentials(" ".join(str(error).split())[:200])
        raise CsvRefused(
            f"{hide_credentials(server)} did not answer: {said}. Check the address and its password"
        ) from error
    assert isinstance(found, pl.DataFrame)
    return found


def query_of(table: str, columns: Mapping[str, str], *, time: str, local: str, unit: str, zone: str) -> str:
    """Return the query of a partition's rows, with the moment at which their partition is over as `known_at`.

    `columns` is name → SQL. `time` is the SQL of the event time, `local` that of its time of a clock in `zone`.
    """
    chosen = "".join(f"  {sql} AS {_quoted(name)},\n" for name, sql in columns.items())
    quoted = ".".join(map(_quoted, table.split(".")))
    length = "3 months" if unit == "quarter" else f"1 {unit}"  # an interval knows no quarters
    over = f"(date_trunc('{unit}', {local}) + interval '{length}') AT TIME ZONE '{zone}'"
    return f"SELECT\n{chosen}  {over} AS known_at\nFROM {quoted}\nWHERE {time} >= :first AND {time} < :end\n"
