"""Values of CSV and JSON lines: each becomes exactly the value that it means, or its row is named."""

import gzip
import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ml_assets.components import Dataset
from ml_assets.components.documents import attribute_faults
from ml_assets.data.sources.file_source import FileReader, FileSource, FileUnreadable, ValueUnreadable
from ml_assets.data.sources.preview import inferred_contract
from ml_assets.data.sources.protocol import SourceRefused, SourceTable
from ml_assets.data.sources.text_values import TextForm, ValueRefused, typed
from ml_assets_tests.components.installation import failure_of
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.landed_sales import reader_of
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows
from ml_assets_tests.sources.text_files import read, read_file, reader_of_file


def _value(folder: Path, suffix: str, dtype: str, text: str, **source: Any) -> Any:
    """Return the value of a file's only row, whose column `x` is written as `text`."""
    content = f"id,x\n1,{text}\n" if suffix == "csv" else f'{{"id": 1, "x": {text}}}\n'
    return read(folder, content, suffix, {"x": dtype}, **source)["x"].to_list()[0]


def _written(day: str, form: str) -> str:
    """Return the sales of a day as CSV, with moments in New York in this format."""
    local = pl.col("sold_at", "changed_at").dt.convert_time_zone("America/New_York").dt.strftime(form)
    return rows(day).with_columns(local).write_csv()


def test_a_moment_without_an_offset_fails_its_day_by_name(declare: Declare, tmp_path: Path) -> None:
    """It was read as UTC, and the sales of an evening in New York moved to another day."""
    (tmp_path / f"{DAYS[0]}.csv").write_text(_written(DAYS[0], "%Y-%m-%dT%H:%M:%S"))
    source = {"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.csv"}
    said = failure_of(declare(source).run(SALES, partition=DAYS[0]))
    assert f"{DAYS[0]}.csv, row 1: 'sold_at' " in said
    assert "Z or +02:00" in said


def test_the_declared_zone_and_format_of_moments_are_used_and_named(declare: Declare, tmp_path: Path) -> None:
    for day in DAYS:
        (tmp_path / f"{day}.csv").write_text(_written(day, "%d/%m/%Y %H:%M:%S"))
    declared = {"formats": dict.fromkeys(("sold_at", "changed_at"), "%d/%m/%Y %H:%M:%S")}
    source = {"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.csv", "time_zone": "America/New_York", **declared}
    installation = declare(source)
    assert installation.run(SALES, partition=DAYS[0], last=DAYS[4]).success
    assert installation.main.scan(SALES, DAYS).collect().equals(rows(*DAYS))
    zone, formats = reader_of(installation, FileReader).facts().values()
    assert str(zone).endswith(" America/New_York")
    assert formats == ", ".join(f"{name} as {form}" for name, form in declared["formats"].items())


