"""Golden rows: a few raw rows in a bundle that prove at each load that it still predicts as trained.

Here: the choice of rows. Not here: their predictions (`bundle`) and the replay (`runtime`).
"""

import polars as pl

from ml_assets.data.features.encoding import FittedState

MOST_ROWS = 64
_REAL_ROWS = 48
GOLDEN_BLOBS = 12
"""Real rows if each has a blob, because blobs may be large."""


def golden_rows(frame: pl.DataFrame, fitted: FittedState, blob: str = "") -> pl.DataFrame:
    """Return at most 64 rows of the columns a model reads, in their raw types; equal frames give equal rows.

    The rows are: up to 48 real rows (12 with blobs), spread evenly over `frame`; one row of nulls; and one row per
    text column with an unseen category. The column `blob` is never null. `frame` needs at least one row.
    """
    names = [state.name for state in (*fitted.numeric, *fitted.categorical)]
    raw = frame.select(*names, *([blob] if blob else []))
    if raw.height == 0:
        raise ValueError("cannot draw golden rows, because the frame has no rows: pass the holdout")
    first = raw.head(1)
    parts = [
        spread(raw, GOLDEN_BLOBS if blob else _REAL_ROWS),
        first.with_columns(pl.lit(None, raw.schema[name]).alias(name) for name in names),
    ]
    for state in fitted.categorical:
        if raw.schema[state.name] == pl.String:
            unseen = "never seen"
            while unseen in state.vocabulary:
                unseen += "!"
            parts.append(first.with_columns(pl.lit(unseen).alias(state.name)))
    return pl.concat(parts).head(MOST_ROWS)


def spread(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most `most` rows, spread evenly over `frame`."""
    return frame if frame.height <= most else frame[[i * frame.height // most for i in range(most)]]
