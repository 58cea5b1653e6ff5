"""Faults across declarations, one line each: file, line, key, and the nearest right word.

Here: refusing a defs folder with all its faults at once; names used twice, inputs that nothing declares, and what a
component names wrongly in another component's table: columns, days, drift. Not here: faults of a single document
(`documents`), columns of a component's own contract (`specs`).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets.components.base import cadence_of
from ml_assets.components.documents import DefsFiles, faults_in, place_of
from ml_assets.components.metadata import (
    COLUMN_SCHEMA,
    COUNTED_DRIFT,
    DAYS_BEGIN_IN,
    EVALUATED_SLICES,
    INPUT_CADENCES,
    LABEL_IS_CLASS,
    LABELS,
    NAMED_COLUMNS,
    PARTITION_DATE,
    PREDICTED_AT,
    SENSITIVE,
)
from ml_assets.dagster_host.yaml_documents import from_yaml
from ml_assets.data.tables.cadence import Cadence, CadenceKind, fit_of
from ml_assets.data.validation.column_types import FLOATS, NUMERIC, POLARS_TYPES
from ml_assets.data.validation.drift_rule import RULE as DRIFT
from ml_assets.foundation.checkout import ROOT
from ml_assets.foundation.days import after
from ml_assets.model.evaluation.comparison.holdout_rows import slice_faults
from ml_assets.model.evaluation.spec import EvaluationSpec, Gate
from resources.words import did_you_mean

DEFS = ROOT / "ml_assets" / "defs"


class DeclarationRefused(Exception):
    """The declarations cannot be loaded. Each line of the message names a file, a line and the remedy."""


@contextmanager
def in_one_line(defs_folder: Path = DEFS) -> Iterator[None]:
    """Turn faults in YAML files into `DeclarationRefused` while definitions load. Other errors pass."""
    try:
        yield
    except Exception:
        # Dagster stops at the first fault, deep in its own tree. A person wants to see all faults at once.
        if lines := faults_in(defs_folder):
            raise DeclarationRefused("\n".join(lines)) from None
        raise


def require_consistent(defs: dg.Definitions, defs_folder: Path = DEFS) -> None:
    """Raise `DeclarationRefused` if components do not fit together.

    Faults: two components have the same name; a component reads a table that nothing declares, that has other
    partitions or that begins later; a component names columns of a table that `column_faults` refuses; the days of a
    model begin in another time zone than those of its table; a model counts the drift of a table that declares none.
    """
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    by_key = {key.to_user_string(): asset for asset in assets for key in asset.keys}
    files = DefsFiles(defs_folder)
    lines = list(_declared_twice(assets, files))
    for asset in assets:
        for read in sorted(key.to_user_string() for key in asset.dependency_keys):
            for key, fault in _faults_of_edge(asset, read, by_key):
                place = _place_of(files, _who(asset), key) if key else ""
                place = place or ", ".join(files.lines(rf".*\btable:\s*{read}\b"))
                lines.append(f"{place}: {fault}")
    if lines:
        raise DeclarationRefused("\n".join(dict.fromkeys(lines)))


def _place_of(files: DefsFiles, who: str, key: str) -> str:
    """Return `file:line` of a dotted `key` of the component that declares `who`; empty if no file holds it."""
    kind, _, name = who.rpartition("/")
    class_name = {"datasets": "Dataset", "features": "FeatureTable"}.get(kind, "TrainingPipeline")
    path = [int(part) if part.isdecimal() else part for part in ("attributes", *key.split("."))]
    for document in files.documents():
        said: Any = document.value
        if str(said.get("type")).endswith(class_name) and said.get("attributes", {}).get("name") == name:
            return place_of(document, path)
    return ""


def _faults_of_edge(
    asset: dg.AssetsDefinition, read: str, by_key: Mapping[str, dg.AssetsDefinition]
) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, sentence) for each fault of `asset` as a reader of `read`; no key: the input itself."""
    if read not in by_key:
        yield "", f"no defs.yaml declares '{read}'{did_you_mean(read, by_key)}"
    elif why := _misfit(asset, by_key[read], read):
        yield "", f"{_who(asset)} {why[0]} and reads {read}, which {why[1]}"
    else:
        others = [zone_fault(asset, read, by_key), drift_fault(asset, by_key[read], read)]
        for key, fault in [*column_faults(asset, by_key[read], read), *filter(None, others)]:
            yield key, f"{_who(asset)} {fault}"


def _declared_twice(assets: Sequence[dg.AssetsDefinition], files: DefsFiles) -> Iterator[str]:
    # A model with a study has two definitions, with different keys.
    for (name, _), times in Counter((_who(asset), min(asset.keys)) for asset in assets).items():
        if times > 1:
            at = files.lines(rf"\s+name:\s*{name.rpartition('/')[2]}\s*(#.*)?$")
            found = dict.fromkeys(place.rpartition(":")[0] for place in at)
            yield f"{', '.join(found)}: '{name}' is declared {times} times: rename all but one"


