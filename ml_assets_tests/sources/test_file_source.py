"""Files in a folder as a source: each format, days in paths, days in rows, and files that are half written."""

import gzip
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from ml_assets.components import Dataset
from ml_assets.components.documents import attribute_faults
from ml_assets.data.sources import file_source
from ml_assets.data.sources.file_listing import files_like, is_left_out
from ml_assets.data.sources.file_source import FileChanged, FileReader, FileSource, FileUnreadable
from ml_assets.data.sources.protocol import SourceRefused, SourceTable, Span
from ml_assets.data.validation.contract import Contract
from ml_assets.foundation.days import after, begin_of
from ml_assets_tests.components.installation import failure_of
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.hourly_sales import HOURLY, HOURS, LAST, require_every_hour, rows_of, span_of
from ml_assets_tests.sources.landed_sales import reader_of, require_every_day
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows
from ml_assets_tests.sources.text_files import read, read_file
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


@pytest.mark.parametrize(
    "path",
    ["%Y/%m/%d/%H.parquet", "%Y-%m-%d.parquet", pytest.param("*.parquet", marks=pytest.mark.nightly)],
)
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


@pytest.mark.parametrize(
    ("zone", "first"),
    [
        ("Asia/Kolkata", date(2024, 3, 8)),  # days begin at half past an hour of UTC
        ("Asia/Kathmandu", date(2024, 3, 8)),  # at a quarter past
        ("Atlantic/Azores", date(2024, 3, 30)),  # the second day lacks the hour 0 of UTC
        ("Atlantic/Azores", date(2024, 10, 26)),  # the second day has it twice
        ("America/New_York", date(2024, 3, 9)),
    ],
)
def test_each_row_of_day_files_is_in_one_hour(tmp_path: Path, zone: str, first: date) -> None:
    """Days of files begin in the zone of the table, hours are those of UTC. A row without a time is in the first hour
    of its file's day."""
    table = SourceTable(
        name=SALES,
        contract=Contract.model_validate(
            {
                "event_time": "at",
                "event_time_zone": zone,
                "columns": [
                    {"name": "id", "dtype": "int64"},
                    {"name": "at", "dtype": "datetime", "nullable": True},
                ],
            }
        ),
        start=first,
        is_hourly=True,
    )
    hours = [begin_of(first, "UTC") + timedelta(hours=n) for n in range(72)]
    moments = [hour + timedelta(minutes=15 * n) for hour in hours for n in range(4)]
    at: list[datetime | None] = [*moments]
    days = [moment.astimezone(ZoneInfo(zone)).date() for moment in moments]
    there = sorted(set(days))
    strays = [*range(len(at), len(at) + len(there))]
    frame = pl.DataFrame(
        {"id": [*range(len(at)), *strays], "at": [*at, *[None] * len(there)], "day": [*days, *there]},
        {"id": pl.Int64(), "at": pl.Datetime("us", "UTC"), "day": pl.Date()},
    )
    for (day,), part in frame.group_by("day"):
        part.drop("day").write_parquet(tmp_path / f"{day}.parquet")
    section = FileSource.model_validate({"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"})
    reader = FileReader(section, table, Platform(Settings.model_validate({"home": tmp_path})))
    found = {hour: reader.read(span_of(hour)).frame["id"].to_list() for hour in hours}
    assert sorted(one for some in found.values() for one in some) == frame["id"].sort().to_list()
    newest, end = reader.latest(), begin_of(after(there[-1]), zone)
    assert isinstance(newest, datetime)
    assert newest + timedelta(hours=1) <= end < newest + timedelta(hours=2)
    for stray, day in zip(strays, there, strict=True):
        (hour,) = [hour for hour, some in found.items() if stray in some]
        assert hour <= max(begin_of(day, zone), hours[0]) < hour + timedelta(hours=1)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_nanoseconds_that_are_whole_microseconds_are_kept(tmp_path: Path, zone: str) -> None:
    """pandas writes moments so, in the local zone too."""
    whole = (
        pl.Series("x", [1_709_899_200_000_001_000, None])
        .cast(pl.Datetime("ns", "UTC"))
        .dt.convert_time_zone(zone)
    )
    file = tmp_path / "moments.parquet"
    pl.DataFrame([pl.Series("id", [1, 2]), whole]).write_parquet(file)
    assert read_file(file, {"x": "datetime"})["x"].to_physical().to_list() == [1_709_899_200_000_001, None]
    pl.DataFrame([pl.Series("id", [1, 2]), whole.to_physical().cast(pl.Int64) + 1]).with_columns(
        pl.col("x").cast(pl.Datetime("ns", zone))
    ).write_parquet(file)
    with pytest.raises(SourceRefused, match=r"'x' .* datetime"):
        read_file(file, {"x": "datetime"})


