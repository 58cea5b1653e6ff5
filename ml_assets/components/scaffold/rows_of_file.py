"""Rows of a file that a person hands in (CSV, Parquet, JSON lines, Excel), and the place of each row in it.

Here: what is wrong with a file as a whole. Not here: the meaning of its columns (`csv_tables`).
"""

import csv
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import polars as pl

from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.data.sources.file_formats import parsed, texts_of_csv, unpacked
from ml_assets.data.sources.s3_object import S3Object
from ml_assets.data.sources.text_values import TextForm, ValueRefused
from resources.extras import missing_extra

FileForm = Literal["csv", "parquet", "jsonl", "excel", "sql"]
"""`sql` is a table of PostgreSQL, which `rows_of_table` reads."""
_SUFFIXES: Mapping[str, FileForm] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".xlsx": "excel",
}
_NAMES: Mapping[FileForm, str] = {
    "csv": "CSV",
    "parquet": "Parquet",
    "jsonl": "JSON lines",
    "excel": "an Excel workbook",
}
_SEPARATORS = ",;\t|"
_OTHER_FORMATS = (
    (b"PK\x03\x04", "an archive", "unpack it; if it is an Excel workbook, name it .xlsx"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "save the sheet as CSV, UTF-8"),
    (b"\x89PNG", "a picture", "give the path of a CSV file"),
    (b"%PDF", "a PDF", "give the path of a CSV file"),
    (b"<", "a web page or XML", "download the file itself, as CSV"),
    (b"[", "a JSON array", "write one object per line, as .jsonl"),
)
"""Begin of a file → what it is, and the remedy."""


@dataclass(frozen=True)
class FileRows:
    """Rows of a file."""

    path: Path | S3Object
    """Path of the file, or the name of a table."""
    form: FileForm
    frame: pl.DataFrame
    """Columns by their headings: texts of CSV, or values of the file's own types."""
    content: bytes
    separator: str = ""
    """Separator of CSV."""
    sql: Mapping[str, str] = field(default_factory=dict[str, str])
    """Heading → SQL of a column of a table."""

    def place(self, row: int) -> str:
        """Return file and line of a row of `frame`, which counts from 0."""
        return f"{self.path}, {'row' if self.form in ('parquet', 'sql') else 'line'} {self.line(row)}"

    def line(self, row: int) -> int:
        """Return the number of the last line, from 1, of a row of `frame`, which counts from 0."""
        if self.form != "csv":
            return row + (2 if self.form == "excel" else 1)
        reader = csv.reader(_lines(self.content), delimiter=self.separator)
        filled = -1
        for fields in reader:
            filled += any(fields)
            if filled == row + 1:
                break
        return reader.line_num


def read_rows(path: Path | S3Object) -> FileRows:
    """Read a file of one of the forms. Its content decides the form of CSV and Parquet. Raises `CsvRefused`."""
    if isinstance(path, Path) and path.is_dir():
        raise CsvRefused(f"{path} is a folder: give the path of a file")
    if isinstance(path, Path) and not path.is_file():
        raise CsvRefused(f"{path} is not a file: give the path of a CSV, Parquet, JSON lines or Excel file")
    try:
        content = unpacked(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise CsvRefused(f"{path} cannot be read ({error}): check its rights, or write it again") from error
    except ModuleNotFoundError as error:
        raise CsvRefused(f"{path}: {missing_extra(error)}") from error
    form = _form_of(path, content)
    if form == "csv":
        return _csv(path, content)
    frame = _with_types(path, form, content)
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null())) if frame.width else frame
    if frame.is_empty():
        raise CsvRefused(f"{path} has no rows")
    return FileRows(path, form, frame, content)


def _form_of(path: Path | S3Object, content: bytes) -> FileForm:
    suffix = path.suffix.lower()
    if content[:4] == b"PAR1":
        return "parquet"
    if suffix in _SUFFIXES and _SUFFIXES[suffix] == "excel" and content[:4] == b"PK\x03\x04":
        return "excel"
    if suffix in _SUFFIXES and _SUFFIXES[suffix] == "jsonl" and content.lstrip()[:1] == b"{":
        return "jsonl"
    if suffix in _SUFFIXES and content.strip():
        begin = content[:40].decode("utf-8", errors="replace").splitlines()[0]
        raise CsvRefused(
            f"{path} is not {_NAMES[_SUFFIXES[suffix]]}: it begins with {begin!r}. If it is CSV, name it .csv"
        )
    return "jsonl" if content.lstrip()[:1] == b"{" else "csv"


