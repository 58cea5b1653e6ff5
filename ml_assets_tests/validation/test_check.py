"""Bad data is named: which partition, which column, which rows, what was expected. Good data is not."""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.column_types import POLARS_TYPES
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.verdict import Finding
from ml_assets_tests.validation.flights_table import bounds, contract, day, days

ROW = pl.int_range(pl.len())
Corruption = Callable[[pl.DataFrame], pl.DataFrame]

CORRUPTIONS: dict[str, tuple[Corruption, str, str | None, list[str]]] = {
    "missing column": (lambda f: f.drop("tail"), "missing_column", "tail", ["'tail' is missing"]),
    "renamed column": (
        lambda f: f.rename({"tail": "tailnum"}),
        "missing_column",
        "tail",
        ["renamed to 'tailnum'"],
    ),
    "extra column": (
        lambda f: f.with_columns(gate=pl.lit("A")),
        "unexpected_column",
        "gate",
        ["does not know"],
    ),
    "wrong type": (
        lambda f: f.with_columns(pl.col("flight").cast(pl.Int32)),
        "wrong_type",
        "flight",
        ["int32 where int64 is expected"],
    ),
    "strings for numbers": (
        lambda f: f.with_columns(delay=pl.when(ROW == 3).then(pl.lit("n/a")).otherwise(pl.lit("12"))),
        "wrong_type",
        "delay",
        ["string where float64 is expected", "1 of its strings are not numbers", "'n/a'"],
    ),
    "numbers as strings": (
        lambda f: f.with_columns(pl.col("delay").cast(pl.String)),
        "wrong_type",
        "delay",
        ["All its strings are numbers"],
    ),
    "times without zone": (
        lambda f: f.with_columns(pl.col("scheduled").dt.replace_time_zone(None)),
        "wrong_type",
        "scheduled",
        ["no time zone", "UTC"],
    ),
    "nanoseconds of pandas": (
        lambda f: f.with_columns(pl.col("scheduled").dt.cast_time_unit("ns")),
        "wrong_type",
        "scheduled",
        ["datetime[ns, UTC]", 'pl.col("scheduled").dt.cast_time_unit("us")'],
    ),
    "unknown carrier": (
        lambda f: f.with_columns(carrier=pl.when(ROW < 3).then(pl.lit("ZZ")).otherwise("carrier")),
        "unknown_category",
        "carrier",
        ["'ZZ' (3 rows)", "one of AA, B6, UA", "in row 0 (flight=100,"],
    ),
    "duplicate keys": (
        lambda f: pl.concat([f, f.head(4).with_columns(ticket=ROW.cast(pl.Int32) + 1000)]),
        "duplicate_primary_key",
        "carrier, flight, scheduled",
        ["4 values that occur more than once, in 8 rows", "rows 0, 24"],
    ),
    "repeated value": (
        lambda f: f.with_columns(ticket=pl.lit(7, dtype=pl.Int32)),
        "duplicate_value",
        "ticket",
        ["each ticket once", "ticket=7: rows 0, 1, 2"],
    ),
    "future event times": (
        lambda f: f.with_columns(pl.col("scheduled") + pl.duration(days=365 * 200)),
        "future_event",
        "scheduled",
        ["2212-11-15T08:00:00Z to 2212-11-15T08:23:00Z", "24 of 24 rows"],
    ),
    "times beyond any calendar": (
        lambda f: f.with_columns(scheduled=pl.lit(2**62).cast(pl.Datetime("us", "UTC"))),
        "future_event",
        "scheduled",
        ["+148108-07-06T14:00:27Z"],
    ),
    "another day's times": (
        lambda f: f.with_columns(scheduled=pl.col("scheduled") - pl.duration(days=1)),
        "event_outside_partition",
        "scheduled",
        ["outside the days of this partition", "from 2013-01-02T05:00:00Z to before 2013-01-03T05:00:00Z"],
    ),
    "nulls": (
        lambda f: f.with_columns(flight=pl.when(ROW >= 5).then("flight")),
        "null",
        "flight",
        ["5 null", "null in row 0 (carrier='AA'"],
    ),
    "NaN": (
        lambda f: f.with_columns(
            speed=pl.when(ROW == 9).then(float("nan")).otherwise("speed").cast(pl.Float32)
        ),
        "null",
        "speed",
        ["1 NaN", "nan in row 9"],
    ),
    "out of range": (
        lambda f: f.with_columns(distance=pl.when(ROW < 2).then(-999.0).otherwise("distance")),
        "out_of_range",
        "distance",
        ["-999", "at least -100 and at most 5000"],
    ),
    "wrong form": (
        lambda f: f.with_columns(tail=pl.lit("xN12")),
        "pattern",
        "tail",
        ["'xN12' (24 rows)", "matches N[0-9]+"],
    ),
    "another table's file": (
        lambda f: pl.DataFrame({"faa": ["EWR"], "lat": [40.7], "lon": [-74.2]}),
        "another_table",
        None,
        ["another table's file", "found faa, lat, lon"],
    ),
}


