"""Checks of what a component names in another component's table: columns of its contract, its days, its drift.

Here: the metadata that a table's asset holds for these checks, and the sentences. Not here: columns of a component's
own contract (specs), the file and line of a fault (declarations).
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
import yaml

from ml_assets.data.validation.column_types import FLOATS, NUMERIC, POLARS_TYPES
from ml_assets.data.validation.drift_rule import RULE as DRIFT
from resources.words import did_you_mean

COLUMN_SCHEMA = "dagster/column_schema"
"""Metadata of a table: its columns, which Dagster shows."""
LABELS = "labels"
"""Metadata of a feature table: columns that are not yet known at prediction time."""
SENSITIVE = "sensitive"
"""Metadata of a feature table: columns whose values no report shows."""
EVALUATED_SLICES = "evaluated_slices"
"""Metadata of a model with slices in its evaluation: table → the section `evaluation`, and `release.gates` as
`transitions`, as YAML, which keeps the types of values."""
LABEL_IS_CLASS = "label_is_class"
"""Metadata of a model: true if the label is a class, which may be a text."""
NAMED_COLUMNS = "columns"
"""Metadata of an asset that reads tables: table → key of its section → names of columns."""

INPUT_CADENCES = "cadences of inputs"
"""Metadata key of a feature table: input → cadence, for inputs whose cadence is not the table's."""
PARTITION_DATE = "partition_date"
"""Metadata of a feature table: its column with the first day of a row's partition."""
DAYS_BEGIN_IN = "days_begin_in"
"""Metadata of a table with an event time, and of a training set: time zone in whose midnight its days begin."""
COUNTED_DRIFT = "counted drift"
"""Metadata of a training set: table → dotted key of the first limit on the number of its columns that drift."""

_NUMBERS = NUMERIC | {"bool"}
_PLAIN = _NUMBERS | {"string", "date", "datetime"}
"""Types of columns that a model, a report or a join reads."""
_DTYPES = {
    "features.numeric": (_NUMBERS, "list it in categorical, or cast it in the feature function"),
    "features.label": (_NUMBERS, "cast it in the feature function"),
    "features.label_known_at": ({"datetime"}, "name the column with the moment in UTC"),
    "features.weight": (_NUMBERS, "return a number from 0 from the feature function"),
    "features.partition_date": ({"date"}, "name the column with the first day of a row's partition"),
    "features.blob.column": ({"binary"}, "return bytes from the feature function"),
    "inputs.known_at.column": ({"datetime"}, "name the column with the moment in UTC"),
}
"""Key, without list indices → legal dtypes of its columns, and the remedy."""
_CLASS = ({"string", *(_NUMBERS - FLOATS)}, "cast it in the feature function, or choose objective regression")
"""Legal dtypes of a label that is a class, and the remedy."""
_INPUTS = ("features.numeric", "features.categorical", "features.blob.column")
"""Keys whose columns the model reads."""