def test_an_hour_of_two_days_waits_for_both_files(declare: Declare, tmp_path: Path) -> None:
    """The hour 18 of UTC ends on the next day in Kolkata; its second half came later, and no sensor looked back."""
    _write(tmp_path / "2024-03-08.parquet", rows(DAYS[0])[:0])
    contract = DATASET["contract"] | {"event_time_zone": "Asia/Kolkata"}
    source = {"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"}
    installation = declare(
        source, **HOURLY | {"contract": contract, "volume": {"kind": "none", "allow_empty": True}}
    )
    said = failure_of(installation.run(SALES, partition="2024-03-08T18"))
    assert f"{tmp_path}/%Y-%m-%d.parquet for 2024-03-09:" in said
    assert installation.run(SALES, partition="2024-03-08T17").success


def test_a_file_replaced_within_a_run_fails_the_days_after_it(declare: Declare, tmp_path: Path) -> None:
    """If no path tells a day, a row that moved meanwhile would be in no partition, or in two."""
    file = tmp_path / "all.parquet"
    rows(*DAYS).write_parquet(file)
    reader = reader_of(declare({"kind": "file", "path": f"{tmp_path}/*.parquet"}), FileReader)
    first, second = (Span(date.fromisoformat(day), after(date.fromisoformat(day))) for day in DAYS[:2])
    assert reader.read(first).frame.height == 3
    reader._kept.clear()  # pyright: ignore[reportPrivateUsage] - as for a file that is too large to keep
    rows(*DAYS[:1]).write_parquet(file)
    with pytest.raises(FileChanged, match=re.escape(str(file))):
        reader.read(second)
    reader.close()
    assert reader.read(second).frame.is_empty()


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


HALF = "\\ud800"
"""Half of a surrogate pair, as JSON writes it: no character."""


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda line: re.sub('"sold_at":"[^"]*"', lambda _: f'"sold_at":"{HALF}"', line),
            "half of a surrogate pair",
        ),
        (
            lambda line: line.replace("{", f'{{"{HALF}":1,', 1),
            f"{DAYS[1]} could not be read: UnicodeEncodeError",
        ),
    ],
    ids=["value", "name"],
)
def test_a_day_that_no_reader_foresaw_ends_no_other_day(
    declare: Declare, tmp_path: Path, damage: Callable[[str], str], said: str
) -> None:
    for day in DAYS[:3]:
        _write(tmp_path / f"{day}.jsonl", rows(day))
    broken = tmp_path / f"{DAYS[1]}.jsonl"
    broken.write_text("".join(map(damage, broken.read_text().splitlines(keepends=True))))
    installation = declare({"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.jsonl"})
    assert said in failure_of(installation.run(SALES, partition=DAYS[0], last=DAYS[2]))
    assert installation.main.keys(SALES) == [DAYS[0], DAYS[2]]


def test_a_field_may_be_longer_than_python_reads_by_default(tmp_path: Path) -> None:
    content = f'id,note,more\n1,"{"x" * 200_000}",\n2,y,z\n'
    found = read(tmp_path, content, "csv", {"note": "string", "more": "string"})
    assert found["note"].str.len_bytes().to_list() == [200_000, 1]


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
    frame = read(tmp_path, "\n".join(lines) + "\n", suffix, {name: one[0] for name, one in named.items()})
    values = {name: value for name, (_, _, value) in named.items()}
    assert frame.rows(named=True) == [{"id": 1, **values}, {"id": 2, **dict.fromkeys(values)}]


