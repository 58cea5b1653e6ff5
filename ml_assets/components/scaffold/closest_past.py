"""Choice of the earlier label that is closest to the label: the network learns the difference from it.

Where a label rises or falls over the years, the difference goes on as it was, and the label itself does not.
"""

from collections.abc import Mapping, Sequence
from datetime import date

import polars as pl

from ml_assets.components.scaffold.units import PartitionUnit

LEAST_ROWS = 20
"""Partitions with both values, from which a season's value can be closer than the last one."""
_START, _LABEL, _LAST = "__start", "__label", "__last"


def closest_past(
    frame: pl.DataFrame,
    label: str,
    *,
    starts: pl.Series,
    series: Sequence[str],
    unit: PartitionUnit,
    recent: Sequence[int],
    season: Sequence[int],
    before: date,
) -> str:
    """Return the feature that holds it: `sold_last`, `sold_7d`, or `sold_season` for the mean over `season`.

    `frame` [rows] has the label as a number, `starts` [rows] is the partition of each row, `series` are the columns
    that tell one series from another. Only rows before `before`, the begin of the validation split, decide, by the mean
    of the squared difference of the means of partitions. `recent` and `season` are distances in partitions.
    """
    keys = [*series, _START]
    means = (
        frame.with_columns(starts.alias(_START))
        .filter(pl.col(_START) < before)
        .group_by(keys, maintain_order=True)
        .agg(pl.col(label).cast(pl.Float64).mean().alias(_LABEL))
    )
    found = means
    for lag in sorted({*recent, *season}):
        later = pl.col(_START).dt.offset_by(f"{lag}{unit.suffix}")
        shifted = means.select(*series, later, pl.col(_LABEL).alias(str(lag)))
        found = found.join(shifted, on=keys, how="left", maintain_order="left")
    last = pl.coalesce(map(str, recent))
    seasonal = {f"{label}_{lag}{unit.suffix}": pl.col(str(lag)) for lag in season}
    if len(season) > 1:
        seasonal[f"{label}_season"] = pl.mean_horizontal(map(str, season))
    ratios = _ratios(found.with_columns(last.alias(_LAST)), seasonal)
    best = min(ratios, key=lambda name: ratios[name], default="")
    return best if best and ratios[best] < 1 else f"{label}_last"


def _ratios(found: pl.DataFrame, seasonal: Mapping[str, pl.Expr]) -> dict[str, float]:
    """Return for each candidate its squared distance from the label, divided by that of the last value."""
    ratios: dict[str, float] = {}
    for name, value in seasonal.items():
        distances = found.select(
            (value - pl.col(_LABEL)).alias(name), pl.col(_LAST) - pl.col(_LABEL)
        ).drop_nulls()
        its, of_last = distances.select(pl.all().pow(2).sum()).row(0)
        if len(distances) >= LEAST_ROWS and of_last > 0:
            ratios[name] = its / of_last
    return ratios