def column_faults(
    asset: dg.AssetsDefinition, table: dg.AssetsDefinition, read: str
) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, sentence) for each column of `table` (id `read`) that `asset` names wrongly."""
    facts = table.metadata_by_key.get(dg.AssetKey(read.split("/")), {})
    schema: dg.TableSchema | None = facts.get(COLUMN_SCHEMA)
    if schema is None:  # a model's own assets read each other and have no schema
        return
    dtypes = {column.name: str(column.type) for column in schema.columns}
    labels: Sequence[str] = facts.get(LABELS, ())
    sensitive: Sequence[str] = facts.get(SENSITIVE, ())
    partition_date: str = facts.get(PARTITION_DATE, "")
    for metadata in asset.metadata_by_key.values():
        is_class: bool = metadata.get(LABEL_IS_CLASS, False)
        named: Mapping[str, Sequence[str]] = metadata.get(NAMED_COLUMNS, {}).get(read, {})
        for key, column in ((key, column) for key, columns in named.items() for column in columns):
            fault = (
                _fault(key, column, dtypes, labels, read, is_class=is_class)
                or _shown(key, column, sensitive, read, is_class=is_class)
                or _other_partitions(key, column, partition_date, read)
            )
            if fault:
                yield key, fault
        if rules := metadata.get(EVALUATED_SLICES, {}).get(read):
            yield from _slice_faults(rules, dtypes)


def zone_fault(
    asset: dg.AssetsDefinition, read: str, tables: Mapping[str, dg.AssetsDefinition]
) -> tuple[str, str] | None:
    """Return (dotted key, sentence) if the days of a model begin in another zone than those of its table `read`.

    The table's own event time says where its days begin; without one, those of the nearest tables behind it. In a zone
    west of theirs, the model would learn labels that were known only after the next split began.
    """
    if not read.startswith("features/") or any(key.path[0] in ("datasets", "features") for key in asset.keys):
        return None  # only models, which read feature tables and their own assets, take labels by a midnight
    own = {zone for facts in asset.metadata_by_key.values() if (zone := facts.get(DAYS_BEGIN_IN))}
    found = _days_begin(read, tables)
    if not own or not found or own & set(found.values()):
        return None
    table, zone = min(found.items())
    return "features.time_zone", (
        f"takes labels by midnight in {min(own)} (features.time_zone), and the days of {table} begin at midnight in "
        f"{zone} (contract.event_time_zone): write `time_zone: {zone}`, or give {read} an event_time if it cuts its "
        "days elsewhere"
    )


def drift_fault(asset: dg.AssetsDefinition, table: dg.AssetsDefinition, read: str) -> tuple[str, str] | None:
    """Return (dotted key, sentence) if `asset` counts columns of `table` (id `read`) that drift, and nothing does."""
    for metadata in asset.metadata_by_key.values():
        key: str | None = metadata.get(COUNTED_DRIFT, {}).get(read)
        if key is not None and all(one.name != DRIFT for one in table.check_specs):
            return key, (
                f"counts in {key} the columns of {read} that drift, and {read} declares no `drift`: add `drift: {{}}` "
                "to it, or remove the limit"
            )
    return None


def _days_begin(read: str, tables: Mapping[str, dg.AssetsDefinition]) -> dict[str, str]:
    """Return table → zone of the nearest tables with an event time: `read`, or those behind it."""
    found: dict[str, str] = {}
    todo, seen = [read], {read}
    while todo:
        table = todo.pop()
        asset = tables.get(table)
        if asset is None:
            continue
        if zone := asset.metadata_by_key.get(dg.AssetKey(table.split("/")), {}).get(DAYS_BEGIN_IN):
            found[table] = zone
            continue
        behind = {key.to_user_string() for key in asset.dependency_keys} - seen
        seen |= behind
        todo += behind
    return found


def _slice_faults(rules: str, dtypes: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    from ml_assets.model.evaluation.comparison.slices import slice_faults
    from ml_assets.model.evaluation.spec import EvaluationSpec, Gate

    declared = yaml.safe_load(rules)
    spec = EvaluationSpec.model_validate(declared["evaluation"])
    schema = {name: POLARS_TYPES[dtype] for name, dtype in dtypes.items() if dtype in POLARS_TYPES}
    for key, fault in slice_faults(spec, schema):
        yield f"evaluation.{key}", fault
    for to, declared_gates in declared["transitions"].items():
        gates = tuple(Gate.model_validate(one) for one in declared_gates)
        for key, fault in slice_faults(spec.model_copy(update={"gates": gates}), schema):
            yield f"release.gates.{to}{key.removeprefix('gates')}", fault


def _other_partitions(key: str, column: str, partition_date: str, read: str) -> str:
    """Return the reason if a model would put rows into splits by another date than that of their partition."""
    if key == "features.partition_date" and partition_date and column != partition_date:
        return (
            f"names '{column}' in {key}, and partitions of {read} are by '{partition_date}': rows of the holdout could "
            f"be trained on. Name '{partition_date}'"
        )
    return ""


_SHOWN = {
    "evaluation.slices": "Slice by",
    "evaluation.bias": "Compare the groups of",
    "evaluation.group": "Name the lists by",
    "evaluation.bootstrap_unit": "Draw blocks by",
}
"""Keys whose columns' values are in reports or errors, each with the begin of its remedy."""


def _shown(key: str, column: str, sensitive: Sequence[str], read: str, *, is_class: bool) -> str:
    if key in _SHOWN and column in sensitive:
        return (
            f"names '{column}' in {key}, and the contract of {read} marks it as sensitive: the report would show its "
            f"values. {_SHOWN[key]} a coarser column, or one with codes in place of them"
        )
    if is_class and key == "features.label" and column in sensitive:
        return (
            f"names '{column}' in {key}, and the contract of {read} marks it as sensitive: the report would show its "
            "classes. Return other words from the feature function"
        )
    return ""


def _fault(
    key: str, column: str, dtypes: Mapping[str, str], labels: Sequence[str], read: str, *, is_class: bool
) -> str:
    """Return the reason why `key` cannot name `column`; empty if it can."""
    if column not in dtypes:
        return f"names '{column}' in {key}, which is not a column of {read}{did_you_mean(column, dtypes)}"
    if column in labels and (key in _INPUTS or key == "evaluation.baseline.groups"):
        return (
            f"names '{column}' in {key}, and {read} lists it in `labels`: it is unknown when the model predicts. "
            f"Remove it from {key}"
        )
    if key == "features.label" and column not in labels:
        return (
            f"names '{column}' as features.label, and {read} does not list it in `labels`: add it there, so that no "
            "model reads it as an input"
        )
    legal, remedy = _DTYPES.get(re.sub(r"\.\d+", "", key), (None, ""))
    if is_class and key == "features.label":
        legal, remedy = _CLASS
    dtype = dtypes[column]
    if legal is not None and dtype not in legal:
        words = {frozenset(_NUMBERS): "a number", frozenset(_CLASS[0]): "a text, a whole number or a boolean"}
        wanted = words.get(frozenset(legal), " or ".join(sorted(legal)))
        return f"names '{column}' in {key}, which takes {wanted}, and its dtype is {dtype}: {remedy}"
    if legal is None and dtype == "binary":
        return f"names '{column}' in {key}, and its dtype is binary: only features.blob.column takes bytes"
    if legal is None and dtype not in _PLAIN:
        return (
            f"names '{column}' in {key}, and its dtype is {dtype}, which no model reads: return a number, a text or a "
            "moment from the feature function, of a vector each item as a column"
        )
    return ""
