"""Labels of answered rows in a feature table: which row meets which, and which never count."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.contract import Contract
from ml_assets.use.live.canary_record import FoundLabels, WaitingRow, labelled_of
from ml_assets.use.live.logged_rows import key_text
from ml_assets_tests.tables.orders_table import FIRST, ORDERS, OrdersTable

DAY = FIRST.isoformat()
CONTRACT = Contract.model_validate(
    {
        "primary_key": ["name", "day"],
        "event_time": "ordered_at",
        "columns": [
            {"name": "name", "dtype": "string"},
            {"name": "day", "dtype": "date"},
            {"name": "ordered_at", "dtype": "datetime"},
            {"name": "made", "dtype": "float64"},
            {"name": "weight", "dtype": "float64", "nullable": True},
        ],
    }
)


def found_in(
    folder: Path, names: Sequence[str], asked: Sequence[str], weights: Sequence[float | None] | None = None
) -> FoundLabels:
    """Return the labels of rows that clients named `asked`, in a table whose rows are `names`."""
    orders = OrdersTable(folder)
    frame = pl.DataFrame(
        {
            "name": names,
            "day": [date.fromisoformat(DAY)] * len(names),
            "ordered_at": [datetime.fromisoformat(DAY).replace(tzinfo=UTC)] * len(names),
            "made": [float(number) for number in range(len(names))],
            "weight": weights or [1.0] * len(names),
        },
        schema_overrides={"ordered_at": pl.Datetime("us", "UTC"), "weight": pl.Float64},
    )
    assert not orders.publish({DAY: frame}, contract=CONTRACT).rejected
    features = SimpleNamespace(
        table=ORDERS,
        primary_key=("name", "day"),
        label="made",
        weight="weight",
        partition_date="day",
    )
    spec: Any = SimpleNamespace(features=features)
    waiting = [
        WaitingRow(
            is_canary=False,
            at=datetime(2026, 11, 23, tzinfo=UTC),
            key=(key_text(one), key_text(f"{DAY}T00:00:00")),
            prediction=(0.5,),
        )
        for one in asked
    ]
    return labelled_of(waiting, spec, TableReader.at(orders.store), ())


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
# Texts that are one moment, among others; Parquet holds no surrogates.
TEXTS = st.one_of(
    st.integers(0, 48)
    .map(lambda hours: MOMENT + timedelta(hours=hours))
    .flatmap(
        lambda at: st.sampled_from(
            [at.isoformat(), f"{at:%Y%m%d-%H}", f"{at:%Y-%m-%d}", f"{at:%Y-%m-%dT%H}Z"]
        )
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


@settings(max_examples=10, deadline=None)
@given(st.lists(TEXTS, min_size=2, max_size=8, unique=True))
def test_two_different_texts_never_share_a_label(names: list[str]) -> None:
    with TemporaryDirectory() as folder:
        found = found_in(Path(folder), names, [*names, "of no row"])
    assert found.rows is not None
    assert found.rows.label.tolist() == [float(number) for number in range(len(names))]
    assert [one.key[0] for one in found.waiting] == ["of no row"]


def test_order_numbers_that_look_like_times_keep_their_labels(tmp_path: Path) -> None:
    names = ["20261123-12", "20261123T12", "2026-11-23T12:00:00", "2026-11-23", "2026-11-23T00:00:00"]
    found = found_in(tmp_path, names, list(reversed(names)))
    assert found.rows is not None
    assert found.rows.label.tolist() == [4.0, 3.0, 2.0, 1.0, 0.0]


def test_rows_without_a_weight_above_0_are_left_out_by_reason(tmp_path: Path) -> None:
    names = list("abcdef")
    found = found_in(tmp_path, names, names, [1.0, float("nan"), float("inf"), 0.0, None, 2.0])
    assert found.rows is not None
    assert found.rows.weight is not None
    assert np.array_equal(found.rows.weight, [1.0, 2.0])
    assert found.left_out == {"have a weight that is no finite number": 2, "have no weight above 0": 2}
    assert found.waiting == ()