def said(finding: Finding) -> str:
    return "\n".join([finding.measured, finding.limit, *finding.examples, finding.explanation])


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_found_in_its_day_only_and_named(name: str) -> None:
    corrupt, rule, column, words = CORRUPTIONS[name]
    frames = days(3)
    frames["2013-01-02"] = corrupt(frames["2013-01-02"])
    found = check_partitions(frames, contract(), bounds=bounds(frames))
    assert found.keys() == frames.keys()
    assert found["2013-01-01"] == found["2013-01-03"] == []
    (finding,) = [one for one in found["2013-01-02"] if one.rule == rule and one.column == column]
    assert finding.blocks
    for word in words:
        assert word in said(finding)


def test_clean_days_have_no_findings_in_any_order_of_columns() -> None:
    frames = days(3)
    frames["2013-01-02"] = frames["2013-01-02"].select(sorted(frames["2013-01-02"].columns))
    assert check_partitions(frames, contract(), bounds=bounds(frames)) == {key: [] for key in frames}


def test_day_without_rows_breaks_no_rule_about_rows() -> None:
    frames = {"2013-01-01": day(date(2013, 1, 1)).head(0), "2013-01-02": day(date(2013, 1, 2))}
    assert check_partitions(frames, contract(), bounds=bounds(frames)) == {key: [] for key in frames}
    assert check_partitions({"2013-01-01": frames["2013-01-01"]}, contract()) == {"2013-01-01": []}


def test_same_key_on_two_days_is_no_repetition() -> None:
    frames = {"2013-01-01": day(date(2013, 1, 1)), "2013-01-02": day(date(2013, 1, 1))}
    assert check_partitions(frames, contract()) == {"2013-01-01": [], "2013-01-02": []}


def test_every_failing_row_counts_and_few_are_shown() -> None:
    frame = day(date(2013, 1, 1), rows=1000).with_columns(delay=pl.lit(-1e6))
    (finding,) = check_partitions({"all": frame}, contract())["all"]
    assert (finding.failing_rows, len(finding.examples)) == (1000, 5)


@pytest.mark.parametrize(
    ("column", "values", "failing"),
    [
        ({"dtype": "uint8", "ge": -1, "le": 1000}, [0, 255, None], 0),
        ({"dtype": "int8", "isin": [1, 300]}, [1, 2, None], 1),
        ({"dtype": "int64", "le": 2**70}, [2**62], 0),
        ({"dtype": "int64", "ge": 3.5}, [3, 4], 1),
        ({"dtype": "float32", "ge": 0.1, "le": 0.2}, [0.1, 0.2, 0.3], 1),
        ({"dtype": "float64", "le": 5}, [float("nan"), float("inf"), 5.0, None], 1),
        ({"dtype": "float64", "ge": 5}, [float("nan"), float("-inf"), 5.0, None], 1),
        ({"dtype": "bool", "isin": [True]}, [True, False, None], 1),
        ({"dtype": "string", "pattern": "[a-z]"}, ["a", "a\n", "", "ab", None], 3),
        ({"dtype": "string", "pattern": "(?i)a|bc"}, ["A", "BC", "b"], 1),
        ({"dtype": "string", "unique": True}, ["a", None, None, "b", "a"], 2),
        ({"dtype": "binary", "nullable": False}, [b"", None, b"\xff" * 5000], 1),
    ],
)
def test_rule_checks_exactly_the_values_it_is_about(
    column: dict[str, object], values: list[object], failing: int
) -> None:
    asked = Contract.model_validate({"columns": [{"name": "x", "nullable": True} | column]})
    frame = pl.DataFrame({"x": values}, schema={"x": POLARS_TYPES[str(column["dtype"])]})
    found = check_partitions({"all": frame}, asked)["all"]
    assert [finding.failing_rows for finding in found] == ([failing] if failing else [])