@pytest.mark.parametrize("text", ["y", '"y,\ny"'])
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_line_with_too_few_fields_is_refused(tmp_path: Path, text: str, is_packed: bool) -> None:
    """polars reads the missing fields as nulls. A file that was appended to after a torn write has such lines."""
    columns = {"text": "string", "note": "string"}
    whole = f"id,text,note\n1,{text},z\n2,{text},\n"
    assert read(tmp_path, whole, "csv", columns).height == 2
    torn = f"{whole}3,{text}\n4,{text},z\n"
    line = torn[: torn.index("\n4,")].count("\n") + 1
    file = tmp_path / f"torn.csv{'.gz' * is_packed}"
    file.write_bytes(gzip.compress(torn.encode()) if is_packed else torn.encode())
    with pytest.raises(FileUnreadable, match=f"line {line} .* 3 fields"):
        read_file(file, columns)


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
        with pytest.raises(FileChanged, match=re.escape(str(path))):
            reader.read(span)
    assert reader.read(span).frame.height == 1


def test_files_on_a_disk_need_no_package_of_s3(
    declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / f"{DAYS[0]}.parquet", rows(DAYS[0]))
    reader = reader_of(declare({"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"}), FileReader)
    monkeypatch.setitem(sys.modules, "botocore", None)
    span = Span(date.fromisoformat(DAYS[0]), date.fromisoformat(DAYS[1]))
    assert reader.read(span).frame.height == 3


def test_changed_columns_of_a_file_are_named(declare: Declare, tmp_path: Path) -> None:
    _write(tmp_path / f"{DAYS[0]}.parquet", rows(DAYS[0]).rename({"gift": "present"}))
    reader = reader_of(declare({"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"}), FileReader)
    (fault,) = reader.check()
    assert "added: present (bool);" in fault
    assert "removed: gift (bool)" in fault


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


HIDDEN_NAMES = [
    ".2024-03-08.csv",
    "._2024-03-08.csv",
    "_2024-03-08.csv",
    "~2024-03-08.csv",
    "#2024-03-08.csv#",
    "2024-03-08.csv~",
    "2024-03-08.csv.tmp",
    "2024-03-08.csv.PART",
    "2024-03-08.csv.crdownload",
    "2024-03-08.csv._COPYING_",
    "_temporary/2024-03-08.csv",
]


@pytest.mark.parametrize("name", HIDDEN_NAMES)
def test_hidden_and_unfinished_files_are_left_out(declare: Declare, tmp_path: Path, name: str) -> None:
    """A writer's temporary copy of a file doubled its rows."""
    _write(tmp_path / f"shop/{DAYS[0]}.csv", rows(DAYS[0]))
    copy = tmp_path / (name if "/" in name else f"shop/{name}")
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes((tmp_path / f"shop/{DAYS[0]}.csv").read_bytes())
    for path in ("*/*", "*/*%Y-%m-%d*"):
        reader = reader_of(
            declare({"kind": "file", "path": f"{tmp_path}/{path}", "format": "csv"}), FileReader
        )
        span = Span(date.fromisoformat(DAYS[0]), date.fromisoformat(DAYS[1]))
        assert reader.read(span).frame.height == 3
        copy_alone = f"{copy.parent}/{copy.name}" if "*" not in copy.name else ""
        named = declare({"kind": "file", "path": copy_alone, "format": "csv"})
        assert reader_of(named, FileReader).read(span).frame.height == 3


@pytest.mark.parametrize("path", ["*/sales.parquet", "%Y-%m-%d/*.parquet"])
def test_a_file_that_several_links_reach_is_read_once(declare: Declare, tmp_path: Path, path: str) -> None:
    """A folder of the newest day named `latest`, a link to the folder above, and a second name in one folder."""
    for day in DAYS:
        _write(tmp_path / day / "sales.parquet", rows(day))
    (tmp_path / "latest").symlink_to(tmp_path / DAYS[-1])
    (tmp_path / DAYS[0] / "again.parquet").symlink_to("sales.parquet")
    (tmp_path / DAYS[1] / "sales.parquet").rename(tmp_path / "elsewhere")
    (tmp_path / DAYS[1] / "sales.parquet").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "loop").symlink_to(tmp_path / DAYS[1])
    installation = declare({"kind": "file", "path": f"{tmp_path}/{path}"})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)


def test_a_file_with_two_names_is_read_once(tmp_path: Path) -> None:
    """Some writers give a file its name by a hard link, and remove the first name later. Equal files are two."""
    file, columns = tmp_path / "a.csv", {"x": "string"}
    file.write_text("id,x\n1,tea\n")
    (tmp_path / "b.csv").hardlink_to(file)
    (tmp_path / "c.csv").symlink_to(file)
    assert read_file(tmp_path / "*.csv", columns).rows() == [(1, "tea")]
    (tmp_path / "d.csv").write_text(file.read_text())
    shutil.copystat(file, tmp_path / "d.csv")
    assert read_file(tmp_path / "*.csv", columns).height == 2


