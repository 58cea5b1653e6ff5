"""Messages as rows: what becomes a row bit for bit, and what does not and why."""

import base64
import json
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.sources.json_messages import BadMessage, MessageDecoder
from ml_assets.data.validation.contract import Contract

GOOD: dict[str, Any] = {"key": 1, "at": "2024-03-08T12:00:00Z"}


def _contract(**columns: str) -> Contract:
    """Return a contract of a key, an event time and nullable columns of these types."""
    named = [{"name": name, "dtype": dtype, "nullable": True} for name, dtype in columns.items()]
    keys = [{"name": "key", "dtype": "int64"}, {"name": "at", "dtype": "datetime"}]
    return Contract.model_validate({"primary_key": ["key"], "event_time": "at", "columns": [*keys, *named]})


def _decoded(dtype: str, value: Any) -> Any:
    """Return the value of a column of this type after decoding and storing it."""
    decoder = MessageDecoder(_contract(x=dtype), "at")
    row = decoder.decode(json.dumps(GOOD | {"x": value}).encode())
    frame = decoder.frame([row])
    assert str(frame.schema["x"]) == str(pl.DataFrame(schema=decoder.frame([]).schema).schema["x"])
    return frame["x"].to_list()[0]


@pytest.mark.parametrize(
    ("dtype", "value", "stored"),
    [
        ("int8", -128, -128),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("float64", 3, 3.0),
        ("float64", 1e-300, 1e-300),
        ("bool", False, False),
        ("string", "Größe 🍵", "Größe 🍵"),
        ("categorical", "tea", "tea"),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("datetime", "2024-03-08T12:00:00.000001+05:30", datetime(2024, 3, 8, 6, 30, 0, 1, UTC)),
        ("datetime", "2024-03-08T12:00:00.123000000Z", datetime(2024, 3, 8, 12, 0, 0, 123_000, UTC)),
        ("duration", 1.5, timedelta(seconds=1.5)),
        ("binary", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ("decimal[6, 2]", "1234.50", Decimal("1234.50")),
        ("decimal[6, 2]", 12, Decimal("12.00")),
        ("decimal[38, 10]", "1234567890123456789012345678.0123456789", None),
        ("list[int16]", [1, None, 2], [1, None, 2]),
        ("array[float32, 2]", [0.5, 1], [0.5, 1.0]),
        ("list[datetime]", ["2024-03-08T00:00:00Z"], [datetime(2024, 3, 8, tzinfo=UTC)]),
        ("int64", None, None),
    ],
)
def test_values_keep_their_meaning(dtype: str, value: Any, stored: Any) -> None:
    assert _decoded(dtype, value) == (Decimal(value) if stored is None and value else stored)


@pytest.mark.parametrize(
    ("dtype", "value", "said"),
    [
        ("int16", 40_000, "'x' is outside the range of int16"),
        ("int16", 1.0, "'x' is a fraction, not int16"),
        ("int16", True, "'x' is a boolean, not int16"),
        ("int16", "1", "'x' is a text, not int16"),
        ("float64", 2**53 + 1, "does not hold exactly"),
        ("float32", 1e39, "outside the range of float32"),
        ("bool", 1, "'x' is a whole number, not bool"),
        ("string", ["tea"], "'x' is a list, not string"),
        ("string", {"name": "tea"}, "'x' is an object, not string"),
        ("string", "\ud800", "half of a surrogate pair"),
        ("date", "20240308", "not a date such as 2024-03-08"),
        ("date", "2023-02-29", "not a date such as 2024-03-08"),
        ("datetime", "2024-03-08T12:00:00", "with its offset from UTC"),
        ("datetime", 1_709_900_000, "'x' is a whole number, not datetime"),
        ("datetime", "2024-03-08T12:00:00.0000001Z", "more precise than microseconds"),
        ("binary", "äöü", "not base64"),
        ("decimal[6, 2]", "1.505", "does not fit decimal[6, 2]"),
        ("decimal[6, 2]", "12345", "does not fit decimal[6, 2]"),
        ("decimal[6, 2]", 1.5, "write a decimal as text"),
        ("decimal[6, 2]", "NaN", "not a decimal"),
        ("array[float32, 2]", [1.0], "has 1 items, not 2"),
        ("list[int16]", [1, "2"], "'x' has an item that is a text, not int16"),
    ],
)
def test_values_of_another_type_are_refused(dtype: str, value: Any, said: str) -> None:
    with pytest.raises(BadMessage) as refused:
        _decoded(dtype, value)
    assert said in str(refused.value)
    assert refused.value.kind == "wrong type"


def test_no_reason_repeats_a_value() -> None:
    for dtype in ("int64", "bool", "date", "datetime", "binary", "decimal[6, 2]", "list[int8]"):
        with pytest.raises(BadMessage) as refused:
            _decoded(dtype, ["hunter-2"] if dtype.startswith("list") else "hunter-2")
        assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        (None, "not JSON", "the message has no value"),
        (b"", "not JSON", "not valid JSON"),
        (b"\xff\xfe", "not JSON", "not valid JSON in UTF-8"),
        (b'{"key": 1', "not JSON", "not valid JSON"),
        (b'{"key": NaN}', "not JSON", "not valid JSON"),
        (b"[" * 100_000, "not JSON", "not valid JSON"),
        (b"9" * 5_000, "not JSON", "not valid JSON"),
        (b"[1]", "not JSON", "the message is a list, not an object"),
        (b"null", "not JSON", "the message is null, not an object"),
        (b'{"at": "2024-03-08T12:00:00Z"}', "missing column", "column 'key' is missing"),
        (b'{"key": 1}', "no event time", "column 'at' is missing"),
        (b'{"key": 1, "at": null}', "no event time", "'at' is null"),
        (b'{"key": null, "at": "2024-03-08T12:00:00Z"}', "null", "'key' is null"),
        (b'{"key": 1, "at": "soon"}', "wrong type", "'at' is not a moment"),
        (b'{"key": 1, "at": "0001-01-01T00:00:00Z"}', "no event time", "at an end of the calendar"),
        (b'{"key": 1, "at": "9999-12-31T23:59:59Z"}', "no event time", "at an end of the calendar"),
    ],
)
def test_messages_that_are_no_rows_have_a_reason(message: bytes | None, kind: str, said: str) -> None:
    with pytest.raises(BadMessage, match=said) as refused:
        MessageDecoder(_contract(), "at").decode(message)
    assert refused.value.kind == kind


