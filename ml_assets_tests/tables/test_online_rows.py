"""Rows of a feature table survive the online store bit for bit, and only newest, unambiguous rows are stored."""

import struct
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.tables.online import OnlineEntityRefused, OnlineRowsDiffer, OnlineTable
from ml_assets.data.validation.column_types import POLARS_TYPES

AT = datetime(2024, 3, 1, 12, tzinfo=UTC)
DECLARED = OnlineTable(
    table="features/visits",
    entity=("shop", "till"),
    event_at="predicted_at",
    ttl=None,
    columns=(
        ("shop", "string"),
        ("till", "int32"),
        ("predicted_at", "datetime"),
        ("day", "date"),
        ("is_open", "bool"),
        ("small", "float32"),
        ("large", "float64"),
        ("count", "uint64"),
        ("picture", "binary"),
    ),
)
SCHEMA = {name: POLARS_TYPES[dtype] for name, dtype in DECLARED.columns}

values = st.fixed_dictionaries(
    {
        "shop": st.text(max_size=5),
        "till": st.integers(-(2**31), 2**31 - 1),
        "predicted_at": st.integers(-(10**15), 7 * 10**15).map(lambda us: AT + timedelta(microseconds=us)),
        "day": st.none() | st.dates(),
        "is_open": st.none() | st.booleans(),
        "small": st.none() | st.floats(width=32),
        "large": st.none() | st.floats(),
        "count": st.none() | st.integers(0, 2**64 - 1),
        "picture": st.none() | st.binary(max_size=5),
    }
)


def bits(value: Any) -> Any:
    """Return the bits of a float, in which -0.0 differs from 0.0; any NaN is the same."""
    if not isinstance(value, float):
        return value
    return "NaN" if value != value else struct.pack("<d", value)


@given(row=values)
def test_a_row_survives_the_store_bit_for_bit(row: dict[str, Any]) -> None:
    frame = pl.DataFrame([row], schema=SCHEMA)
    (stored,) = DECLARED.rows_of(frame, AT)
    read = DECLARED.frame_of([stored])
    assert read.schema == frame.schema
    assert [[bits(value) for value in one] for one in read.iter_rows()] == [
        [bits(value) for value in one] for one in frame.iter_rows()
    ]
    assert stored.entity == DECLARED.entity_of({"shop": row["shop"], "till": row["till"]})
    assert stored.event_us == frame["predicted_at"].to_physical()[0]


@pytest.mark.parametrize("till", ["7", 7, 7.0])
def test_a_typed_entity_is_that_of_the_row(till: object) -> None:
    assert DECLARED.entity_of({"shop": "ü 7", "till": till}) == '["ü 7",7]'


@pytest.mark.parametrize(
    ("entity", "said"),
    [
        ({"shop": "a"}, "till not given: an entity of features/visits is named by shop, till"),
        ({"shop": "a", "till": None}, "till not given"),
        ({"shop": "a", "till": "x"}, "till is 'x', which is not a int32"),
        ({"shop": "a", "till": 7.5}, r"till is 7\.5"),
        ({"shop": "a", "till": "1_000"}, "till is '1_000', which is not a int32"),
        ({"shop": "a", "till": " 7"}, "till is ' 7', which is not a int32"),
        ({"shop": "a", "till": "７"}, "till is '７', which is not a int32"),
        ({"shop": "a", "till": "+7"}, "till is '.7', which is not a int32"),
        ({"shop": "a", "till": True}, "till is True"),
        ({"shop": "a", "till": "9" * 20}, "till is '99999999999999999999', which is not a int32"),
        ({"shop": "a", "till": 1e30}, "till is 1e.30, which is not a int32"),
        ({"shop": "a\ud800", "till": 7}, "shop is .* which is not a string"),
        ({"shop": 7, "till": 7}, "shop is 7, which is not a string"),
    ],
)
def test_an_entity_that_is_not_as_declared_is_refused(entity: dict[str, object], said: str) -> None:
    with pytest.raises(OnlineEntityRefused, match=said):
        DECLARED.entity_of(entity)


def test_a_typed_pair_names_the_nearest_column() -> None:
    assert DECLARED.entity_typed(["shop=a=b", "till=7"]) == {"shop": "a=b", "till": "7"}
    with pytest.raises(OnlineEntityRefused, match="did you mean 'shop'"):
        DECLARED.entity_typed(["shob=a"])
    with pytest.raises(OnlineEntityRefused, match="write shop=… till=…"):
        DECLARED.entity_typed(["a"])


def test_rows_of_another_contract_are_refused() -> None:
    row = {"shop": "a", "till": 1, "predicted_at": AT}
    (stored,) = DECLARED.rows_of(pl.DataFrame([row], schema=SCHEMA), AT)
    wider = OnlineTable(
        table=DECLARED.table,
        entity=DECLARED.entity,
        event_at="predicted_at",
        ttl=timedelta(days=1),
        columns=(*DECLARED.columns, ("new", "int8")),
    )
    with pytest.raises(OnlineRowsDiffer, match="materialize features/visits/online again"):
        wider.values_in(stored)


def test_a_date_names_an_entity_by_its_iso_text(tmp_path: Path) -> None:
    by_day = OnlineTable(
        table="features/days",
        entity=("day", "is_open"),
        event_at="predicted_at",
        ttl=None,
        columns=(("day", "date"), ("is_open", "bool"), ("predicted_at", "datetime")),
    )
    row = {"day": date(2024, 3, 1), "is_open": True, "predicted_at": AT}
    schema = {name: POLARS_TYPES[dtype] for name, dtype in by_day.columns}
    (stored,) = by_day.rows_of(pl.DataFrame([row], schema=schema), AT)
    assert (
        stored.entity == by_day.entity_of({"day": "2024-03-01", "is_open": "true"}) == '["2024-03-01",true]'
    )
