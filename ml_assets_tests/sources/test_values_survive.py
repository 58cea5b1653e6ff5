"""Law: each value of each type is the same in the lake as at the source, bit for bit, for each kind of source."""

import io
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ml_assets.data.sources.file_source import ValueUnreadable
from ml_assets.data.sources.kinds import AnySource, open_source
from ml_assets.data.sources.protocol import SourceTable
from ml_assets.data.tables.cadence import UNPARTITIONED, Cadence
from ml_assets.data.tables.parquet import canonical, encode
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.volume import VolumeRule
from ml_assets_tests.sources.any_values import (
    LISTS,
    PLAIN,
    Row,
    as_csv,
    as_json,
    contract_of,
    edges,
    exact,
    frame_of,
    rows_of,
)
from ml_assets_tests.sources.text_files import read
from ml_assets_tests.tables.orders_table import FIRST, ORDERS, OrdersTable
from resources.platform import Platform
from resources.settings import Settings

EVERY = (*PLAIN, *LISTS)
NOT_IN_DELTA = {"duration", "categorical", "list[duration]", "array[float32, 2]"} | {
    f"uint{n}" for n in (8, 16, 32, 64)
}
TYPES: dict[str, tuple[str, ...]] = {
    "python": EVERY,
    "csv": tuple(PLAIN),
    "jsonl": EVERY,
    "parquet": EVERY,
    "delta": tuple(dtype for dtype in EVERY if dtype not in NOT_IN_DELTA),
    "table": EVERY,
}
"""Kind of source → the types that it has."""
_MICROSECOND = timedelta(microseconds=1)
PLANTED: list[pl.DataFrame] = []


def planted() -> pl.DataFrame:
    """Return the frame that the test planted; the function of the source of kind python."""
    return PLANTED[-1]


def _publish(orders: OrdersTable, frame: pl.DataFrame, types: Sequence[str]) -> pl.DataFrame:
    """Publish a table, and return its rows as the lake has them."""
    volume = VolumeRule(kind="none", allow_empty=True)
    contract, cadence = contract_of(types), Cadence("none", FIRST)
    assert not orders.publish(
        {UNPARTITIONED: frame}, contract=contract, cadence=cadence, volume=volume
    ).rejected
    return TableReader.at(orders.store).scan(ORDERS, [UNPARTITIONED]).collect()


def _source(kind: str, folder: Path, rows: Sequence[Row], types: Sequence[str]) -> dict[str, Any]:
    """Put rows into a new source of this kind, and return its section."""
    folder.mkdir(parents=True, exist_ok=True)
    frame, file = frame_of(rows, types), folder / f"rows.{kind}"
    if kind == "python":
        PLANTED.append(frame)
        return {"function": f"{__name__}.planted"}
    if kind == "table":
        _publish(OrdersTable(folder), frame, types)
        return {"kind": "table", "table": ORDERS, "lake": str(folder / "lake")}
    if kind == "delta":
        frame.write_delta(
            str(folder / "delta"), mode="overwrite", delta_write_options={"schema_mode": "overwrite"}
        )
        return {"kind": "delta", "path": str(folder / "delta")}
    if kind == "csv":
        file.write_bytes(as_csv(rows, types).encode())
    elif kind == "jsonl":
        file.write_text("\n".join(as_json(rows, types)) + "\n")
    else:
        frame.write_parquet(file)
    return {"kind": "file", "path": str(file)}


def _read(kind: str, folder: Path, rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows as the reader of a source of this kind returns them."""
    section = TypeAdapter[Any](AnySource).validate_python(_source(kind, folder, rows, TYPES[kind]))
    table = SourceTable(name="datasets/orders_here", contract=contract_of(TYPES[kind]))
    platform = Platform(Settings.model_validate({"home": folder / "home"}))
    return open_source(section, table, platform).read(None).frame


def _require_each_value(kind: str, folder: Path, rows: Sequence[Row]) -> None:
    found = _read(kind, folder, rows)
    assert found.schema == frame_of([], TYPES[kind]).schema
    files = [pl.read_parquet(io.BytesIO(one)) for one in encode(canonical(found, ["id"]))]
    assert exact(pl.concat(files)) == exact(frame_of(rows, TYPES[kind]))


WITHOUT_A_LAKE = [kind for kind in TYPES if kind != "table"]
"""Kinds of which a source is made in milliseconds."""


@pytest.mark.parametrize("kind", WITHOUT_A_LAKE)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_value_survives_from_source_to_lake(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _require_each_value(kind, tmp_path_factory.mktemp(kind), data.draw(rows_of(TYPES[kind])))


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", WITHOUT_A_LAKE)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_two_thousand_tables_survive_from_source_to_lake(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _require_each_value(kind, tmp_path_factory.mktemp(kind), data.draw(rows_of(TYPES[kind])))


@pytest.mark.parametrize("kind", TYPES)
def test_published_rows_are_those_of_each_source(kind: str, tmp_path: Path) -> None:
    rows = edges(TYPES[kind])
    found = _read(kind, tmp_path / "source", rows)
    (tmp_path / "here").mkdir()
    landed = _publish(OrdersTable(tmp_path / "here"), found, TYPES[kind])
    assert exact(landed) == exact(frame_of(rows, TYPES[kind]))


SIGNS = st.sampled_from(["", "-", "+"])
DIGITS = st.text("0123456789", max_size=25)
NUMBERS = st.builds(
    lambda sign, whole, point, rest, power: f"{sign}{whole}{point}{rest}{power}",
    SIGNS,
    DIGITS,
    st.sampled_from(["", ".", "_", ",", " "]),
    DIGITS,
    st.just("") | st.integers(-330, 330).map(lambda power: f"e{power}"),
)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float64", "float32", "decimal[6, 2]", "duration"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=NUMBERS | st.text("0123456789.e-+_ １", max_size=6))
def test_a_number_of_a_text_file_is_that_number_or_refused(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, text: str
) -> None:
    try:
        (value,) = read(tmp_path_factory.mktemp("n"), f'id,x\n1,"{text}"\n', "csv", {"x": dtype})[
            "x"
        ].to_list()
    except ValueUnreadable:
        return
    if value is None:
        assert not text.strip()
        return
    assert "_" not in text
    written = Decimal(text.strip())
    if dtype == "duration":
        assert written * 10**6 == value // _MICROSECOND
    elif dtype.startswith("float"):
        digits = max(1, len("".join(map(str, written.as_tuple().digits)).strip("0")))
        shown = repr(value) if dtype == "float64" else str(np.float32(value))
        assert written in (Decimal(shown), Decimal(f"{Decimal(value):.{digits - 1}e}"))
    else:
        assert written == value