def test_fields_without_a_column_are_ignored() -> None:
    decoder = MessageDecoder(_contract(), "at")
    row = decoder.decode(json.dumps(GOOD | {"later": {"deep": []}}).encode())
    assert decoder.frame([row]).columns == ["key", "at"]


def test_a_new_nullable_column_is_null_in_messages_that_landed_before_it() -> None:
    contract, message = _contract(later="string"), json.dumps(GOOD).encode()
    with pytest.raises(BadMessage, match="column 'later' is missing"):
        MessageDecoder(contract, "at").decode(message)
    assert MessageDecoder(contract, "at", absent_is_null=True).decode(message)[-1] is None


def test_the_event_time_of_a_date_is_its_midnight_in_the_zone() -> None:
    contract = Contract.model_validate(
        {
            "primary_key": ["day"],
            "event_time": "day",
            "event_time_zone": "America/New_York",
            "columns": [{"name": "day", "dtype": "date"}],
        }
    )
    decoder = MessageDecoder(contract, "day")
    moment = decoder.event_time(decoder.decode(b'{"day": "2024-03-08"}'))
    assert moment == datetime(2024, 3, 8, 5, tzinfo=UTC).timestamp() * 1e6


@given(st.binary(max_size=40) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists))
def test_any_message_is_a_row_or_has_a_reason(content: Any) -> None:
    message = content if isinstance(content, bytes) else json.dumps(GOOD | {"x": content}).encode()
    for dtype in ("int8", "float32", "string", "datetime", "decimal[6, 2]", "list[date]"):
        decoder = MessageDecoder(_contract(x=dtype), "at")
        with suppress(BadMessage):
            assert decoder.frame([decoder.decode(message)]).height == 1
