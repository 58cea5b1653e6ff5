"""Sources `s3` and `file`: Parquet, CSV or JSON lines in S3 or in a folder, found by a pattern of their paths."""

import csv
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import polars as pl
from pydantic import field_validator, model_validator

from ml_assets.data.sources.file_formats import FileFormat, parsed, unpacked
from ml_assets.data.sources.file_listing import (
    DAY,
    MOMENT,
    FoundFile,
    day_in,
    each_once,
    expression_of,
    files_like,
    fixed_part,
    is_left_out,
    of_day,
    state_of,
)
from ml_assets.data.sources.protocol import (
    Answer,
    Look,
    PageFacts,
    PublicAddress,
    ReadPartition,
    SourceReader,
    SourceRefused,
    SourceRows,
    SourceTable,
    Span,
    StoredSource,
    differing,
    storage_options,
    version_of_files,
)
from ml_assets.data.sources.s3_object import s3_client
from ml_assets.data.sources.tabular import (
    faults_of_columns,
    fit,
    has_time,
    in_span,
    newest_day,
    typed_time_column,
    undated_rows,
    watermark_of,
)
from ml_assets.data.sources.text_values import TextForm, ValueRefused, time_format
from ml_assets.foundation.checkout import ROOT
from ml_assets.foundation.days import after, begin_of, iso_name
from ml_assets.foundation.sections import TimeZone
from resources.addresses import hide_credentials
from resources.platform import Platform
from resources.words import name_some