def test_long_values_are_cut_short() -> None:
    asked = Contract.model_validate({"columns": [{"name": "x", "dtype": "string", "isin": ["a"]}]})
    (finding,) = check_partitions({"all": pl.DataFrame({"x": ["y" * 10_000]})}, asked)["all"]
    assert len(said(finding)) < 1000


def test_rows_with_bytes_that_break_a_rule_are_named_without_them() -> None:
    columns = [{"name": "id", "dtype": "int64"}, {"name": "picture", "dtype": "binary"}]
    asked = Contract.model_validate({"columns": columns, "primary_key": ["id"]})
    frame = pl.DataFrame({"id": [1, 2, 2], "picture": [b"\x89" * 10_000, None, b"\xff"]})
    null, twice = check_partitions({"all": frame}, asked)["all"]
    assert null.examples == ("null in row 1 (id=2)",)
    assert twice.examples == ("id=2: rows 1, 2",)
    (wrong,) = check_partitions({"all": frame.with_columns(id=pl.col("picture"))}, asked)["all"]
    assert wrong.examples == ("10000 bytes", "null", "1 bytes")


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([[1]]),
        pl.Series([{"a": 1}]),
        pl.Series([None]),
        pl.Series([object()], dtype=pl.Object),
        pl.Series(["a"], dtype=pl.Categorical),
        pl.Series([b"a"]),
        pl.Series(["1.5"]).cast(pl.Decimal(10, 2)),
        pl.Series([1]).cast(pl.Duration),
        pl.Series([2**100], dtype=pl.Int128),
    ],
    ids=lambda series: str(series.dtype),
)
def test_any_type_can_be_refused(values: pl.Series) -> None:
    asked = Contract.model_validate({"columns": [{"name": "x", "dtype": "float64"}]})
    (finding,) = check_partitions({"all": pl.DataFrame({"x": values})}, asked)["all"]
    assert finding.rule == "wrong_type"


def test_environment_cannot_switch_the_values_off() -> None:
    from pandera.config import ValidationDepth, config_context

    frame = day(date(2013, 1, 1)).with_columns(carrier=pl.lit("ZZ"))
    with config_context(validation_enabled=False, validation_depth=ValidationDepth.SCHEMA_ONLY):
        found = check_partitions({"all": frame}, contract())
    assert [finding.rule for finding in found["all"]] == ["unknown_category"]


def test_future_is_counted_from_now_and_may_be_allowed() -> None:
    frame = {"all": day(date(2013, 1, 1))}
    before = datetime(2013, 1, 1, 7, 30, tzinfo=UTC)
    (finding,) = check_partitions(frame, contract(max_future_hours=0.5), now=before)["all"]
    assert (finding.rule, finding.failing_rows, finding.limit) == (
        "future_event",
        23,
        "no later than 2013-01-01T08:00:00Z",
    )
    assert check_partitions(frame, contract(max_future_hours=1), now=before) == {"all": []}
    assert check_partitions(frame, contract(max_future_hours=None), now=before) == {"all": []}


@pytest.mark.parametrize(
    ("moment", "slack", "inside"),
    [
        ("2013-03-10T04:59:59", 0, False),  # 9 March, 23:59:59 in New York
        ("2013-03-10T05:00:00", 0, True),
        ("2013-03-11T03:59:59", 0, True),  # the day has 23 hours
        ("2013-03-11T04:00:00", 0, False),
        ("2013-03-10T03:00:00", 2, True),
        ("2013-03-10T02:59:59", 2, False),
        ("2013-03-11T05:59:59", 2, True),
        ("2013-03-11T06:00:00", 2, False),
    ],
)
def test_day_begins_and_ends_at_midnight_of_the_tables_zone(moment: str, slack: float, inside: bool) -> None:
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    frames = {"2013-03-10": day(date(2013, 3, 10), rows=1).with_columns(scheduled=pl.lit(at))}
    asked = contract(event_slack_hours=slack)
    found = check_partitions(frames, asked, bounds=bounds(frames))["2013-03-10"]
    assert [finding.rule for finding in found] == ([] if inside else ["event_outside_partition"])


