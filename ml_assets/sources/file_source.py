"""Sources `s3` and `file`: Parquet, CSV or JSON lines in S3 or in a folder, found by a pattern of their paths."""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

import polars as pl
from pydantic import field_validator, model_validator

from ml_assets.checkout import ROOT
from ml_assets.sources.errors import SourceAway, SourceRefused
from ml_assets.sources.file_formats import GZIP, FileFormat, parsed
from ml_assets.sources.object_storage import StoredSource, storage_options
from ml_assets.sources.protocol import SourceReader, SourceRows, SourceTable, Span
from ml_assets.sources.source_section import PublicAddress
from ml_assets.sources.tabular import (
    faults_of_columns,
    fit,
    in_span,
    newest_complete_day,
    typed_time_column,
    watermark_of,
)
from resources.addresses import hide_credentials
from resources.platform import Platform
from resources.retry import patiently

Answer = TypeVar("Answer")
_SUFFIXES: Mapping[str, FileFormat] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_DAY = {"%Y": r"(?P<Y>\d{4})", "%m": r"(?P<m>\d{2})", "%d": r"(?P<d>\d{2})"}
_MOMENT = {**_DAY, "%H": r"(?P<H>\d{2})"}
_REMEDY = "write files with the columns of the contract"
KEPT_BYTES = 256 * 2**20
"""Most bytes of files that stay in memory between the partitions of a run, if each partition needs all files."""


class FileChanged(SourceRefused):
    """A file changed while it was read."""


class FileUnreadable(SourceRefused):
    """A file is damaged, half written, or of another format."""


class FileSource(StoredSource):
    """Source of files in a folder or in S3."""

    kind: Literal["file", "s3"]
    """`file`: a folder of this machine. `s3`: a bucket."""
    path: PublicAddress
    """Files of the table, such as `s3://bucket/sales/%Y/%m/%d/*.parquet` or `data/sales/*.csv` in the project.
    `%Y`, `%m` and `%d` are the day of the rows, `%H` their hour of UTC, `*` is any text without a slash. If the path
    does not tell the partition, `time_column` chooses the rows: all files are read for each partition without a day in
    the path, and those of its day for each hour without `%H`."""
    format: FileFormat | None = None
    """`parquet`, `csv` or `jsonl`. Default: by the suffix of `path`."""
    separator: str = ","
    """Separator of a CSV file."""

    @field_validator("separator")
    @classmethod
    def _is_one_character(cls, value: str) -> str:
        if len(value) != 1:
            raise ValueError('a separator is one character; write a tab as "\\t"')
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.path.startswith("s3://") != (self.kind == "s3"):
            raise ValueError(
                "`path` of kind s3 begins with s3://, and that of kind file is a path of this machine"
            )
        named = [part for part in _MOMENT if part in self.path]
        if named and not {*_DAY} <= {*named}:
            raise ValueError(
                f"`path` names {' and '.join(named)}: a day needs %Y, %m and %d, or none of them"
            )
        if self.format is None and self.format_of_path is None:
            raise ValueError(f"the suffix of `path` is none of {', '.join(_SUFFIXES)}: set `format`")
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


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as a listing shows it."""

    path: str
    version: tuple[object, ...]
    """Facts that change when the file is written again: ETag or identity and time, and size."""
    day: date | None = None
    """Day in its path, or hour; None if paths tell no day."""


class FileReader(SourceReader):
    """Rows of files. A file is read whole and compared with its state before, so a half-written file is noticed."""

    def __init__(self, section: FileSource, table: SourceTable, platform: Platform) -> None:
        self._section = section
        self._table = table
        self._format: FileFormat = cast("FileFormat", section.format or section.format_of_path)
        self._options = storage_options(section, platform) if section.kind == "s3" else {}
        self._patience = 60.0 if platform.patience_seconds is None else platform.patience_seconds
        # Paths of a folder begin at the project, because Dagster chooses the working folder.
        self._path = section.path if section.kind == "s3" else str(ROOT / section.path)
        self._s3: Any = None
        self._kept: dict[FoundFile, pl.DataFrame] = {}

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`. A day without a file is refused, because its file may still come."""
        files = self._files_of(span)
        if not files:
            days = "" if span is None else f" for {_said(span.first)}"
            raise SourceRefused(
                f"{self._table.name}: no file matches {self._section.path}{days}: wait for it, or correct source.path"
            )
        frames = [self._rows(one, span) for one in files]
        frame = pl.concat(frames)
        return SourceRows(
            frame=frame, watermark=watermark_of(frame, self._section.watermark_column, self._table)
        )

    def latest(self) -> date | None:
        """See `SourceReader`. Only paths that tell a day answer it; reading every file would cost too much."""
        newest = max((one.day for one in self._listing() if one.day), default=None)
        return newest_complete_day(newest, self._table, self._section.complete_after_hours)

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

    def close(self) -> None:
        """Forget the connection and the files that are kept."""
        self._s3 = None
        self._kept.clear()

    def _newest(self) -> FoundFile:
        files = self._listing()
        if not files:
            raise SourceRefused(
                f"{self._table.name}: no file matches {self._section.path}: correct source.path, or wait for a file"
            )
        return max(files, key=lambda one: (str(one.day or ""), one.path))

    def _files_of(self, span: Span | None) -> list[FoundFile]:
        """Return the files that may hold rows of `span`, in the order of their paths."""
        if span is None or not self._section.is_by_day:
            return self._listing()
        parts = [span.first] if self._tells_hour else span.days(self._table.time_zone)
        return [one for part in parts for one in self._listing(part)]

    @property
    def _tells_hour(self) -> bool:
        return self._table.is_hourly and self._section.is_by_hour

    @property
    def _tells_partition(self) -> bool:
        """True if the path of a file tells the partition of its rows."""
        return self._tells_hour if self._table.is_hourly else self._section.is_by_day

    def _rows(self, file: FoundFile, span: Span | None) -> pl.DataFrame:
        frame = self._frame(file)
        if span is not None and not self._tells_partition:
            column, dtype = typed_time_column(frame.schema, self._section, self._table, file.path)
            frame = frame.filter(in_span(column, dtype, span, self._table))
        return fit(frame, self._table, file.path, _REMEDY)

    def _listing(self, day: date | None = None) -> list[FoundFile]:
        """Return the files that match the path, of one day, of one hour or of all, in the order of their paths."""
        pattern = self._path if day is None else _of_day(self._path, day)
        expression = _expression(pattern)
        prefix = re.split(r"[*%]", pattern, maxsplit=1)[0]
        found = self._ask(lambda: self._list(prefix))
        return [
            FoundFile(path, version, day or _day_in(match, is_hourly=self._tells_hour))
            for path, version in sorted(found.items())
            if (match := expression.fullmatch(path))
        ]

    def _list(self, prefix: str) -> dict[str, tuple[object, ...]]:
        """Return path → version of all files whose path begins with `prefix`."""
        if self._section.kind == "file":
            folder = Path(prefix if prefix.endswith("/") else Path(prefix).parent)
            return {str(one): _state(one) for one in folder.rglob("*") if one.is_file()}
        bucket, _, key = prefix.removeprefix("s3://").partition("/")
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
        if self._format != "parquet" and content and content[-1:] != b"\n" and content[:2] != GZIP:
            raise FileUnreadable(
                f"{self._table.name}: {file.path} does not end with a line break: it is half written, or its writer "
                "leaves out the last one. Write the whole file, then run this partition again"
            )
        try:
            frame = parsed(content, self._format, self._section.separator, self._table.contract)
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            OSError,
            EOFError,
            zlib.error,
        ) as error:
            contract = self._table.contract
            hides = contract is not None and any(contract.hides(name) for name in contract.names)
            # polars' messages quote values.
            why = type(error).__name__ if hides else " ".join(str(error).split())[:200]
            raise FileUnreadable(
                f"{self._table.name}: {file.path} is not readable as {self._format} ({why}): it is half written, "
                "damaged or of another format. Write it again, in one step: under another name first, then rename it"
            ) from error
        if not self._tells_partition and sum(map(_size, [*self._kept.values(), frame])) <= KEPT_BYTES:
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
                now = _state(Path(file.path))
            except FileNotFoundError as error:
                raise changed from error
            if now != file.version:
                raise changed
            return content
        from botocore.exceptions import ClientError

        bucket, _, key = file.path.removeprefix("s3://").partition("/")
        try:
            answer = self._client.get_object(Bucket=bucket, Key=key, IfMatch=str(file.version[0]))
            return answer["Body"].read()
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (404, 412):
                raise changed from error
            raise

    @property
    def _client(self) -> Any:
        """S3 client, made at its first use. botocore itself finds `AWS_*`, if the section names no credentials."""
        if self._s3 is None:
            from botocore.config import Config
            from botocore.session import Session

            options = self._options
            self._s3 = Session().create_client(
                "s3",
                endpoint_url=options.get("aws_endpoint_url"),
                aws_access_key_id=options.get("aws_access_key_id"),
                aws_secret_access_key=options.get("aws_secret_access_key"),
                config=Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}),
            )
        return self._s3

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Return the result of `call`; retry while the storage does not answer. Raises our errors only."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return patiently(call, _may_pass, lambda _: self._patience, first_pause=0.2, longest_pause=5.0)
        except SourceRefused:
            raise
        except (BotoCoreError, ClientError, OSError) as error:
            said = hide_credentials(" ".join(str(error).split())[:300])
            if _may_pass(error):
                raise SourceAway(
                    f"{self._table.name}: {self._section.path} did not answer for {self._patience:g} s: {said}"
                ) from error
            raise SourceRefused(
                f"{self._table.name}: {self._section.path} cannot be read: {said}. Check source.path, and the "
                "credentials and rights of its reader"
            ) from error


