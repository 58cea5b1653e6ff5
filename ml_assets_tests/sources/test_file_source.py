"""Files in a folder as a source: each format, days in paths, days in rows, and files that are half written."""

import gzip
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.components import Dataset
from ml_assets.components.attribute_faults import attribute_faults
from ml_assets.sources.file_source import FileChanged, FileReader, FileSource, FileUnreadable
from ml_assets.sources.protocol import SourceTable, Span
from ml_assets.validation.contract import Contract
from ml_assets_tests.components.installation import failure_of
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.hourly_sales import HOURLY, HOURS, LAST, require_every_hour, rows_of
from ml_assets_tests.sources.landed_sales import reader_of, require_every_day
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows
from resources.platform import Platform
from resources.settings import Settings


def _write(path: Path, frame: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.with_columns(
            pl.col("sold_at", "changed_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f%z")
        ).write_ndjson(path)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("by_day", [True, False])
def test_each_format_lands_the_same_rows(declare: Declare, tmp_path: Path, suffix: str, by_day: bool) -> None:
    if by_day:
        for day in DAYS:
            _write(tmp_path / f"{day.replace('-', '/')}/a.{suffix}", rows(day)[:2])
            _write(tmp_path / f"{day.replace('-', '/')}/b.{suffix}", rows(day)[2:])
    else:
        _write(tmp_path / f"all-1.{suffix}", rows(*DAYS)[::2])
        _write(tmp_path / f"all-2.{suffix}", rows(*DAYS)[1::2])
    path = f"{tmp_path}/%Y/%m/%d/*.{suffix}" if by_day else f"{tmp_path}/all-*.{suffix}"
    installation = declare({"kind": "file", "path": path})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    if by_day:
        assert reader_of(installation, FileReader).latest() == date.fromisoformat(DAYS[-1])


@pytest.mark.parametrize("path", ["%Y/%m/%d/%H.parquet", "%Y-%m-%d.parquet", "*.parquet"])
def test_hours_of_utc_come_from_paths_or_from_rows(declare: Declare, tmp_path: Path, path: str) -> None:
    for hour in HOURS:
        file = tmp_path / f"{hour:{path.replace('*', '%H')}}"
        others = [pl.read_parquet(file)] if file.exists() else []
        _write(file, pl.concat([*others, rows_of(hour)]))
    installation = declare({"kind": "file", "path": f"{tmp_path}/{path}"}, **HOURLY)
    require_every_hour(installation)
    if "%d" in path:
        newest = LAST if "%H" in path else LAST.replace(hour=23)
        assert reader_of(installation, FileReader).latest() == newest
    if "%H" in path:
        said = failure_of(installation.run(SALES, partition="2024-03-13T04"))
        assert f"no file matches {tmp_path}/{path} for 2024-03-13T04: wait for it" in said


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_half_written_file_fails_its_day_until_it_is_whole(
    declare: Declare, tmp_path: Path, suffix: str
) -> None:
    for day in DAYS[:3]:
        _write(tmp_path / f"{day}.{suffix}", rows(day))
    half = tmp_path / f"{DAYS[1]}.{suffix}"
    whole = half.read_bytes()
    half.write_bytes(whole[: len(whole) * 2 // 3])
    installation = declare({"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.{suffix}"})
    said = failure_of(installation.run(SALES, partition=DAYS[0], last=DAYS[3]))
    assert f"{DAYS[1]}.{suffix}" in said
    assert "half written" in said
    assert installation.main.keys(SALES) == [DAYS[0], DAYS[2]]
    half.write_bytes(whole)
    assert installation.run(SALES, partition=DAYS[1]).success
    said = failure_of(installation.run(SALES, partition=DAYS[3]))
    assert f"no file matches {tmp_path}/%Y-%m-%d.{suffix} for {DAYS[3]}: wait for it" in said


TYPED: dict[str, tuple[str, str, Any]] = {
    "price": ("decimal[18, 4]", '"1.50000"', Decimal("1.5")),
    "amount": ("float64", "5", 5.0),
    "weight": ("float32", "0.5", 0.5),
    "took": ("duration", "2.5", timedelta(seconds=2, milliseconds=500)),
    "shop": ("categorical", '"north"', "north"),
    "photo": ("binary", '"AAE="', b"\x00\x01"),
    "vector": ("array[float32, 2]", "[1, 2.5]", [1.0, 2.5]),
    "days": ("list[date]", '["2024-03-08", null]', [date(2024, 3, 8), None]),
}
"""Column → its type, a value as JSON has it, and the value."""


def _read(folder: Path, content: str, suffix: str, columns: Mapping[str, str]) -> pl.DataFrame:
    """Write a file and return its rows; see `_read_file`."""
    file = folder / f"rows.{suffix}"
    file.write_text(content)
    return _read_file(file, columns)


def _read_file(file: Path, columns: Mapping[str, str]) -> pl.DataFrame:
    """Return the rows of a file with the columns `id` and `columns`, which are name → type."""
    types = [{"name": name, "dtype": dtype, "nullable": True} for name, dtype in columns.items()]
    contract = Contract.model_validate({"columns": [{"name": "id", "dtype": "int64"}, *types]})
    table = SourceTable(name=SALES, contract=contract)
    platform = Platform(Settings.model_validate({"home": file.parent}))
    return FileReader(FileSource(kind="file", path=str(file)), table, platform).read(None).frame


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_values_of_text_files_get_the_types_of_the_contract(tmp_path: Path, suffix: str) -> None:
    """JSON has one type of number: a day whose amounts are whole is no day with other columns."""
    named = {name: one for name, one in TYPED.items() if suffix == "jsonl" or "[" not in one[1]}
    if suffix == "csv":
        lines = [
            f"id,{','.join(named)}",
            f"1,{','.join(text for _, text, _ in named.values())}",
            f"2{',' * len(named)}",
        ]
    else:
        fields = ", ".join(f'"{name}": {text}' for name, (_, text, _) in named.items())
        lines = [f'{{"id": 1, {fields}}}', '{"id": 2}']
    frame = _read(tmp_path, "\n".join(lines) + "\n", suffix, {name: one[0] for name, one in named.items()})
    values = {name: value for name, (_, _, value) in named.items()}
    assert frame.rows(named=True) == [{"id": 1, **values}, {"id": 2, **dict.fromkeys(values)}]


@pytest.mark.parametrize(
    ("suffix", "dtype", "value"),
    [
        ("csv", "decimal[18, 4]", "1.00001"),
        ("jsonl", "decimal[18, 4]", '"1.00001"'),
        ("jsonl", "float64", "9007199254740993"),
        ("jsonl", "float32", "1e300"),
        ("jsonl", "list[int8]", "[300]"),
        ("jsonl", "array[float32, 2]", "[1]"),
    ],
)
def test_no_value_of_a_text_file_changes(tmp_path: Path, suffix: str, dtype: str, value: str) -> None:
    content = f"id,x\n1,{value}\n" if suffix == "csv" else f'{{"id": 1, "x": {value}}}\n'
    with pytest.raises(FileUnreadable, match=f"is not readable as {suffix}"):
        _read(tmp_path, content, suffix, {"x": dtype})


@pytest.mark.parametrize("text", ["y", '"y,\ny"'])
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_line_with_too_few_fields_is_refused(tmp_path: Path, text: str, is_packed: bool) -> None:
    """polars reads the missing fields as nulls. A file that was appended to after a torn write has such lines."""
    columns = {"text": "string", "note": "string"}
    whole = f"id,text,note\n1,{text},z\n2,{text},\n"
    assert _read(tmp_path, whole, "csv", columns).height == 2
    torn = f"{whole}3,{text}\n4,{text},z\n"
    line = torn[: torn.index("\n4,")].count("\n") + 1
    file = tmp_path / f"torn.csv{'.gz' * is_packed}"
    file.write_bytes(gzip.compress(torn.encode()) if is_packed else torn.encode())
    with pytest.raises(FileUnreadable, match=f"line {line} has fewer than 3 fields"):
        _read_file(file, columns)


def test_a_file_that_changes_while_it_is_read_is_refused(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{DAYS[0]}.parquet"
    _write(path, rows(DAYS[0]))
    reader = reader_of(declare({"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"}), FileReader)
    read_bytes = Path.read_bytes

    def while_somebody_writes(file: Path) -> bytes:
        content = read_bytes(file)
        _write(file, rows(DAYS[0])[:1])
        return content

    span = Span(date.fromisoformat(DAYS[0]), date.fromisoformat(DAYS[1]))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", while_somebody_writes)
        with pytest.raises(FileChanged, match="changed while it was read: write a file in one step"):
            reader.read(span)
    assert reader.read(span).frame.height == 1


def test_changed_columns_of_a_file_are_named(declare: Declare, tmp_path: Path) -> None:
    _write(tmp_path / f"{DAYS[0]}.parquet", rows(DAYS[0]).rename({"gift": "present"}))
    reader = reader_of(declare({"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"}), FileReader)
    (fault,) = reader.check()
    assert "added: present (bool); removed: gift (bool)" in fault


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"path": "s3://bucket/x.csv"}, "`path` of kind s3 begins with s3://"),
        ({"path": "x/%Y/%m/*.csv"}, "a day needs %Y, %m and %d, or none of them"),
        ({"path": "x.xlsx"}, "set `format`"),
        ({"path": "x.csv", "separator": "::"}, "a separator is one character"),
        ({"path": "x.csv", "watch": {}}, "source.watch needs source.path with %Y, %m and %d"),
    ],
)
def test_a_wrong_path_is_refused_with_what_would_be_right(source: dict[str, Any], said: str) -> None:
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": {"kind": "file", **source}})
    assert [words for _, words in faults if said in words], faults


def test_a_path_tells_the_day_also_when_it_names_it_twice() -> None:
    section = FileSource(kind="file", path="/%Y/%m/sales-%Y-%m-%d.csv")
    assert section.is_by_day
    assert section.lacks_for_latest is None
