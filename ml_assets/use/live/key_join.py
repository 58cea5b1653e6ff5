"""Rows of the feature table by the text of their primary key: how an answered request finds its label.

The only place of that join, for the watch of a canary and for live performance. Not here: text of a value (`row_keys`).
"""

from collections.abc import Iterable, Sequence
from typing import cast

import orjson
import polars as pl

from ml_assets.data.tables.reader import TableReader
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.row_keys import key_text, time_text

PLACE = "place of the key"
"""Column of the result, beside those of the feature table."""


def key_in(row: str | None, key: Sequence[str]) -> tuple[str | None, ...] | str:
    """Return the text of each column of `key` in a logged raw row, or the reason why it has no key."""
    try:
        found = orjson.loads(row or "")
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        return "are no JSON object"
    values = cast("dict[str, object]", found)
    if absent := [name for name in key if name not in values]:
        return f"do not name {', '.join(absent)}, a part of the primary key of the feature table"
    return tuple(key_text(values[name]) for name in key)


def labelled_rows(
    keys: Sequence[tuple[str | None, ...]], spec: PipelineSpec, reader: TableReader, columns: Iterable[str]
) -> pl.DataFrame:
    """Return the rows of `rows_of_keys` that have a label, with the label."""
    label = spec.features.label
    return _rows(keys, spec, reader, (label, *columns), pl.col(label).is_not_null())


def rows_of_keys(
    keys: Sequence[tuple[str | None, ...]], spec: PipelineSpec, reader: TableReader, columns: Iterable[str]
) -> pl.DataFrame:
    """Return the rows of the feature table with one of `keys`, by partition date and then by place.

    They have `PLACE`, the index into `keys`, the partition date, and `columns`. A key is the text of each column of the
    primary key, as sent: only in a column of dates or times, different texts can be one value. If several rows have the
    same key, the first one counts.
    """
    return _rows(keys, spec, reader, columns, pl.lit(value=True))


def _rows(
    keys: Sequence[tuple[str | None, ...]],
    spec: PipelineSpec,
    reader: TableReader,
    columns: Iterable[str],
    counts: pl.Expr,
) -> pl.DataFrame:
    features = spec.features
    key, day = list(features.primary_key), features.partition_date
    wanted = list(dict.fromkeys((day, *columns)))
    partitions = reader.keys(features.table)
    if not keys or not partitions:
        return pl.DataFrame({PLACE: []}, schema={PLACE: pl.Int64()})
    named = {f"text of {name}": name for name in key}  # the table has columns of these names
    table = reader.scan(features.table, partitions).filter(counts)
    dtypes = table.collect_schema()
    asked = pl.DataFrame(
        {
            PLACE: range(len(keys)),
            **{
                column: [
                    time_text(one[n]) if isinstance(dtypes[name], pl.Date | pl.Datetime) else one[n]
                    for one in keys
                ]
                for n, (column, name) in enumerate(named.items())
            },
        },
        schema={PLACE: pl.Int64(), **dict.fromkeys(named, pl.String())},
    )
    if day in key:
        days = asked[f"text of {day}"].unique().to_list()
        table = table.filter(pl.col(day).cast(pl.String).is_in(days))
    found = table.select(*dict.fromkeys((*key, *wanted))).collect()
    known = found.select(
        *wanted,
        *(
            pl.Series(column, [key_text(value) for value in found[name]], dtype=pl.String)
            for column, name in named.items()
        ),
    )
    return (
        asked.join(known.unique(list(named), keep="first"), on=list(named), how="inner")
        .sort(day, PLACE, maintain_order=True)
        .select(PLACE, *wanted)
    )
