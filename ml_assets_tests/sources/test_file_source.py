"""Files in a folder as a source: each format, days in paths, days in rows, and files that are half written."""

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.components import Dataset
from ml_assets.components.attribute_faults import attribute_faults
from ml_assets.sources.file_source import FileChanged, FileReader, FileSource
from ml_assets.sources.protocol import Span
from ml_assets_tests.components.installation import failure_of
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.landed_sales import reader_of, require_every_day
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows


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
