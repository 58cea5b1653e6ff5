"""Golden rows: the few raw rows a bundle carries to prove at load that it still answers as trained.

Here: which rows. Not here: their answers (`bundle`) and the replay (`runtime`).
"""

import polars as pl

from ml_assets.features.encoding import FittedState

MOST_ROWS = 64
_REAL_ROWS = 48


def golden_rows(frame: pl.DataFrame, fitted: FittedState) -> pl.DataFrame:
    """At most 64 rows of the columns `fitted` reads, in their raw types; equal frames give equal rows.

    Up to 48 real rows, spread evenly over `frame`; then one row in which everything is null, and rows in
    which each text column in turn holds a category nobody has seen. `frame` needs at least one row.
    """
    names = [state.name for state in (*fitted.numeric, *fitted.categorical)]
    raw = frame.select(names)
    if raw.height == 0:
        raise ValueError("golden rows are drawn from real rows, and the frame has none: pass the holdout")
    picked = [i * raw.height // _REAL_ROWS for i in range(_REAL_ROWS)] if raw.height > _REAL_ROWS else None
    real = raw if picked is None else raw[picked]
    first = raw.head(1)
    parts = [real, pl.DataFrame({name: [None] for name in names}, schema=raw.schema)]
    for state in fitted.categorical:
        if raw.schema[state.name] == pl.String:
            unseen = "never seen"
            while unseen in state.vocabulary:
                unseen += "!"
            parts.append(first.with_columns(pl.lit(unseen).alias(state.name)))
    return pl.concat(parts).head(MOST_ROWS)