def _who(asset: dg.AssetsDefinition) -> str:
    """Return a table's id; for a model's assets, the model's name."""
    first, *rest = min(asset.keys).path
    return "/".join([first, *rest]) if first in ("datasets", "features") else first


def _misfit(asset: dg.AssetsDefinition, source: dg.AssetsDefinition, table: str) -> tuple[str, str] | None:
    """Describe the partitions of a reader and of its input `table` if they do not fit; None if they fit.

    A table without partitions always fits.
    """
    own, read = asset.partitions_def, source.partitions_def
    if not isinstance(own, dg.TimeWindowPartitionsDefinition):
        return None
    if not isinstance(read, dg.TimeWindowPartitionsDefinition):
        return None
    mine, its = cadence_of(own), cadence_of(read)
    fit = fit_of(mine, its)
    if fit is None or (fit != "same" and min(asset.keys).path[0] != "features"):
        return f"is {mine}", f"is {its}: give both one cadence"
    if _of_table(asset).get(INPUT_CADENCES, {}).get(table, mine) != its:
        return f"is {mine}", f"is {its}: write `cadence: {its}` in this input"
    remedy = "give that of the days `event_time_zone: UTC`"
    if its == "hourly" and (zone := _of_table(asset).get(DAYS_BEGIN_IN, "UTC")) != "UTC":
        return f"begins its days in {zone}", f"has hours of UTC: {remedy}"
    if mine == "hourly" and (zone := _of_table(source).get(DAYS_BEGIN_IN, "UTC")) != "UTC":
        return "has hours of UTC", f"begins its days in {zone}: {remedy}"
    first = read.start + (timedelta(days=7 if its == "weekly" else 1) if fit == "coarser" else timedelta(0))
    if own.start < first:
        return (
            f"begins {own.start:%Y-%m-%d}",
            f"begins {read.start:%Y-%m-%d}: set `start` to {_begin_from(mine, first.date())} or later",
        )
    return None


def _begin_from(kind: CadenceKind, day: date) -> date:
    """Return the first day from `day` on that begins a partition: a partition that began before lacks input."""
    cadence = Cadence(kind, day)
    first, last = cadence.bounds(cadence.key_of(day))
    return day if kind == "hourly" or first == day else after(last)


def _of_table(asset: dg.AssetsDefinition) -> Mapping[str, Any]:
    """Return the metadata of a table's asset."""
    return asset.metadata_by_key.get(min(asset.keys), {})


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
    for metadata in asset.metadata_by_key.values():
        is_class: bool = metadata.get(LABEL_IS_CLASS, False)
        named: Mapping[str, Sequence[str]] = metadata.get(NAMED_COLUMNS, {}).get(read, {})
        for key, column in ((key, column) for key, columns in named.items() for column in columns):
            fault = (
                _fault(key, column, dtypes, labels, read, is_class=is_class)
                or _shown(key, column, sensitive, read, is_class=is_class)
                or _not_as_declared(key, column, facts, read)
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
    declared = from_yaml(rules)
    spec = EvaluationSpec.model_validate(declared["evaluation"])
    schema = {name: POLARS_TYPES[dtype] for name, dtype in dtypes.items() if dtype in POLARS_TYPES}
    for key, fault in slice_faults(spec, schema):
        yield f"evaluation.{key}", fault
    for to, declared_gates in declared["transitions"].items():
        gates = tuple(Gate.model_validate(one) for one in declared_gates)
        for key, fault in slice_faults(spec.model_copy(update={"gates": gates}), schema):
            yield f"release.gates.{to}{key.removeprefix('gates')}", fault


_AS_DECLARED = {
    "features.partition_date": (
        PARTITION_DATE,
        "partitions of {read} are by '{declared}': rows of the holdout could be trained on",
    ),
    "evaluation.baseline.predicted_at": (
        PREDICTED_AT,
        "rows of {read} are predicted at '{declared}': the naive model could know later labels",
    ),
}
"""Keys that name a column which the table declares itself, each with the table's fact and what goes wrong otherwise."""


def _not_as_declared(key: str, column: str, facts: Mapping[str, Any], read: str) -> str:
    """Return the reason if a model takes another column for a moment than the table that it reads."""
    fact, why = _AS_DECLARED.get(key, ("", ""))
    declared: str = facts.get(fact, "")
    if not declared or column == declared:
        return ""
    return f"names '{column}' in {key}, and {why.format(read=read, declared=declared)}. Name '{declared}'"


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
    if column in labels and (key in _INPUTS or key.startswith("evaluation.baseline.")):
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
