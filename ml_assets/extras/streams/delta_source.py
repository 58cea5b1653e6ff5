"""Source `delta`: a Delta Lake table in a folder or in S3, at its newest version, a pinned one, or as of a moment."""

import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import cast

import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from ml_assets.data.sources.protocol import (
    Answer,
    SourceRefused,
    SourceTable,
    Span,
    storage_options,
)
from ml_assets.extras.streams.sections import DeltaSource
from ml_assets.extras.streams.versioned_table import VersionedTableReader, VersionGone
from resources.addresses import hide_credentials
from resources.platform import Platform

_COLOURS = re.compile(r"\x1b\[\d*m|↳")
"""Marks of deltalake's messages for a terminal."""
_CUT_OFF = timedelta(milliseconds=1)
"""Most by which a moment in the statistics of a file is too early."""
_STATUS = re.compile(r"non-2xx status code:?\s*(\d{3})")
_S3_ANSWER = re.compile(r"<Code>(\w+)</Code>\s*<Message>([^<]*)</Message>")


class DeltaReader(VersionedTableReader):
    """Rows of one version of a Delta table."""

    def __init__(self, section: DeltaSource, table: SourceTable, platform: Platform) -> None:
        super().__init__(section, table, platform)
        self._section = section
        self._options = storage_options(section, platform)
        self._is_in_s3 = section.path.startswith("s3://")
        self._opened: DeltaTable | None = None
        self._files: pl.DataFrame | None = None
        """Files of that version, with their statistics."""

    def close(self) -> None:
        """Choose the version again at the next use."""
        super().close()
        self._opened = self._files = None

    @property
    def _place(self) -> str:
        version = "" if self._opened is None else f" (version {self._opened.version()})"
        return f"{self._section.path}{version}"

    @property
    def _remedy(self) -> str:
        return "restore the columns in the Delta table"

    def _scan(self) -> pl.LazyFrame:
        if self._opened is None:
            self._opened = self._ask(self._open)
        # The client of polars retries less often than the patience of a run, which `_ask` counts.
        options = {**self._options, "max_retries": 1} if self._is_in_s3 else None
        return pl.scan_delta(self._opened, storage_options=cast("dict[str, str] | None", options))

    def _files_of(self, spans: Collection[Span], column: str) -> Mapping[Span, list[tuple[object, ...]]]:
        table = self._opened or self._open()
        # Deletion vectors remove rows and leave the files. Each version of such a table counts as a change.
        features = table.protocol().reader_features or ()
        whole = [("version", table.version())] if "deletionVectors" in features else []
        if self._files is None:
            self._files = pl.DataFrame(table.get_add_actions(flatten=True))
        files = self._files
        names = files.columns
        # The log cuts moments off at milliseconds. A file without these statistics may hold rows of any day.
        least, most = (
            next(
                (pl.col(name) for name in (f"{kind}.{column}", f"partition.{column}") if name in names),
                pl.lit(None),
            )
            for kind in ("min", "max")
        )
        found: dict[Span, list[tuple[object, ...]]] = {}
        for span in spans:
            begin, end = self._bounds(span, files.select(least).to_series().dtype)
            outside = (least >= end) | (most < begin)
            paths = files.filter(~outside.fill_null(value=False)).get_column("path")
            found[span] = [*whole, *((path,) for path in paths)]
        return found

    def _bounds(self, span: Span, dtype: pl.DataType) -> tuple[date, date]:
        """Return the bounds of `span` to compare with statistics of type `dtype`."""
        if dtype == pl.Date:
            return span.first, span.end
        begin, end = span.moments(self._table.time_zone)
        return begin - _CUT_OFF, end

    def _open(self) -> DeltaTable:
        path, version, as_of = self._section.path, self._section.version, self._section.as_of
        retries = {"max_retries": "1", "timeout": "30s"} if self._is_in_s3 else {}
        try:
            table = DeltaTable(path, version=version, storage_options=self._options | retries)
            if as_of is None:
                return table
            written = {
                entry["version"]: datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
                for entry in table.history()
            }
            then = [number for number, moment in written.items() if moment <= as_of]
            if not then:
                raise VersionGone(
                    f"{self._table.name}: {path} has no version as old as {as_of.isoformat()}: the oldest known is of "
                    f"{min(written.values()).isoformat()}"
                )
            table.load_as_version(max(then))
        except TableNotFoundError as error:
            raise SourceRefused(
                f"{self._table.name}: there is no Delta table at {path}: check source.path and the rights of its reader"
            ) from error
        except DeltaError as error:
            if version is None:
                raise
            raise VersionGone(
                f"{self._table.name}: {path} has no version {version}: name a later version, or leave `version` out"
            ) from error
        return table

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`; retry while the storage does not answer. Raises our errors only."""
        try:
            return self._patiently(call, _may_pass)
        except FileNotFoundError as error:
            raise VersionGone(
                f"{self._table.name}: files of {self._place} are gone, because a vacuum deleted them: name a later "
                "version, or leave `version` and `as_of` out"
            ) from error
        except OSError as error:
            said = hide_credentials(_line(error))
            if not _may_pass(error):
                raise SourceRefused(
                    f"{self._table.name}: {self._place} cannot be read: {said}. Check source.path, and the credentials "
                    "and rights of its reader"
                ) from error
            raise self._away(self._section.path, said) from error
        except (DeltaError, pl.exceptions.PolarsError) as error:
            raise SourceRefused(
                f"{self._table.name}: {self._place} cannot be read: {hide_credentials(_line(error))}"
            ) from error


def _may_pass(error: BaseException) -> bool:
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | PermissionError):
        return False
    # deltalake raises a plain OSError for each answer of S3.
    status = _STATUS.search(_COLOURS.sub("", str(error)))
    return status is None or status[1] in ("408", "429") or status[1] >= "500"


def _line(error: Exception) -> str:
    """Return an error in one line: S3's own code and sentence; without them, the first and the last cause."""
    if (answer := _S3_ANSWER.search(_COLOURS.sub("", str(error)))) is not None:
        return f"{answer[1]}: {answer[2]}".rstrip(".")
    causes = [" ".join(_COLOURS.sub("", cause).split()) for cause in str(error).split("↳")]
    return ": ".join(dict.fromkeys((causes[0], causes[-1])))[:300].rstrip(".")
