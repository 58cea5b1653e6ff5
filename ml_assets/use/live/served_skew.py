"""Served rows against the feature table, after the training transform: where both differ, the model saw another input.

Requests of a partition are joined with the rows of the feature table by their primary key. Both sides go through the
`FittedState` of the version that answered, the transform of its training, and are compared bit by bit. Not here:
predictions and labels (`performance`), distributions (`ml_assets.data.validation.drift`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.categories import NotACategory, category_text
from ml_assets.data.features.encoding import FittedState
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.column_types import polars_type
from ml_assets.model.release.facts import BundleFacts
from ml_assets.model.release.of_platform import bundles_of
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.use.live.key_join import PLACE, key_in, rows_of_keys
from ml_assets.use.live.logged_rows import days_at, rows_in
from ml_assets.use.serving.request_log import files_after
from resources.artifacts import Artifacts
from resources.platform import Platform

Encoded = tuple[NDArray[np.float32], NDArray[np.int32]]
"""Rows as `FittedState.encode` returns them: numbers `[rows, F]` and ids of categories `[rows, C]`."""


@dataclass(frozen=True, kw_only=True)
class ColumnSkew:
    """One input of the model in which served rows differ from the table."""

    name: str
    rows: int
    """Rows that differ."""
    key: str
    """Primary key of the first of them, as JSON."""
    served: Any
    """Its value in the request."""
    stored: Any
    """Its value in the table."""


@dataclass(frozen=True, kw_only=True)
class VersionSkew:
    """Rows that one version answered."""

    version: int
    bundle_digest: str
    rows: int
    """Served rows that were compared. A row that was asked several times counts each time."""
    columns: tuple[ColumnSkew, ...]
    """Inputs that differ in at least one row, most rows first."""
    rounded: tuple[str, ...]
    """Inputs that differ, but not as values of the table's type: JSON has 0.487, float32 0.48699999."""
    left_out: Mapping[str, int]
    """Reason → served rows that could not be compared."""
    not_compared: tuple[str, ...]
    """Inputs that cannot be compared: blobs."""


def served_skew(spec: PipelineSpec, reader: TableReader, platform: Platform, key: str) -> list[VersionSkew]:
    """Compare the requests that arrived in partition `key`, by version; empty without any.

    Raises `ArtifactsError`, `BundleMissing` and `BundleDamaged`.
    """
    bundles = bundles_of(platform)
    found: list[VersionSkew] = []
    logged = pl.concat(
        [pl.DataFrame(schema=_COLUMNS), *_answered(spec, platform.artifacts, key)], how="vertical"
    )
    for _, rows in logged.group_by("bundle_digest", maintain_order=True):
        digest = str(rows["bundle_digest"][0])
        found.append(_compared(spec, reader, bundles.open(digest).facts, rows))
    return found


_COLUMNS = {"version": pl.Int64(), "bundle_digest": pl.String(), "row": pl.String()}


def _answered(spec: PipelineSpec, artifacts: Artifacts, key: str) -> Iterator[pl.DataFrame]:
    for day in days_at(spec, key):
        for log, _ in rows_in(spec, artifacts, key, day, files_after(artifacts, spec.name, day, {})):
            yield log.filter(pl.col("prediction").is_not_null()).select(*_COLUMNS)


def _compared(
    spec: PipelineSpec, reader: TableReader, facts: BundleFacts, logged: pl.DataFrame
) -> VersionSkew:
    left_out = Counter[str]()
    rows: list[Mapping[str, Any]] = []
    keys: list[tuple[str | None, ...]] = []
    for text in logged["row"]:
        key = key_in(text, spec.features.primary_key)
        if isinstance(key, str):
            left_out[key] += 1
        else:
            keys.append(key)
            rows.append(orjson.loads(text))
    fitted = facts.fitted
    names = [one.name for one in (*fitted.numeric, *fitted.categorical)]
    table = rows_of_keys(keys, spec, reader, names)
    if missing := len(keys) - table.height:
        left_out["name a key that the feature table does not have"] = missing
    columns: list[ColumnSkew] = []
    rounded: list[str] = []
    if table.height:
        places: list[int] = table[PLACE].to_list()
        asked = [rows[place] for place in places]
        served = _served(facts, asked)
        stored = fitted.encode(table)
        differing = _differing(fitted, fitted.encode(_in_types_of(table, served)), stored)
        in_some_bit = _differing(fitted, fitted.encode(served), stored)
        for name in names:
            if in_some_bit[name].size and not differing[name].size:
                rounded.append(name)
            if differing[name].size:
                first = int(differing[name][0])
                columns.append(
                    ColumnSkew(
                        name=name,
                        rows=len(differing[name]),
                        key=orjson.dumps(keys[places[first]]).decode(),
                        served=asked[first].get(name),
                        stored=table[name][first],
                    )
                )
    return VersionSkew(
        version=int(logged["version"][0]),
        bundle_digest=str(logged["bundle_digest"][0]),
        rows=table.height,
        columns=tuple(sorted(columns, key=lambda one: -one.rows)),
        rounded=tuple(rounded),
        left_out=dict(left_out),
        not_compared=tuple(one.name for one in facts.inputs if one.kind == "blob"),
    )


def _served(facts: BundleFacts, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the model's columns of raw rows of JSON, read as the server reads them."""
    columns: list[pl.Series] = []
    for column in facts.inputs:
        values = [row.get(column.name) for row in rows]
        if column.kind == "numeric":
            numbers = [None if one is None else float(one) for one in values]
            columns.append(pl.Series(column.name, numbers, dtype=pl.Float64))
        elif column.kind == "category":
            texts = [_text(one, polars_type(column.dtype)) for one in values]
            columns.append(pl.Series(column.name, texts, dtype=pl.String))
    return pl.DataFrame(columns)


def _in_types_of(table: pl.DataFrame, served: pl.DataFrame) -> pl.DataFrame:
    """Return served numbers rounded to float32 where the table has float32."""
    narrow = [name for name in served.columns if table.schema[name] == pl.Float32]
    return served.with_columns(pl.col(narrow).cast(pl.Float32)) if narrow else served


def _text(value: Any, dtype: pl.DataType) -> str | None:
    try:
        return category_text(value, dtype)
    except NotACategory:
        return None


def _differing(fitted: FittedState, served: Encoded, stored: Encoded) -> dict[str, NDArray[np.intp]]:
    """Return column → positions of the rows whose encoded values differ in any bit."""
    (numbers, ids), (numbers_stored, ids_stored) = served, stored
    unlike = numbers.view(np.uint32) != numbers_stored.view(np.uint32)
    unlike &= ~(np.isnan(numbers) & np.isnan(numbers_stored))
    by_column = {one.name: unlike[:, place] for place, one in enumerate(fitted.numeric)}
    by_column |= {
        one.name: ids[:, place] != ids_stored[:, place] for place, one in enumerate(fitted.categorical)
    }
    return {name: np.flatnonzero(column) for name, column in by_column.items()}
