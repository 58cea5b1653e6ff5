"""Predictions that one version made in one partition, with the labels that are known by now, from either source.

Here: their common form, and the source that is the table of predictions. Not here: the log of requests (`logged_rows`),
the figures (`performance`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.data.features.encoding import class_ids
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.profile import profile
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.steps.spec import PREDICTIONS, PipelineSpec

Role: TypeAlias = Literal["production", "canary"]
Profiles: TypeAlias = tuple[dict[str, Any], ...]
"""Profiles of predictions (`validation.profile`), a column for each output. Several are parts of one distribution."""
_COLUMNS: Mapping[Role, tuple[str, str, str]] = {
    "production": ("prediction", "version", "bundle_digest"),
    "canary": ("canary_prediction", "canary_version", "canary_bundle_digest"),
}
"""Role → columns of the table of predictions: the number, the version, its bundle."""
REFERENCE_DAYS = 14
"""Partitions that a day is compared with: the first ones that the same version scored. The newest would hide a slow
drift."""
LOOK_BACK = 90
"""Partitions before the day among which the reference is looked for."""
_KNOWN = "_known"


@dataclass(frozen=True, kw_only=True)
class CountingRows:
    """Rows with prediction and label that metrics count, in the order of the feature table."""

    frame: pl.DataFrame
    """Columns of the feature table that metrics and slices need. A class of the label is its number."""
    predictions: npt.NDArray[np.float64]
    """`[rows]`, or `[rows, outputs]`."""
    times: npt.NDArray[np.float64]
    """Rows for which each one stands, `[rows]`: 1, or more of a log of a share of the requests."""
    unknown_classes: int
    """Rows whose label is a class that the version does not know. They are not in the frame."""


@dataclass(frozen=True, kw_only=True)
class ScoredVersion:
    """Predictions of one version in one partition."""

    role: Role
    version: int
    bundle_digest: str
    rows: int
    """Rows with a prediction."""
    stands_for: float
    """Rows for which they stand: more than `rows` if a share of the requests is logged."""
    profiles: Profiles
    reference: Mapping[str, Profiles]
    """Earlier partition → profiles of the same version's predictions, at most `REFERENCE_DAYS`."""
    labelled: CountingRows
    classes: tuple[str, ...]
    """Classes in the order of the outputs; empty if the label is a number."""
    left_out: Mapping[str, int]
    """Reason → rows of the log that do not count, or have no label."""


def predictions_of(model: str) -> str:
    """Return the id of a model's table of predictions."""
    return f"{model}/{PREDICTIONS}"


def columns_of_truth(spec: PipelineSpec) -> tuple[str, ...]:
    """Return the columns of the feature table that metrics and slices need beside key and label, each once."""
    features, evaluation = spec.features, spec.evaluation
    wanted = (
        evaluation.bootstrap_unit,
        features.weight,
        evaluation.group,
        *(one.column for one in evaluation.sliced_by),
        *(one.group for one in evaluation.metrics),
    )
    return tuple(dict.fromkeys(name for name in wanted if name is not None))


def nothing_labelled() -> CountingRows:
    """Return no rows, where no label is known yet."""
    return CountingRows(frame=pl.DataFrame(), predictions=np.empty(0), times=np.empty(0), unknown_classes=0)


