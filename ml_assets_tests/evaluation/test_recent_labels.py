"""Last known labels: those of the entity and season, known when a row was predicted, and none that came later."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.evaluation.comparison import recent_labels as module
from ml_assets.model.evaluation.comparison.recent_labels import (
    LabelColumns,
    LabelledPart,
    Recent,
    moments_of,
    recent_labels,
)

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
WANTED = (Recent(1), Recent(3), Recent(2, ("weekday",)), Recent(2, ("weekday", "hour")))
TICK = timedelta(microseconds=1)


def columns(*entity: str, weight: str | None = None) -> LabelColumns:
    return LabelColumns(
        entity=entity,
        label="label",
        label_known_at="known_at",
        predicted_at="predicted_at",
        partition_date="day",
        weight=weight,
        time_zone="UTC",
    )


def table(rows: list[tuple[int, int, str | None, int, int, float | None]]) -> pl.DataFrame:
    """Rows of (day, hour, shop, hours until the label is known, weight, label), by day."""
    moments = [BEGIN + timedelta(days=day, hours=hour) for day, hour, *_ in rows]
    return pl.DataFrame(
        {
            "day": [(BEGIN + timedelta(days=row[0])).date() for row in rows],
            "shop": pl.Series([row[2] for row in rows], dtype=pl.String),
            "predicted_at": pl.Series(moments, dtype=pl.Datetime("us", "UTC")),
            "known_at": pl.Series(
                [at + timedelta(hours=row[3]) for at, row in zip(moments, rows, strict=True)],
                dtype=pl.Datetime("us", "UTC"),
            ),
            "weight": pl.Series([row[4] for row in rows], dtype=pl.Int64),
            "label": pl.Series([row[5] for row in rows], dtype=pl.Float64),
        }
    ).sort("day", maintain_order=True)


def answers(
    rows: pl.DataFrame, read: LabelColumns, first: int = 0, wanted: tuple[Recent, ...] = WANTED
) -> dict[Recent, list[list[tuple[float, float]]]]:
    """Return for each row from day `first` on its (label, weight) pairs, newest first, without those of weight 0."""
    found: dict[Recent, list[list[tuple[float, float]]]] = {one: [] for one in wanted}
    for part in recent_labels(parts(rows, first), read, wanted):
        for one, labels in part.items():
            for values, weights in zip(labels.labels.tolist(), labels.weights.tolist(), strict=True):
                found[one].append([pair for pair in zip(values, weights, strict=True) if pair[1] > 0])
    return found


def parts(rows: pl.DataFrame, first: int) -> list[LabelledPart]:
    """Cut rows into days, of which those from day `first` on are asked."""
    begin = (BEGIN + timedelta(days=first)).date()
    moments = moments_of(rows.filter(pl.col("day") >= begin), "predicted_at")
    earliest = int(moments.min()) if len(moments) else 0
    return [
        LabelledPart(
            rows=day,
            asked=np.arange(day.height) if day["day"][0] >= begin else np.arange(0),
            asked_from=earliest,
        )
        for day in rows.partition_by("day")
    ]


def one_by_one(
    rows: pl.DataFrame, read: LabelColumns, first: int
) -> dict[Recent, list[list[tuple[float, float]]]]:
    """The definition, row by row."""
    every = list(enumerate(rows.iter_rows(named=True)))
    begin = (BEGIN + timedelta(days=first)).date()
    found: dict[Recent, list[list[tuple[float, float]]]] = {one: [] for one in WANTED}
    for _, row in every:
        if row["day"] < begin:
            continue
        for one in WANTED:
            alike = [
                (max(other["known_at"], other["predicted_at"] + TICK), other["predicted_at"], place, other)
                for place, other in every
                if other["day"] <= row["day"]
                and all(other[name] == row[name] for name in read.entity)
                and ("weekday" not in one.season or other["day"].weekday() == row["day"].weekday())
                and ("hour" not in one.season or other["predicted_at"].hour == row["predicted_at"].hour)
                and other["label"] is not None
                and (read.weight is None or other["weight"] > 0)
            ]
            known = sorted(other[:3] for other in alike if other[0] <= row["predicted_at"])
            last = [every[place][1] for *_, place in known[::-1][: one.length]]
            weights = [1.0 if read.weight is None else float(other["weight"]) for other in last]
            found[one].append([(other["label"], w) for other, w in zip(last, weights, strict=True)])
    return found


ROWS = st.lists(
    st.tuples(
        st.integers(0, 16),
        st.integers(0, 2),
        st.sampled_from(["a", "b", None]),
        st.sampled_from([-30, 0, 1, 24, 60, 400]),
        st.integers(0, 2),
        st.sampled_from([0.0, 1.0, 2.5, -3.0, None]),
    ),
    min_size=1,
    max_size=30,
)


@given(rows=ROWS, first=st.integers(0, 12), by_shop=st.booleans(), weight=st.sampled_from([None, "weight"]))
def test_labels_are_those_of_the_definition(
    rows: list[tuple[int, int, str | None, int, int, float | None]],
    first: int,
    by_shop: bool,
    weight: str | None,
) -> None:
    """Also if old labels are dropped early, and for labels that become known in any order."""
    frame, read = table(rows), columns(*(["shop"] if by_shop else []), weight=weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_WAITING", -1)
        dropped = answers(frame, read, first)
    assert dropped == answers(frame, read, first) == one_by_one(frame, read, first)


@given(rows=ROWS, cut=st.integers(0, 17 * 24), other=st.lists(st.floats(-9, 9), min_size=30, max_size=30))
def test_labels_known_later_change_no_bit(
    rows: list[tuple[int, int, str | None, int, int, float | None]], cut: int, other: list[float]
) -> None:
    """All labels that become known after a moment are replaced: rows predicted by then get the same answers."""
    frame, moment = table(rows), BEGIN + timedelta(hours=cut)
    later = pl.when(pl.col("known_at") > moment).then(pl.Series(other[: frame.height])).otherwise("label")
    before = answers(frame, columns("shop"))
    after = answers(frame.with_columns(later.alias("label")), columns("shop"))
    by_then = np.flatnonzero((frame["predicted_at"] <= moment).to_numpy())
    assert all(after[one][place] == before[one][place] for one in WANTED for place in by_then)


@pytest.mark.parametrize(("late", "expected"), [(0, [(7.0, 1.0)]), (1, [(5.0, 1.0)])])
def test_a_label_known_a_microsecond_too_late_is_not_used(
    late: int, expected: list[tuple[float, float]]
) -> None:
    frame = table([(0, 0, "a", 1, 1, 5.0), (1, 0, "a", 24, 1, 7.0), (2, 0, "a", 24, 1, 9.0)]).with_columns(
        pl.col("known_at") + timedelta(microseconds=late)
    )
    assert answers(frame, columns("shop"), 2)[Recent(1)] == [expected]


def test_a_row_does_not_know_its_own_label() -> None:
    """A table may say that labels are known at once."""
    frame = table([(0, 0, "a", 0, 1, 5.0), (1, 0, "a", -48, 1, 7.0), (1, 0, "a", 0, 1, 9.0)])
    assert answers(frame, columns("shop"), 1)[Recent(3)] == [[(5.0, 1.0)], [(5.0, 1.0)]]
