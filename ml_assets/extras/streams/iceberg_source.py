"""Source `iceberg`: a table of an Iceberg catalog in PostgreSQL or SQLite, at its newest snapshot or an earlier one."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import re
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import cast

import polars as pl
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.types import DateType
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from ml_assets.data.sources.protocol import (
    Answer,
    SourceRefused,
    SourceTable,
    Span,
    storage_options,
    variable,
)
from ml_assets.extras.streams.sections import IcebergSource
from ml_assets.extras.streams.versioned_table import VersionedTableReader, VersionGone
from resources.addresses import Address, hide_credentials, with_driver
from resources.platform import Platform

_CATALOG = re.compile(r"(postgresql(\+psycopg2)?|sqlite)://")
_FINAL = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE|NO_SUCH_BUCKET|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch"
    r"|NoSuchBucket|403|Forbidden",
)
"""Texts of answers of S3 that another try does not change. Neither client gives a code."""
_GONE = re.compile(
    r"NO_SUCH_KEY|NoSuchKey|[Nn]ot [Ff]ound|No such file|does not exist|HTTP status code 404|PATH_NOT_FOUND"
)
_FILE_OPTIONS = {
    "aws_endpoint_url": "s3.endpoint",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
}
"""Names of storage options: those of polars, which reads the data, and of pyiceberg, which reads the metadata."""


class IcebergReader(VersionedTableReader):
    """Rows of one snapshot of an Iceberg table. Nothing is written to the catalog."""

    def __init__(self, section: IcebergSource, table: SourceTable, platform: Platform) -> None:
        super().__init__(section, table, platform)
        self._section = section
        self._options = storage_options(section, platform)
        self._address = Address(variable(section.catalog_env, platform))
        self._opened: tuple[Table, int | None] | None = None
        """The table, and the chosen snapshot; None for the newest, which has the table's present columns."""
        if not _CATALOG.match(self._address.reveal()):
            raise SourceRefused(
                f"{table.name}: {section.catalog_env} holds no address of a catalog in PostgreSQL or SQLite: set it to "
                "postgresql://user:password@host:port/database, or to sqlite:////folder/catalog.db"
            )

    def close(self) -> None:
        """Choose the snapshot again at the next use."""
        super().close()
        self._opened = None

    @property
    def _place(self) -> str:
        if self._opened is None:
            return self._section.table
        table, chosen = self._opened
        newest = table.current_snapshot()
        snapshot = chosen or (newest.snapshot_id if newest else "none")
        return f"{self._section.table} (snapshot {snapshot})"

    @property
    def _remedy(self) -> str:
        return "restore the columns in the Iceberg table"

    def _scan(self) -> pl.LazyFrame:
        if self._opened is None:
            self._opened = self._ask(self._open)
        table, snapshot = self._opened
        # polars advises a package of its own that plans faster.
        warnings.filterwarnings("ignore", message="Iceberg scan planning")
        options = {**self._options, "max_retries": 1} if self._options else None
        return pl.scan_iceberg(
            table, snapshot_id=snapshot, storage_options=cast("dict[str, str] | None", options)
        )

    def _files_of(self, spans: Collection[Span], column: str) -> Mapping[Span, list[tuple[object, ...]]]:
        table, snapshot = self._opened or self._open()
        scan = table.scan(snapshot_id=snapshot)
        is_date = isinstance(scan.projection().find_type(column), DateType)
        found: dict[Span, list[tuple[object, ...]]] = {}
        for span in spans:
            bounds = (span.first, span.end) if is_date else span.moments(self._table.time_zone)
            first, end = (one.isoformat() for one in bounds)
            at_least = GreaterThanOrEqual(column, first)  # pyright: ignore[reportCallIssue]
            rows = And(at_least, LessThan(column, end))  # pyright: ignore[reportCallIssue]
            tasks = list(scan.filter(rows).plan_files())
            files = {one.file.file_path for one in tasks} | {
                deleted.file_path for one in tasks for deleted in one.delete_files
            }
            found[span] = [(path,) for path in files]
        return found

    def _open(self) -> tuple[Table, int | None]:
        section, name = self._section, self._table.name
        address = with_driver(self._address.reveal())
        files = {_FILE_OPTIONS[key]: value for key, value in self._options.items() if key in _FILE_OPTIONS}
        # Without the option the catalog would create its tables in a database that has none.
        catalog = SqlCatalog(section.catalog, uri=address, init_catalog_tables="false", **files)
        try:
            table = catalog.load_table(section.table)
        except NoSuchTableError as error:
            raise SourceRefused(
                f"{name}: there is no table {section.table} in the catalog '{section.catalog}' of "
                f"{self._address}: check source.table and source.catalog"
            ) from error
        if section.snapshot is not None:
            if table.snapshot_by_id(section.snapshot) is None:
                raise VersionGone(
                    f"{name}: {section.table} has no snapshot {section.snapshot}, or it has expired: name a later one, "
                    "or leave `snapshot` out"
                )
            return table, section.snapshot
        if section.as_of is not None:
            found = table.snapshot_as_of_timestamp(int(section.as_of.timestamp() * 1000))
            if found is None:
                raise VersionGone(
                    f"{name}: {section.table} has no snapshot as old as {section.as_of.isoformat()}: name a later "
                    "moment"
                )
            return table, found.snapshot_id
        return table, None

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        try:
            return self._patiently(call, _may_pass)
        except (OSError, pl.exceptions.PolarsError, SQLAlchemyError, ValidationError, ValueError) as error:
            said = hide_credentials(" ".join(str(error).split()))[:300].rstrip(".")
            if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and _GONE.search(said)):
                raise VersionGone(
                    f"{self._table.name}: files of {self._place} are gone, because its snapshot expired or somebody "
                    "deleted them: name a later snapshot, or leave `snapshot` and `as_of` out"
                ) from error
            if _may_pass(error):
                raise self._away(self._section.table, said) from error
            raise SourceRefused(
                f"{self._table.name}: {self._place} cannot be read: {said}. Check source.catalog_env, and the "
                "credentials and rights of its reader"
            ) from error


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, OperationalError):
        return "password" not in str(error) and "unable to open" not in str(error)
    if not isinstance(error, OSError | pl.exceptions.ComputeError) or isinstance(
        error, FileNotFoundError | PermissionError
    ):
        return False
    return not _FINAL.search(str(error)) and not _GONE.search(str(error))