def counting_rows(
    spec: PipelineSpec, both: pl.DataFrame, outputs: Sequence[str], classes: Sequence[str], times: str = ""
) -> CountingRows:
    """Return the rows of `both`, truth with the columns `outputs`, that metrics count.

    A prediction that is missing is null. `times` is the column with the rows for which each one stands; 1 without it. A
    list counts if all of its rows do: one without some of its rows would be easier to order than it was.
    """
    features, group = spec.features, spec.evaluation.group
    label = features.label
    number_of = class_ids(both[label], classes) if classes else both[label].cast(pl.Float64).fill_nan(None)
    both = both.with_columns(number_of.alias(label), both[label].is_not_null().alias(_KNOWN))
    is_scored = pl.all_horizontal(pl.col(list(outputs)).is_not_null())
    unknown = both.filter(is_scored & pl.col(_KNOWN) & pl.col(label).is_null()).height if classes else 0
    counts = is_scored & pl.col(label).is_not_null()
    if features.weight is not None:
        counts &= pl.col(features.weight) > 0
    kept = both.filter(counts if group is None else counts.all().over(group))
    predictions = kept.select(*outputs).to_numpy().astype("float64")
    several = bool(classes or facts_of(spec.evaluation.objective).columns)
    return CountingRows(
        frame=kept.drop(*outputs, _KNOWN, *([times] if times else [])),
        predictions=predictions if several else predictions[:, 0],
        times=kept[times].to_numpy().astype("float64") if times else np.ones(kept.height),
        unknown_classes=unknown,
    )


def scored_of_table(spec: PipelineSpec, reader: TableReader, key: str) -> list[ScoredVersion]:
    """Return the versions that scored partition `key` of the table of predictions, production first.

    Labels are those that the feature table has by now. Raises `PartitionMissing`.
    """
    scored = reader.scan(predictions_of(spec.name), [key]).collect()
    features = spec.features
    columns = dict.fromkeys((*features.primary_key, features.label, *columns_of_truth(spec)))
    truth = reader.scan(features.table, [key]).select(*columns).collect()
    found: list[ScoredVersion] = []
    for role, (number, version, digest) in _COLUMNS.items():
        rows = scored.filter(pl.col(number).is_not_null())
        if rows.is_empty():
            continue
        bundle = str(rows[digest][0])
        facts = facts_of(spec.evaluation.objective)
        outputs = list(facts.columns) or sorted(rows["output"].unique().to_list())
        # A class may be named like a column.
        named = {output: f"_output {n}" for n, output in enumerate(outputs)}
        wide = rows.with_columns(pl.col("output").replace_strict(named)).pivot(
            "output", index=list(features.primary_key), values=number
        )
        both = truth.join(
            wide, on=list(features.primary_key), how="left", nulls_equal=True, maintain_order="left"
        )
        classes = outputs if facts.has_classes else []
        count = rows.n_unique(list(features.primary_key))
        found.append(
            ScoredVersion(
                role=role,
                version=int(rows[version][0]),
                bundle_digest=bundle,
                rows=count,
                stands_for=count,
                profiles=_profiles(rows.select("output", number)),
                reference=_earlier(spec, reader, key, bundle),
                labelled=counting_rows(spec, both, list(named.values()), classes),
                classes=tuple(classes),
                left_out={},
            )
        )
    return found


def _earlier(spec: PipelineSpec, reader: TableReader, key: str, bundle: str) -> dict[str, Profiles]:
    """Return the first partitions before `key` that a bundle scored, each with the profile of its predictions."""
    table = predictions_of(spec.name)
    earlier = [one for one in reader.keys(table) if one < key][-LOOK_BACK:]
    profiles: dict[str, Profiles] = {}
    for one, manifest in reader.manifests(table, earlier).items():
        # The code version of the table names the bundles: production, then the canary.
        made_by = dict(zip(manifest.code_version.split("+"), _COLUMNS.values(), strict=False))
        if bundle in made_by:
            before = reader.scan(table, [one]).select("output", made_by[bundle][0]).drop_nulls().collect()
            if before.height:
                profiles[one] = _profiles(before)
        if len(profiles) == REFERENCE_DAYS:
            break
    return profiles


def _profiles(rows: pl.DataFrame) -> Profiles:
    """Return the profile of the outputs, each as a column; `rows` has the columns output and number."""
    parts = rows.group_by("output", maintain_order=True)
    return (profile(pl.DataFrame({str(name): part.to_series(1) for (name,), part in parts})),)