def test_a_week_of_files_by_day_needs_a_file_of_each_day(declare: Declare, tmp_path: Path) -> None:
    """A week with six of seven files landed, and nobody read the seventh when it came."""
    week, path = "2024-03-04", f"{tmp_path}/%Y-%m-%d.csv"
    days = [date(2024, 3, 4) + timedelta(days=number) for number in range(7)]
    for day in days:
        _write(tmp_path / f"{day}.csv", rows(str(day)))
    late = (tmp_path / f"{days[5]}.csv").rename(tmp_path / "late")
    partitions = {"cadence": "weekly", "start": week, "end": "2024-03-18"}
    installation = declare({"kind": "file", "path": path}, partitions=partitions)
    said = failure_of(installation.run(SALES, partition=week))
    assert f"no file matches {path} for {days[5]}: wait for it" in said
    assert "write a file without rows" in said
    late.rename(tmp_path / f"{days[5]}.csv")
    assert installation.run(SALES, partition=week).success
    assert installation.main.scan(SALES, [week]).collect().height == rows(*map(str, days)).height
    _write(tmp_path / "2024-03-11.csv", rows("2024-03-11", "2024-03-12"))  # one file of the whole week
    assert installation.run(SALES, partition="2024-03-11").success
    assert installation.main.scan(SALES, ["2024-03-11"]).collect().height == rows(*DAYS[:2]).height


def test_links_are_followed_and_a_missing_folder_refuses_the_day(declare: Declare, tmp_path: Path) -> None:
    """Shops as folders, one of them on another disk: without it, the day would land with fewer rows."""
    shops, (day, *_), elsewhere = tmp_path / "shops", DAYS, tmp_path / "disk"
    _write(shops / f"a/{day}.csv", rows(day)[:2])
    _write(elsewhere / f"{day}.csv", rows(day)[2:])
    (shops / "b").symlink_to(elsewhere)
    installation = declare({"kind": "file", "path": f"{shops}/*/%Y-%m-%d.csv"})
    assert installation.run(SALES, partition=day).success
    assert installation.main.scan(SALES, [day]).collect().height == rows(day).height
    elsewhere.rename(tmp_path / "unmounted")
    said = failure_of(installation.run(SALES, partition=day))
    assert re.search(rf"a link to a folder .*'{shops}/b'", said)
    (tmp_path / "unmounted").rename(elsewhere)
    (elsewhere / f"{day}.csv").rename(tmp_path / "moved.csv")
    (elsewhere / f"{day}.csv").symlink_to("nowhere.csv")
    said = failure_of(installation.run(SALES, partition=day))
    assert f"{shops}/b/{day}.csv is a link" in said
    assert installation.main.scan(SALES, [day]).collect().height == rows(day).height


def test_a_folder_that_cannot_be_listed_refuses_the_list() -> None:
    """As with a mount that fails. Its rows would be missing, and a recheck would replace the day by fewer rows."""
    with tempfile.TemporaryDirectory() as made:
        folder, owner = Path(made), os.geteuid()
        folder.chmod(0o755)
        for shop in "ab":
            (folder / shop).mkdir(mode=0o755)
            (folder / shop / "day.csv").write_text("id\n1\n")
        pattern = f"{folder}/*/day.csv"
        assert len(files_like(pattern, file_source.expression_of)) == 2
        (folder / "b").chmod(0)
        try:
            if owner == 0:
                os.seteuid(65534)  # nobody: root may list everything
            with pytest.raises(PermissionError, match=f"{folder}/b"):
                files_like(pattern, file_source.expression_of)
        finally:
            os.seteuid(owner)


def test_a_pattern_may_name_hidden_files(tmp_path: Path) -> None:
    for name in ("_exports/a.tmp", "_exports/.b.tmp", "_exports/c.csv"):
        assert is_left_out(f"{tmp_path}/{name}", f"{tmp_path}/_exports/*.tmp") == (name[9] == ".")
        assert is_left_out(f"{tmp_path}/{name}", f"{tmp_path}/*/*")