def test_event_dates_without_a_time_belong_to_their_day() -> None:
    columns = [{"name": "week", "dtype": "date"}]
    asked = contract(columns=columns, primary_key=["week"], event_time="week")
    monday, sunday, next_monday = date(2013, 3, 4), date(2013, 3, 10), date(2013, 3, 11)
    frame = pl.DataFrame({"week": [monday, sunday, next_monday]})
    found = check_partitions({"2013-03-04": frame}, asked, bounds={"2013-03-04": (monday, sunday)})
    (finding,) = found["2013-03-04"]
    assert (finding.failing_rows, finding.examples) == (1, ("2013-03-11 in row 2",))


cells = st.fixed_dictionaries(
    {
        "carrier": st.sampled_from(["AA", "B6", "ZZ", None]),
        "flight": st.sampled_from([1, 2, -1, None]),
        "speed": st.sampled_from([1.0, float("nan"), None]),
        "ticket": st.sampled_from([1, 2, 3]),
    }
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.lists(cells, max_size=6), min_size=1))
def test_checking_together_finds_what_checking_alone_finds(rows: dict[str, list[dict[str, object]]]) -> None:
    columns = [
        {"name": "carrier", "dtype": "string", "isin": ["AA", "B6"], "nullable": True},
        {"name": "flight", "dtype": "int64", "ge": 1},
        {"name": "speed", "dtype": "float64"},
        {"name": "ticket", "dtype": "int32", "unique": True},
    ]
    asked = contract(columns=columns, primary_key=["flight", "speed"], event_time=None)
    types = {"carrier": pl.String, "flight": pl.Int64, "speed": pl.Float64, "ticket": pl.Int32}
    frames = {key: pl.DataFrame(some, schema=types) for key, some in rows.items()}
    together = check_partitions(frames, asked)
    assert together == {key: check_partitions({key: frame}, asked)[key] for key, frame in frames.items()}
    for key, frame in frames.items():
        counts = {
            finding.rule: finding.failing_rows for finding in together[key] if finding.column != "speed"
        }
        expected = {
            "unknown_category": (frame["carrier"] == "ZZ").sum(),
            "null": frame["flight"].null_count(),
            "out_of_range": (frame["flight"] == -1).sum(),
            "duplicate_value": frame["ticket"].is_duplicated().sum(),
        }
        counts.pop("duplicate_primary_key", None)
        assert counts == {rule: count for rule, count in expected.items() if count}


def test_a_column_may_be_called_check_output() -> None:
    """pandera adds a column of that name: bad rows of such a table ended the run in place of a rejection."""
    columns = [
        {"name": "check_output", "dtype": "int64", "ge": 0, "unique": True},
        {"name": "x", "dtype": "binary", "max_length": 1},
    ]
    asked = Contract.model_validate({"primary_key": ["check_output"], "columns": columns})
    rows = pl.DataFrame({"check_output": [1, 1, -1], "x": [b"", b"", b"long"]})
    found = check_partitions({"a": rows, "b": rows.head(1)}, asked)
    assert [(one.rule, one.column, one.failing_rows) for one in found["a"]] == [
        ("out_of_range", "check_output", 1),
        ("length", "x", 1),
        ("duplicate_primary_key", "check_output", 2),
        ("duplicate_value", "check_output", 2),
    ]
    assert found["b"] == []


@pytest.mark.parametrize(("value", "findings", "most"), [(1.0, 0, 2.0), (-1.0, 1000, 16.0)])
def test_a_table_of_many_columns_is_checked_in_seconds(value: float, findings: int, most: float) -> None:
    """It took 4 CPU seconds for 1,000 columns, and 27 if each had a bad value; twice the columns took four times it."""
    names = [f"c{number}" for number in range(1000)]
    columns = [
        {"name": "id", "dtype": "int64"},
        *({"name": one, "dtype": "float64", "ge": 0} for one in names),
    ]
    asked = Contract.model_validate({"primary_key": ["id"], "columns": columns})
    rows = pl.DataFrame({"id": [1], **{name: [value] for name in names}})
    frames: dict[str, pl.DataFrame] = dict.fromkeys("abc", rows)
    began = time.process_time()
    found = check_partitions(frames, asked)
    assert time.process_time() - began < most, "0.1 and 6 on an idle machine"
    assert [len(some) for some in found.values()] == [findings] * 3


def test_loading_validation_loads_nothing_heavy() -> None:
    names = ["check", "contract", "volume", "profile", "verdict"]
    program = "import sys\n" + "".join(f"import ml_assets.data.validation.{name}\n" for name in names)
    program += "print([name for name in ('pandera', 'pandas', 'torch', 'mlflow') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