def _with_types(path: Path | S3Object, form: FileForm, content: bytes) -> pl.DataFrame:
    """Return the rows of a file whose values have types."""
    if form == "excel" and find_spec("fastexcel") is None:
        raise CsvRefused(
            f"{path} is an Excel workbook, which needs the package fastexcel: pip install 'ml-assets[excel]', or save "
            "the sheet as CSV, UTF-8"
        )
    try:
        if form == "excel":
            return pl.read_excel(io.BytesIO(content))
        return parsed(content, "parquet" if form == "parquet" else "jsonl", ",", None, TextForm())
    except ValueRefused as error:
        said = str(error).partition(": ")[2]
        raise CsvRefused(f"{path}, line {error.row}: {said}: write one type") from error
    except Exception as error:  # the reader of Excel has errors of its own
        said = " ".join(str(error).split())[:200]
        raise CsvRefused(
            f"{path} is not readable as {_NAMES[form]}: {said}. Write the whole file again"
        ) from error


def _csv(path: Path | S3Object, content: bytes) -> FileRows:
    _require_text(path, content)
    separator, heading = _heading(path, content)
    try:
        frame = texts_of_csv(content, separator)
    except (pl.exceptions.PolarsError, csv.Error, UnicodeDecodeError) as error:
        uneven = _uneven_line(content, separator, len(heading))
        raise CsvRefused(f"{path}{uneven or f' is not a CSV file: {str(error).splitlines()[0]}'}") from error
    frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    if frame.is_empty():
        raise CsvRefused(f"{path} has no rows below its first line")
    return FileRows(path, "csv", frame, content, separator)


def _require_text(path: Path | S3Object, content: bytes) -> None:
    """Raise `CsvRefused` unless the content is text in UTF-8."""
    if not content.strip():
        raise CsvRefused(f"{path} is empty: its first line must name the columns")
    for begin, kind, remedy in _OTHER_FORMATS:
        if content.startswith(begin):
            raise CsvRefused(f"{path} is {kind}, not CSV: {remedy}")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise CsvRefused(f"{path} is UTF-16: {_convert('UTF-16', path)}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        begin = content.rfind(b"\n", 0, error.start) + 1
        shown = content[begin : error.start + 20].splitlines()[0].decode("latin-1")[-40:]
        raise CsvRefused(
            f"{path}, line {line}: not UTF-8, as Latin-1 it reads {shown!r}: {_convert('WINDOWS-1252', path)}"
        ) from error
    if "\0" in text[:10_000]:
        raise CsvRefused(f"{path} has bytes that no text has: give the path of a CSV file")


def _convert(encoding: str, path: Path | S3Object) -> str:
    return f"save it as CSV, UTF-8, or run: iconv -f {encoding} -t UTF-8 {path.name} > {path.stem}_utf8.csv"


def _lines(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")


def _heading(path: Path | S3Object, content: bytes) -> tuple[str, Sequence[str]]:
    """Return the separator, and the names of the columns."""
    begin = content[:10].decode("utf-8-sig", errors="ignore").splitlines()[0]
    if begin.lower().startswith("sep="):
        raise CsvRefused(f"{path}, line 1: delete {begin!r}, so that the first line names the columns")
    headings = {separator: _first_fields(content, separator) for separator in _SEPARATORS}
    separator = max(headings, key=lambda one: len(headings[one]))
    heading = headings[separator]
    if len(heading) > 1:
        if twice := [name for name in dict.fromkeys(heading) if heading.count(name) > 1]:
            raise CsvRefused(f"{path}, line 1: two columns are named {twice[0]!r}: rename one")
        return separator, heading
    shown = heading[0][:40] if heading else ""
    if len(shown.split()) > 1:
        hint = f"line 1, {shown!r}, has no comma, semicolon, tab or |: put one of them between the columns"
    else:
        hint = (
            f"line 1 names only {shown!r}: a table needs a date and at least one value, separated by commas"
        )
    raise CsvRefused(f"{path} has one column: {hint}")


def _first_fields(content: bytes, separator: str) -> list[str]:
    try:
        return next(filter(any, csv.reader(_lines(content), delimiter=separator)), [])
    except csv.Error:
        return []


def _uneven_line(content: bytes, separator: str, width: int) -> str:
    """Return the first line that has another number of fields than the first one; empty if there is none."""
    reader = csv.reader(_lines(content), delimiter=separator)
    try:
        for row in reader:
            if row and len(row) != width:
                remedy = (
                    "add what is missing"
                    if len(row) < width
                    else f"write a text with {separator!r} in quotes"
                )
                return f", line {reader.line_num}: it has {len(row)} fields, and line 1 has {width}: {remedy}"
    except csv.Error:
        return ""
    return ""