REFUSED = [
    ("csv", "decimal[18, 4]", "1.00001", "more digits after the point"),
    ("jsonl", "decimal[18, 4]", '"1.00001"', "does not fit decimal"),
    ("jsonl", "decimal[18, 4]", '"1_0"', "not a decimal"),
    ("csv", "float32", "1e39", "outside the range of float32"),
    ("jsonl", "float32", "1e39", "outside the range of float32"),
    ("csv", "float32", "16777217", "float32 does not hold exactly"),
    ("jsonl", "float32", "16777217", "float32 does not hold exactly"),
    ("csv", "float64", "9007199254740993", "float64 does not hold exactly"),
    ("jsonl", "float64", "9007199254740993", "float64 does not hold exactly"),
    ("jsonl", "float64", "0.12345678901234567890", "float64 does not hold exactly"),
    ("csv", "float64", "0.12345678901234567890", "float64 does not hold exactly"),
    ("csv", "float64", "1e-400", "float64 does not hold exactly"),
    ("csv", "float64", "1_000", "not a number"),
    ("csv", "int64", "1_000", "not a whole number"),
    ("csv", "int64", "１", "not a whole number"),
    ("csv", "int64", "1.0", "not a whole number"),
    ("jsonl", "int64", "1.0", "is a fraction, not int64"),
    ("csv", "int8", "128", "outside the range of int8"),
    ("csv", "bool", "yes", "neither true nor false"),
    ("csv", "date", "03/04/2024", "declare its form in source.formats"),
    ("csv", "date", "2023-02-29", "not a day of the calendar"),
    ("csv", "date", "0000-01-01", "not in the years 1 to 9999"),
    ("jsonl", "date", '"2024-W10-5"', "not a date such as"),
    ("csv", "datetime", "03/04/2024 12:00Z", "declare its form in source.formats"),
    ("csv", "datetime", "2024-03-08T12:00:00.1234567Z", "more precise than microseconds"),
    ("csv", "datetime", "9999-12-31T23:00:00-02:00", "not in the years 1 to 9999"),
    ("jsonl", "datetime", '"9999-12-31T23:00:00-02:00"', "in the years 1 to 9999"),
    ("jsonl", "datetime", '"2024-03-08x12:00Z"', "not a moment"),
    ("csv", "duration", "0.0000001", "more precise than microseconds"),
    ("jsonl", "duration", "0.0000001", "more precise than microseconds"),
    ("jsonl", "duration", "1e300", "outside the range"),
    ("csv", "binary", "AAF=", "not base64"),
    ("jsonl", "binary", '"AAF="', "not base64"),
    ("jsonl", "string", "2.50", "is a fraction, not string"),
    ("jsonl", "list[int8]", "[300]", "outside the range of int8"),
    ("jsonl", "array[float32, 2]", "[1]", "has 1 items, not 2"),
]


@pytest.mark.parametrize(("suffix", "dtype", "text", "said"), REFUSED)
def test_a_value_that_would_change_is_refused_by_name(
    tmp_path: Path, suffix: str, dtype: str, text: str, said: str
) -> None:
    with pytest.raises(ValueUnreadable) as refused:
        _value(tmp_path, suffix, dtype, text)
    assert f"{tmp_path}/rows.{suffix}, row 1: 'x' " in str(refused.value)
    assert said in str(refused.value)
    assert text.strip('"') not in str(refused.value).partition(": 'x'")[2], "it may be sensitive"


KEPT = [
    ("csv", "int64", "+007", 7),
    ("csv", "int64", " 5", 5),
    ("csv", "int64", "NA", None),
    ("csv", "float64", "0.1", 0.1),
    ("csv", "float64", "5.684341886080802e-14", 2.0**-44),
    ("csv", "float64", "0.1000000000000000055511151231257827", 0.1),
    ("csv", "float64", "1152921504606846976", 2.0**60),
    ("jsonl", "float64", "1152921504606846976", 2.0**60),
    ("csv", "float32", "0.1", 0.10000000149011612),
    ("csv", "float32", "0.10000000149011612", 0.10000000149011612),
    ("jsonl", "float32", "0.1", 0.10000000149011612),
    ("csv", "bool", "TRUE", True),
    ("csv", "duration", "1e-3", pl.duration(milliseconds=1)),
    ("csv", "datetime", "1600-01-01T00:00:00Z", datetime(1600, 1, 1, tzinfo=UTC)),
    ("csv", "date", "9999-12-31", date(9999, 12, 31)),
    ("csv", "string", "007", "007"),
    ("csv", "string", "+1", "+1"),
    ("csv", "string", "1.50", "1.50"),
    ("csv", "string", "TRUE", "TRUE"),
    ("csv", "string", "NA", "NA"),
    ("csv", "categorical", "null", "null"),
    ("csv", "string", " x\t", " x\t"),
    ("csv", "string", '""', ""),
    ("csv", "string", "", None),
    ("csv", "string", '"a\r\nb"', "a\r\nb"),
    ("csv", "binary", "null", b"\x9e\xe9e"),
    ("jsonl", "string", '"2.50"', "2.50"),
]


