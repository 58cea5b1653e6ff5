"""Columns that one component names of another's table, judged by that table's contract.

Here: the facts a table's asset carries for this, and the sentences. Not here: columns of a component's own contract
(specs), the line a sentence belongs to (declarations).
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
import yaml

from ml_assets.validation.column_types import NUMERIC, POLARS_TYPES
from resources.words import did_you_mean

COLUMN_SCHEMA = "dagster/column_schema"
"""Metadata of a table: its columns, which Dagster shows."""
LABELS = "labels"
"""Metadata of a feature table: columns that nobody knows yet when a model is asked."""
SENSITIVE = "sensitive"
"""Metadata of a feature table: columns whose values no report shows."""
EVALUATED_SLICES = "evaluated_slices"
"""Metadata of a model that is judged in slices: table → the section `evaluation` as YAML, which keeps the types of
values."""
NAMED_COLUMNS = "columns"
"""Metadata of what reads tables: table → key of its section → names of columns."""

_NUMBERS = NUMERIC | {"bool"}
_DTYPES = {
    "features.numeric": (_NUMBERS, "list it in categorical, or cast it in the feature function"),
    "features.label": (_NUMBERS, "cast it in the feature function"),
    "features.label_known_at": ({"datetime"}, "name the column with the moment in UTC"),
    "features.partition_date": ({"date"}, "name the column with the first day of a row's partition"),
    "features.sample.column": ({"binary"}, "return bytes from the feature function"),
    "inputs.known_at.column": ({"datetime"}, "name the column with the moment in UTC"),
}
"""Key, without places in lists → the dtypes its columns may have, and what helps."""
_INPUTS = ("features.numeric", "features.categorical", "features.sample.column")
"""Keys whose columns the model reads."""


def column_faults(
    asset: dg.AssetsDefinition, table: dg.AssetsDefinition, read: str
) -> Iterator[tuple[str, str]]:
    """Dotted key and sentence of each column that `asset` names of `table`, whose id is `read`, and cannot have."""
    facts = table.metadata_by_key.get(dg.AssetKey(read.split("/")), {})
    schema: dg.TableSchema | None = facts.get(COLUMN_SCHEMA)
    if schema is None:  # of a model's own assets, which read each other
        return
    dtypes = {column.name: str(column.type) for column in schema.columns}
    labels: Sequence[str] = facts.get(LABELS, ())
    sensitive: Sequence[str] = facts.get(SENSITIVE, ())
    for metadata in asset.metadata_by_key.values():
        named: Mapping[str, Sequence[str]] = metadata.get(NAMED_COLUMNS, {}).get(read, {})
        for key, column in ((key, column) for key, columns in named.items() for column in columns):
            fault = _fault(key, column, dtypes, labels, read) or _shown(key, column, sensitive, read)
            if fault:
                yield key, fault
        if rules := metadata.get(EVALUATED_SLICES, {}).get(read):
            yield from _slice_faults(rules, dtypes)


def _slice_faults(rules: str, dtypes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    from ml_assets.evaluation.slices import slice_faults
    from ml_assets.evaluation.spec import EvaluationSpec

    spec = EvaluationSpec.model_validate(yaml.safe_load(rules))
    schema = {name: POLARS_TYPES[dtype] for name, dtype in dtypes.items() if dtype in POLARS_TYPES}
    for key, fault in slice_faults(spec, schema):
        yield f"evaluation.{key}", fault


def _shown(key: str, column: str, sensitive: Sequence[str], read: str) -> str:
    if key == "evaluation.slices" and column in sensitive:
        return (
            f"names '{column}' in {key}, and the contract of {read} marks it as sensitive: the report would show its "
            "values. Slice by a coarser column"
        )
    return ""


def _fault(key: str, column: str, dtypes: Mapping[str, str], labels: Sequence[str], read: str) -> str:
    """Return the reason for which `column` cannot stand in `key`; empty where it can."""
    if column not in dtypes:
        return f"names '{column}' in {key}, which is no column of {read}{did_you_mean(column, dtypes)}"
    if column in labels and (key in _INPUTS or key == "evaluation.baseline.groups"):
        return (
            f"names '{column}' in {key}, and {read} lists it in `labels`: nobody knows it when the model is asked. "
            f"Take it out of {key}"
        )
    if key == "features.label" and column not in labels:
        return (
            f"names '{column}' as features.label, and {read} does not list it in `labels`: add it there, so that no "
            "model takes it as an input"
        )
    legal, remedy = _DTYPES.get(re.sub(r"\.\d+", "", key), (None, ""))
    dtype = dtypes[column]
    if legal is not None and dtype not in legal:
        wanted = "a number" if legal == _NUMBERS else " or ".join(sorted(legal))
        return f"names '{column}' in {key}, which takes {wanted}, and its dtype is {dtype}: {remedy}"
    if legal is None and dtype == "binary":
        return f"names '{column}' in {key}, and its dtype is binary: only features.sample.column takes bytes"
    return ""