_SUFFIXES: Mapping[str, FileFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_REMEDY = "write files with the columns of the contract"
KEPT_BYTES = 256 * 2**20
"""Most bytes of files that stay in memory between the partitions of a run, if each partition needs all files."""


class FileChanged(SourceRefused):
    """A file changed while it was read."""


class FileUnreadable(SourceRefused):
    """A file is damaged, half written, or of another format."""


class ValueUnreadable(SourceRefused):
    """A value of a text file is not exactly one of its column's type."""


class FileSource(StoredSource):
    """Source of files in a folder or in S3."""

    kind: Literal["file", "s3"]
    """`file`: a folder of this machine. `s3`: a bucket."""
    path: PublicAddress
    """Files of the table, such as `s3://bucket/sales/%Y/%m/%d/*.parquet` or `data/sales/*.csv` in the project.
    `%Y`, `%m` and `%d` are the day of the rows, `%H` their hour of UTC, `*` is any text without a slash, hidden and
    unfinished names left out. If the path does not tell the partition, `time_column` chooses the rows: all files are
    read for each partition without a day in the path, and those of its day for each hour without `%H`."""
    format: FileFormat | None = None
    """`parquet`, `csv` or `jsonl`. Default: by the suffix of `path`."""
    separator: str = ","
    """Separator of a CSV file."""
    formats: Mapping[str, str] = {}
    """Column → format of the dates or moments in a text file, such as `"%d/%m/%Y %H:%M"`, by directives of Python's
    `strptime`. Default: ISO 8601."""
    time_zone: TimeZone | None = None
    """Time zone of moments that a text file writes without an offset from UTC. Default: such a moment is refused."""
    nulls: tuple[str, ...] = ()
    """Texts that mean no value in text columns of a CSV file, such as `NA`. Default: only an empty field without
    quotes. In other columns, `NA`, `NULL` and `null` always mean no value."""

    @field_validator("separator")
    @classmethod
    def _is_one_character(cls, value: str) -> str:
        if len(value) != 1 or not value.isascii() or value in '"\r\n':
            raise ValueError(
                'a separator is one character of ASCII, no quote and no line break; write a tab as "\\t"'
            )
        return value

    @field_validator("formats")
    @classmethod
    def _are_formats(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for form in value.values():
            time_format(form)
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.path.startswith("s3://") != (self.kind == "s3"):
            raise ValueError(
                "`path` of kind s3 begins with s3://, and that of kind file is a path of this machine"
            )
        named = [part for part in MOMENT if part in self.path]
        if named and not {*DAY} <= {*named}:
            raise ValueError(
                f"`path` names {' and '.join(named)}: a day needs %Y, %m and %d, or none of them"
            )
        if self.format is None and self.format_of_path is None:
            raise ValueError(f"the suffix of `path` is none of {', '.join(_SUFFIXES)}: set `format`")
        if (self.format or self.format_of_path) == "parquet" and (
            self.formats or self.time_zone or self.nulls
        ):
            raise ValueError(
                "`formats`, `time_zone` and `nulls` are for text files: Parquet has types of its own, so leave them out"
            )
        return self

    @property
    def format_of_path(self) -> FileFormat | None:
        """Format by the suffix of `path`."""
        return next((form for suffix, form in _SUFFIXES.items() if self.path.endswith(suffix)), None)

    @property
    def lacks_for_latest(self) -> str | None:
        """See `SourceSection`."""
        return None if self.is_by_day else "path with %Y, %m and %d: the names of the files tell the days"

    @property
    def is_by_day(self) -> bool:
        """True if the path of a file tells its day."""
        return "%d" in self.path

    @property
    def is_by_hour(self) -> bool:
        """True if the path of a file tells its hour."""
        return "%H" in self.path


class FileReader(SourceReader):
    """Rows of files. A file is read whole and compared with its state before, so a half-written file is noticed."""

    looks_at = "a listing of all files"

    def __init__(self, section: FileSource, table: SourceTable, platform: Platform) -> None:
        self._section = section
        super().__init__(table, platform)
        self._format: FileFormat = cast("FileFormat", section.format or section.format_of_path)
        self._options = storage_options(section, platform) if section.kind == "s3" else {}
        # Paths of a folder begin at the project, because Dagster chooses the working folder.
        self._path = section.path if section.kind == "s3" else str(ROOT / section.path)
        self._s3: Any = None
        self._listed: list[FoundFile] = []
        """Files of the run, if no path tells a day."""
        self._kept: dict[FoundFile, pl.DataFrame] = {}
        self._texts = TextForm(formats=section.formats, time_zone=section.time_zone, nulls=section.nulls)
        times = {name for name, one in table.columns.items() if one.dtype in ("date", "datetime")}
        if table.contract is not None and (unknown := sorted(set(section.formats) - times)):
            raise SourceRefused(
                f"{table.name}: source.formats names {', '.join(unknown)}: name columns of type date or datetime"
            )

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`. A day without a file is refused, because its file may still come."""
        files = self._files_of(span)
        parts = [self._rows(one, span) for one in files]
        frame, strays = pl.concat(part for part, _ in parts), pl.concat(part for _, part in parts)
        return SourceRows(
            frame=frame,
            returned=frame.height + strays.height,
            undated=undated_rows(strays, self._section.time_column or self._table.event_time or ""),
            watermark=watermark_of(frame, self._section.watermark_column, self._table),
            version=self._version_of(files) if self._section.is_by_day else None,
        )

    def latest(self) -> date | None:
        """See `SourceReader`. Only paths that tell a day answer it; reading every file would cost too much."""
        return self.look({}, ()).latest

    def look(self, read: Mapping[Span, ReadPartition], window: Collection[Span]) -> Look:
        """See `SourceReader`. Lists the files once and reads none of them."""
        files = self._listing()
        newest = max((one.day for one in files if one.day), default=None)
        by_part: dict[date, list[FoundFile]] = defaultdict(list)
        for one in files:
            if one.day is not None:
                by_part[one.day].append(one)
        versions = {
            span: self._version_of([one for part in self._parts_of(span) for one in by_part.get(part, ())])
            for span in window
        }
        return Look(
            latest=newest_day(newest, self._table),
            changed=differing(read, versions),
            cost={"files listed": len(files)},
        )

    def preview(self, rows: int) -> pl.DataFrame:
        """See `SourceReader`."""
        return self._frame(self._newest()).head(rows)

    def check(self) -> Sequence[str]:
        """See `SourceReader`."""
        newest = self._newest()
        return faults_of_columns(
            self._frame(newest).schema,
            self._section,
            self._table,
            newest.path,
            _REMEDY,
            rows_tell_day=not self._tells_partition,
        )

    def facts(self) -> PageFacts:
        """See `SourceReader`. Names what the section declared about times."""
        said = (
            {"times without an offset": f"read as {self._texts.time_zone}"} if self._texts.time_zone else {}
        )
        formats = ", ".join(f"{name} as {form}" for name, form in self._texts.formats.items())
        return said | ({"formats of times": formats} if formats else {})

    def close(self) -> None:
        """Forget the connection and the files that are kept."""
        self._s3 = None
        self._listed.clear()
        self._kept.clear()

    def _newest(self) -> FoundFile:
        files = self._listing()
        if not files:
            raise SourceRefused(
                f"{self._table.name}: no file matches {self._section.path}: correct source.path, or wait for a file"
            )
        return max(files, key=lambda one: (str(one.day or ""), one.path))

    def _files_of(self, span: Span | None) -> list[FoundFile]:
        """Return the files that may hold rows of `span`, in the order of their paths. Raises `SourceRefused` if there
        are none for a day of it. A partition of many days whose first day alone has one is a partition of one file.

        All partitions of a run read the same files if no path tells a day: a file that is replaced meanwhile would hold
        rows that moved to a partition which was read before.
        """
        if span is None or not self._section.is_by_day:
            self._listed = self._listed or self._listing()
            files, lacking = self._listed, []
        else:
            by_part = {part: self._listing(part) for part in self._parts_of(span)}
            files = [one for found in by_part.values() for one in found]
            lacking = [part for part, found in by_part.items() if not found]
            if not self._table.is_hourly and lacking == [*by_part][1:]:
                lacking = []
        if lacking or not files:
            days = "" if span is None else f" for {name_some(list(map(iso_name, lacking or [span.first])))}"
            many = "; for a day without rows, write a file without rows" if files else ""
            raise SourceRefused(
                f"{self._table.name}: no file matches {self._section.path}{days}: wait for it, or correct "
                f"source.path{many}"
            )
        return files

    def _parts_of(self, span: Span) -> list[date]:
        """Return the days, or the hour, that paths of files of `span` tell."""
        return [span.first] if self._tells_hour else span.days(self._table.time_zone)

    def _version_of(self, files: Sequence[FoundFile]) -> str:
        """Return the version of files: name from the first `*` or `%` on, time or ETag, and size of each."""
        start = len(fixed_part(self._path))
        return version_of_files((one.path[start:], *one.version[-2:]) for one in files)

    @property
    def _tells_hour(self) -> bool:
        return self._table.is_hourly and self._section.is_by_hour

    @property
    def _tells_partition(self) -> bool:
        """True if the path of a file tells the partition of its rows."""
        return self._tells_hour if self._table.is_hourly else self._section.is_by_day

    def _rows(self, file: FoundFile, span: Span | None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the rows of `span`, and those without a time, which are of no span. If the path tells the partition,
        all rows are of it. If it tells the day, a row of an hourly table without a time, or with a time of another day,
        is of the first hour of that day.
        """
        frame = self._frame(file)
        strays = frame.clear()
        if span is not None and not self._tells_partition:
            column, dtype = typed_time_column(frame.schema, self._section, self._table, file.path)
            belongs, is_of_span = has_time(column, dtype), in_span(column, dtype, span, self._table)
            if file.day is not None:
                belongs &= in_span(column, dtype, Span(file.day, after(file.day)), self._table)
                is_of_span = (belongs & is_of_span) | (~belongs & self._is_first_hour(span, file.day))
                belongs = pl.lit(value=True)
            strays = frame.filter(~belongs)
            frame = frame.filter(belongs & is_of_span)
        return fit(frame, self._table, file.path, _REMEDY), fit(strays, self._table, file.path, _REMEDY)

    def _is_first_hour(self, span: Span, day: date) -> bool:
        """True if `span` is the first hour with a part of `day`, or the first one of the table if it begins later."""
        begin = begin_of(day, self._table.time_zone)
        first = begin.replace(minute=0, second=0, microsecond=0)
        starts = self._table.first
        if isinstance(starts, datetime) and begin < starts < begin_of(after(day), self._table.time_zone):
            first = max(first, starts)
        return span.first == first

    def _listing(self, day: date | None = None) -> list[FoundFile]:
        """Return the files that match the path, of one day, of one hour or of all, in the order of their paths."""
        pattern = self._path if day is None else of_day(self._path, day)
        expression = expression_of(pattern)
        found = self._ask(lambda: self._list(pattern))
        files = [
            FoundFile(path, version, day or day_in(match, is_hourly=self._tells_hour))
            for path, version in sorted(found.items())
            if (match := expression.fullmatch(path)) and not is_left_out(path, pattern)
        ]
        return each_once(files) if self._section.kind == "file" else files

    def _list(self, pattern: str) -> dict[str, tuple[object, ...]]:
        """Return path → version of all files that may match `pattern`."""
        if self._section.kind == "file":
            return files_like(pattern, expression_of)
        bucket, _, key = fixed_part(pattern).removeprefix("s3://").partition("/")
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        return {
            f"s3://{bucket}/{one['Key']}": (one["ETag"], one["Size"])
            for page in pages
            for one in page.get("Contents", ())
        }

    def _frame(self, file: FoundFile) -> pl.DataFrame:
        """Return all rows of a file. Raises `FileChanged` and `FileUnreadable`."""
        if file in self._kept:
            return self._kept[file]
        content = self._ask(lambda: self._content(file))
        try:
            content = content if self._format == "parquet" else unpacked(content)
            if self._format != "parquet" and content and content[-1:] != b"\n":
                raise FileUnreadable(
                    f"{self._table.name}: {file.path} does not end with a line break: it is half written, or its "
                    "writer leaves out the last one. Write the whole file, then run this partition again"
                )
            frame = parsed(content, self._format, self._section.separator, self._table.contract, self._texts)
        except ValueRefused as error:
            raise ValueUnreadable(
                f"{self._table.name}: {file.path}, {error}. Correct the file, or the contract; then run this partition "
                "again"
            ) from error
        except (
            UnicodeDecodeError,
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            OSError,
            EOFError,
            zlib.error,
            csv.Error,
        ) as error:
            contract = self._table.contract
            hides = contract is not None and any(contract.hides(name) for name in contract.names)
            # polars' messages quote values.
            why = type(error).__name__ if hides else " ".join(str(error).split())[:200]
            raise FileUnreadable(
                f"{self._table.name}: {file.path} is not readable as {self._format} ({why}): it is half written, "
                "damaged or of another format. Write it again, in one step: under another name first, then rename it"
            ) from error
        size = sum(one.estimated_size() for one in (*self._kept.values(), frame))
        if not self._tells_partition and size <= KEPT_BYTES:
            self._kept[file] = frame
        return frame

    def _content(self, file: FoundFile) -> bytes:
        changed = FileChanged(
            f"{self._table.name}: {file.path} changed while it was read: write a file in one step, under another name "
            "first, then rename it; then run this partition again"
        )
        if self._section.kind == "file":
            try:
                content = Path(file.path).read_bytes()
                now = state_of(Path(file.path))
            except FileNotFoundError as error:
                if Path(file.path).is_symlink():
                    raise FileUnreadable(
                        f"{self._table.name}: {file.path} is a link to a file that is not there: correct the link, or "
                        "delete it; then run this partition again"
                    ) from error
                raise changed from error
            if now != file.version:
                raise changed
            return content
        bucket, _, key = file.path.removeprefix("s3://").partition("/")
        try:
            answer = self._client.get_object(Bucket=bucket, Key=key, IfMatch=str(file.version[0]))
            return answer["Body"].read()
        except self._client.exceptions.ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (404, 412):
                raise changed from error
            raise

    @property
    def _client(self) -> Any:
        """S3 client, made at its first use. botocore itself finds `AWS_*`, if the section names no credentials."""
        if self._s3 is None:
            names = ("aws_endpoint_url", "aws_access_key_id", "aws_secret_access_key")
            self._s3 = s3_client(*map(self._options.get, names))
        return self._s3

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`; retry while the storage does not answer. Raises our errors only."""
        known: tuple[type[Exception], ...] = (OSError,)
        may_pass = _is_timeout
        if self._section.kind == "s3":
            from botocore import exceptions

            known += (exceptions.BotoCoreError, exceptions.ClientError)
            may_pass = partial(_may_pass, exceptions)
        try:
            return self._patiently(call, may_pass)
        except SourceRefused:
            raise
        except known as error:
            said = hide_credentials(" ".join(str(error).split())[:300])
            if may_pass(error):
                raise self._away(self._section.path, said) from error
            raise SourceRefused(
                f"{self._table.name}: {self._section.path} cannot be read: {said}. Check source.path, and the "
                "credentials and rights of its reader"
            ) from error


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, TimeoutError)


def _may_pass(botocore: Any, error: Any) -> bool:
    """True for an error that may be gone later. `botocore`: the module of its errors."""
    if isinstance(error, botocore.ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) >= 500
    return isinstance(error, botocore.ConnectionError | botocore.HTTPClientError | TimeoutError)