def _size(frame: pl.DataFrame) -> int:
    return int(frame.estimated_size())


def _of_day(pattern: str, day: date) -> str:
    for part in _MOMENT if isinstance(day, datetime) else _DAY:
        pattern = pattern.replace(part, day.strftime(part))
    return pattern


def _said(day: date) -> str:
    return f"{day:%Y-%m-%dT%H}" if isinstance(day, datetime) else str(day)


def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a path with `*` and, for a day of any file, `%Y`, `%m`, `%d`, `%H`."""
    seen: set[str] = set()

    def part(piece: str) -> str:
        if piece == "*":
            return "[^/]*"
        if piece not in _MOMENT:
            return re.escape(piece)
        if piece in seen:
            return f"(?P={piece[1]})"
        seen.add(piece)
        return _MOMENT[piece]

    return re.compile("".join(map(part, re.split(r"(\*|%Y|%m|%d|%H)", pattern))))


def _day_in(match: re.Match[str], *, is_hourly: bool) -> date | None:
    """Return the day in a path, or the hour; None if the path tells none, or one that is not in the calendar."""
    parts = match.groupdict()
    if "Y" not in parts:
        return None
    try:
        day = date(int(parts["Y"]), int(parts["m"]), int(parts["d"]))
        return datetime.combine(day, time(int(parts["H"])), UTC) if is_hourly else day
    except ValueError:
        return None


def _state(path: Path) -> tuple[object, ...]:
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _may_pass(error: BaseException) -> bool:
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) >= 500
    return isinstance(error, ConnectionError | HTTPClientError | TimeoutError)