@pytest.mark.parametrize(("suffix", "dtype", "text", "value"), KEPT)
def test_a_value_that_its_type_holds_is_kept(
    tmp_path: Path, suffix: str, dtype: str, text: str, value: Any
) -> None:
    found = _value(tmp_path, suffix, dtype, text)
    assert found == (pl.select(value).item() if isinstance(value, pl.Expr) else value)


def test_a_time_of_a_clock_that_is_set_is_refused(tmp_path: Path) -> None:
    for text in ("2024-03-10T02:30:00", "2024-11-03T01:30:00"):
        with pytest.raises(ValueUnreadable, match=r"row 1: 'x' .*America/New_York .*offset"):
            _value(tmp_path, "csv", "datetime", text, time_zone="America/New_York")
    late = _value(tmp_path, "csv", "datetime", "2024-11-03T01:30:00-05:00", time_zone="America/New_York")
    assert late == datetime(2024, 11, 3, 6, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dtype", "form", "text", "value"),
    [
        ("date", "%d/%m/%Y", "03/04/2024", date(2024, 4, 3)),
        ("date", "%d/%m/%Y", "03/04/24", "is not written as '%d/%m/%Y'"),
        ("date", "%d/%m/%Y", "2024-04-03", "is not written as '%d/%m/%Y'"),
        ("date", "%d/%m/%Y %H:%M", "03/04/2024 12:00", "has a time, which would be cut off"),
        ("datetime", "%d/%m/%Y %H:%M %z", "03/04/2024 12:00 +0200", datetime(2024, 4, 3, 10, tzinfo=UTC)),
        ("datetime", "%d/%m/%Y %H:%M", "03/04/2024 12:00", "has no offset from UTC"),
        ("datetime", "%Y%m%d %H:%M:%S.%f%z", "20240403 10:00:00.0000001+0000", "more precise"),
        # What polars reads as another moment:
        (
            "datetime",
            "%Y-%m-%d %H:%M:%S.%f%z",
            "2024-04-03 10:00:00.5Z",
            datetime(2024, 4, 3, 10, 0, 0, 500_000, UTC),
        ),
        ("datetime", "%Y-%m-%d %H:%M:%S%z", "2024-06-30 23:59:60Z", "is not written as"),
        ("datetime", "%d/%m/%Y %H%M%z", "03/04/24 1200Z", "is not written as"),
        ("date", "%Y%m%d", "2024111", "is not written as"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_declared_format_decides_how_a_time_reads(
    tmp_path: Path, suffix: str, dtype: str, form: str, text: str, value: Any
) -> None:
    text = text if suffix == "csv" else f'"{text}"'
    if isinstance(value, str):
        with pytest.raises(ValueUnreadable, match=value):
            _value(tmp_path, suffix, dtype, text, formats={"x": form})
    else:
        assert _value(tmp_path, suffix, dtype, text, formats={"x": form}) == value


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("%Y-%m-%d %H:%M %Z", "names of zones are not read: declare source.time_zone"),
        ("%s", "seconds since 1970 are not read"),
        ("%Y-%m-%d %I:%M", "half of the day"),
        ("%Y-%m-%d %M", "no hour"),
        ("%H:%M", "does not tell a day"),
        ("%d/%m/%Y %Q", "has %Q: use %Y"),
        ("%d/%m/%Y %q", "does not tell a day"),
        ("%d %q %Y", "does not tell a day"),
        ("%Y %H:%M", "does not tell a day"),
        ("%y", "does not tell a day"),
        ("%Y-%m-%d %H:%M:%S.%3f", "has %3: use %Y"),
        ("%Y-%m-%d%", "has %: use %Y"),
    ],
)
def test_a_format_that_tells_no_moment_is_refused_when_it_is_declared(form: str, said: str) -> None:
    """polars ignored the name of a zone, and shifted seconds since 1970 by `time_zone`."""
    with pytest.raises(ValidationError, match=re.escape(said)):
        FileSource.model_validate({"kind": "file", "path": "a.csv", "formats": {"x": form}})


_DAYS_AS = [
    "%Y-%m-%d",
    "%d/%m/%Y",
    "%m.%d.%y",
    "%d %b %Y",
    "%B %d, %Y",
    "%a %d %b %Y",
    "%Y%m%d",
    "%Y %j",
    "%Y-%m",
]
_TIMES_AS = ["", " %H:%M", "T%H:%M:%S", " %I:%M %p", "%H%M%S", " %H:%M:%S.%f", " %H h", ", %I%p"]


@settings(max_examples=300, deadline=None)
@given(
    moment=st.datetimes(*(datetime(year, 1, 1) for year in (1969, 2068))),  # noqa: DTZ001 - hypothesis wants it so
    day=st.sampled_from(_DAYS_AS),
    time=st.sampled_from(_TIMES_AS),
    offset=st.sampled_from(["", "%z", " %z"]),
)
def test_a_declared_format_reads_what_strptime_reads(
    moment: datetime, day: str, time: str, offset: str
) -> None:
    form = day + time + offset
    text = moment.replace(tzinfo=timezone(timedelta(hours=-3, minutes=-30))).strftime(form)
    found = typed(
        pl.Series("x", [text, None]), pl.Datetime("us", "UTC"), TextForm(formats={"x": form}, time_zone="UTC")
    )
    expected = datetime.strptime(text, form)  # noqa: DTZ007 - with its own offset, if it has one
    assert found.to_list() == [expected.replace(tzinfo=expected.tzinfo or UTC).astimezone(UTC), None]


@pytest.mark.parametrize(
    ("form", "text", "first"),
    [
        ("%YQ%q", "2024Q3", date(2024, 7, 1)),
        ("Q%q %y", "Q4 68", date(2068, 10, 1)),
        ("%Y", "1999", date(1999, 1, 1)),
        ("%Y%q", "20242", date(2024, 4, 1)),
        ("%YQ%q", "2024Q5", None),
    ],
)
def test_a_quarter_or_a_year_stands_for_its_first_day(form: str, text: str, first: date | None) -> None:
    read_as = TextForm(formats={"x": form}, time_zone="UTC")
    if first is None:
        with pytest.raises(ValueRefused):
            typed(pl.Series("x", [text]), pl.Date(), read_as)
    else:
        assert typed(pl.Series("x", [text]), pl.Date(), read_as).to_list() == [first]


@pytest.mark.parametrize("text", ["a\r", "\r", 'a\r,"b"\n2,"c"'])
def test_a_carriage_return_outside_quotes_is_refused(tmp_path: Path, text: str) -> None:
    """polars cuts it off, before a separator too."""
    assert read(tmp_path, 'id,x,y\n1,"a\r",z\n', "csv", {"x": "string", "y": "string"})["x"].to_list() == [
        "a\r"
    ]
    with pytest.raises(FileUnreadable, match="carriage return"):
        read(tmp_path, f"id,x,y\n1,{text},z\n", "csv", {"x": "string", "y": "string"})


@pytest.mark.parametrize("text", ['""tea""', '""tea" ,"'])
def test_text_after_a_closing_quote_is_refused(tmp_path: Path, text: str) -> None:
    """polars reads `""tea""` as `tea`, and may take a separator for a part of the text."""
    right = read(tmp_path, 'id,x\n1,"5"" pipe of ""tea"", x"\n', "csv", {"x": "string"})
    assert right["x"].to_list() == ['5" pipe of "tea", x']
    with pytest.raises(FileUnreadable, match="after a closing quote"):
        read(tmp_path, f"id,x\n1,{text}\n", "csv", {"x": "string"})


def test_a_carriage_return_in_a_file_of_one_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="carriage return"):
        read(tmp_path, 'id\n"1"\n2\r3\n', "csv", {})


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_last_line_that_does_not_end_is_refused(tmp_path: Path, is_packed: bool) -> None:
    content = b"id,x\n1,a\n2,b"
    file = tmp_path / f"rows.csv{'.gz' * is_packed}"
    file.write_bytes(gzip.compress(content) if is_packed else content)
    with pytest.raises(FileUnreadable, match="a line break"):
        read_file(file, {"x": "string"})


def test_declared_texts_without_a_value_are_nulls(tmp_path: Path) -> None:
    assert _value(tmp_path, "csv", "string", "NA", nulls=["NA", "-"]) is None
    assert _value(tmp_path, "csv", "string", "Namibia", nulls=["NA", "-"]) == "Namibia"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id,x,x\n1,a,b\n", "names x more than once"),
        (b"id,x\n1,\xff\n", "utf-8"),
        (b"id,\xff\n1,a\n", "utf-8"),
        (b'id,x\n1,"a\n', "is not readable as csv"),
    ],
)
def test_a_damaged_csv_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(FileUnreadable, match=said):
        read(tmp_path, content, "csv", {"x": "string"})


def test_a_mark_of_byte_order_is_no_part_of_a_name(tmp_path: Path) -> None:
    frame = read(tmp_path, b"\xef\xbb\xbfid,x\r\n1,a\r\n", "csv", {"x": "string"})
    assert frame.rows() == [(1, "a")]


def test_a_field_that_stands_twice_in_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"line 1: .* field twice"):
        read(tmp_path, '{"id": 1, "x": 1, "x": 2}\n', "jsonl", {"x": "int64"})


GUESSED: Mapping[str, tuple[str, str]] = {
    "code": ("01234", "string"),
    "phone": ("+4930", "string"),
    "count": ("5", "int64"),
    "share": ("0.5", "float64"),
    "long": ("0.12345678901234567890", "string"),
    "paid": ("true", "bool"),
    "answer": ("yes", "string"),
    "day": ("2024-03-08", "date"),
    "at": ("2024-03-08T12:00:00Z", "datetime"),
    "local": ("2024-03-08T12:00:00", "string"),
    "european": ("08.03.2024", "string"),
}
"""Column → its value, and the type that a preview suggests."""


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_suggested_contract_reads_the_file_without_a_change(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows.{suffix}"
    texts = {name: text for name, (text, _) in GUESSED.items()}
    if suffix == "csv":
        file.write_text(f"{','.join(texts)}\n{','.join(texts.values())}\n")
    else:
        plain = {"count": 5, "share": 0.5, "paid": True}
        file.write_text(json.dumps(texts | plain) + "\n")
    frame = reader_of_file(file, None).preview(10)
    suggested = inferred_contract(frame, SourceTable(name=SALES, contract=None), None)
    types = {column["name"]: column["dtype"] for column in suggested["columns"]}
    assert types == {name: dtype for name, (_, dtype) in GUESSED.items()}


def test_a_preview_of_fields_of_different_types_says_so(tmp_path: Path) -> None:
    """It suggested text, and `2.50` was read as `2.5`."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"x": "a"}\n{"x": 2.50}\n')
    with pytest.raises(ValueUnreadable, match=r"row 2: 'x' .*: a text and a fraction"):
        reader_of_file(file, None).preview(10)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"path": "x.parquet", "time_zone": "UTC"}, "are for text files"),
        ({"path": "x.csv", "time_zone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"path": "x.csv", "separator": "é"}, "a separator is one character of ASCII"),
        ({"path": "x.csv", "separator": '"'}, "no quote"),
    ],
)
def test_a_wrong_key_of_a_text_file_is_refused(source: dict[str, Any], said: str) -> None:
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": {"kind": "file", **source}})
    assert [words for _, words in faults if said in words], faults


def test_a_format_of_a_column_that_is_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceRefused, match=r"source\.formats names x: "):
        _value(tmp_path, "csv", "string", "a", formats={"x": "%Y-%m-%d"})
