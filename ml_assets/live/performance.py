"""Live performance of a day: how far each version's predictions have moved, and its metrics where labels are known.

Here: the figures, from the tables. Not here: storing and drawing them (`performance_history`), the asset
(`components.live_performance`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import polars as pl
from pydantic import BaseModel, ConfigDict

from ml_assets.evaluation.holdout import labels_of
from ml_assets.evaluation.holdout_lists import lists_of
from ml_assets.evaluation.metrics import metrics_of
from ml_assets.evaluation.row_weights import weights_of
from ml_assets.features.encoding import class_ids
from ml_assets.objective_facts import facts_of
from ml_assets.pipeline.metric_functions import own_metrics
from ml_assets.pipeline.scoring import PREDICTIONS
from ml_assets.pipeline.spec import PipelineSpec
from ml_assets.tables.reader import TableReader
from ml_assets.validation.drift import drift
from ml_assets.validation.profile import profile

Role: TypeAlias = Literal["production", "canary"]
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


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OutputDrift(_Figures):
    """Distance of one output's distribution from the reference."""

    output: str
    """Class, figure of a text, or `prediction`."""
    psi: float
    """Population stability index, from 0."""
    psi_excess: float
    """PSI beyond what chance explains, at least 0."""
    ks: float | None
    """Largest difference of the cumulative shares, 0 to 1."""
    mean: float
    reference_mean: float


class VersionFigures(_Figures):
    """Figures of one version on one day."""

    role: Role
    version: int
    bundle_digest: str
    rows: int
    """Rows with a prediction."""
    reference: tuple[str, ...]
    """Partitions of the reference; empty if the version scored no earlier one."""
    drift: tuple[OutputDrift, ...]
    """One for each output; empty without a reference."""
    labelled: int
    """Rows with prediction and label, which the metrics measure."""
    unknown_classes: int
    """Rows whose label is a class that the version does not know. The metrics leave them out."""
    metrics: dict[str, float | None]
    """Metrics of the objective and of the project; None where one is not defined, such as the AUC of one class. Empty
    without labels."""

    @property
    def largest_drift(self) -> OutputDrift | None:
        """The output that has moved most; None without a reference."""
        return max(self.drift, key=lambda one: one.psi_excess, default=None)

    @property
    def drift_in_words(self) -> str:
        """The drift in a few words."""
        most = self.largest_drift
        if most is None:
            return "no drift yet: this version scored no earlier partition"
        return f"PSI {most.psi_excess:.3g} beyond chance against {len(self.reference)} partitions"

    @property
    def labels_in_words(self) -> str:
        """The labels in a few words."""
        return f"labels of {self.labelled} of {self.rows} rows" if self.labelled else "no labels yet"


class DayFigures(_Figures):
    """Figures of a day, production first."""

    model: str
    partition: str
    objective: str
    versions: tuple[VersionFigures, ...]


def predictions_of(model: str) -> str:
    """Return the id of a model's table of predictions."""
    return f"{model}/{PREDICTIONS}"


def measure_day(spec: PipelineSpec, reader: TableReader, key: str) -> DayFigures:
    """Measure partition `key` of the predictions of `spec`, with the labels that the feature table has by now.

    Raises `PartitionMissing`, `EvaluationInputError` for labels that do not fit the objective and for a metric of the
    project that fails, and `FunctionNotFound` for one that cannot be imported.
    """
    scored = reader.scan(predictions_of(spec.name), [key]).collect()
    truth = _truth(spec, reader, key)
    found: list[VersionFigures] = []
    for role, (number, version, digest) in _COLUMNS.items():
        rows = scored.filter(pl.col(number).is_not_null())
        if rows.is_empty():
            continue
        bundle = str(rows[digest][0])
        reference, moved = _drift(spec, reader, key, bundle, rows.select("output", number))
        labelled, unknown, metrics = _metrics(spec, truth, rows, number)
        found.append(
            VersionFigures(
                role=role,
                version=int(rows[version][0]),
                bundle_digest=bundle,
                rows=rows.n_unique(list(spec.features.primary_key)),
                reference=reference,
                drift=moved,
                labelled=labelled,
                unknown_classes=unknown,
                metrics=metrics,
            )
        )
    return DayFigures(
        model=spec.name, partition=key, objective=spec.evaluation.objective, versions=tuple(found)
    )


def _drift(
    spec: PipelineSpec, reader: TableReader, key: str, bundle: str, rows: pl.DataFrame
) -> tuple[tuple[str, ...], tuple[OutputDrift, ...]]:
    """Return the partitions of the reference, and the distance of each output from it."""
    table = predictions_of(spec.name)
    earlier = [one for one in reader.keys(table) if one < key][-LOOK_BACK:]
    profiles: dict[str, dict[str, Any]] = {}
    for one, manifest in reader.manifests(table, earlier).items():
        # The code version of the table names the bundles: production, then the canary.
        made_by = dict(zip(manifest.code_version.split("+"), _COLUMNS.values(), strict=False))
        if bundle in made_by:
            before = reader.scan(table, [one]).select("output", made_by[bundle][0]).drop_nulls().collect()
            if before.height:
                profiles[one] = _profile(before)
        if len(profiles) == REFERENCE_DAYS:
            break
    now = _profile(rows)
    moved = drift(list(profiles.values()), [now])
    return tuple(profiles), tuple(
        OutputDrift(
            output=output,
            psi=one.psi,
            psi_excess=one.psi_excess,
            ks=one.ks,
            mean=now["columns"][output]["mean"],
            reference_mean=_mean(list(profiles.values()), output),
        )
        for output, one in moved.items()
    )


def _profile(rows: pl.DataFrame) -> dict[str, Any]:
    """Return the profile of the outputs, each as a column; `rows` has the columns output and number."""
    return profile(
        pl.DataFrame(
            {str(name): part.to_series(1) for (name,), part in rows.group_by("output", maintain_order=True)}
        )
    )


def _mean(profiles: Sequence[Mapping[str, Any]], output: str) -> float:
    rows = [one["rows"] for one in profiles]
    means = [one["columns"][output]["mean"] for one in profiles]
    return math.fsum(n * mean for n, mean in zip(rows, means, strict=True)) / sum(rows)


def _truth(spec: PipelineSpec, reader: TableReader, key: str) -> pl.DataFrame:
    """Return the columns of the feature rows that metrics need."""
    features, evaluation = spec.features, spec.evaluation
    wanted = (
        *features.primary_key,
        features.label,
        evaluation.bootstrap_unit,
        features.weight,
        evaluation.group,
        *(one.group for one in evaluation.metrics),
    )
    columns = dict.fromkeys(name for name in wanted if name is not None)
    return reader.scan(features.table, [key]).select(*columns).collect()


def _metrics(
    spec: PipelineSpec, truth: pl.DataFrame, rows: pl.DataFrame, number: str
) -> tuple[int, int, dict[str, float | None]]:
    """Return the labelled rows, those of an unknown class, and the metrics."""
    facts = facts_of(spec.evaluation.objective)
    label, key = spec.features.label, list(spec.features.primary_key)
    outputs = list(facts.columns) or sorted(rows["output"].unique().to_list())
    named = {output: f"_output {n}" for n, output in enumerate(outputs)}  # a class may be named like a column
    wide = rows.with_columns(pl.col("output").replace_strict(named)).pivot("output", index=key, values=number)
    classes = outputs if facts.has_classes else []
    has_label = truth[label].is_not_null()
    number_of = class_ids(truth[label], classes) if classes else truth[label].cast(pl.Float64).fill_nan(None)
    both = truth.with_columns(number_of.alias(label), has_label.alias(_KNOWN)).join(
        wide, on=key, how="left", nulls_equal=True, maintain_order="left"
    )
    is_scored = pl.all_horizontal(pl.col(list(named.values())).is_not_null())
    unknown = both.filter(is_scored & pl.col(_KNOWN) & pl.col(label).is_null()).height if classes else 0
    counts = is_scored & pl.col(label).is_not_null()
    if spec.features.weight is not None:
        counts &= pl.col(spec.features.weight) > 0
    # A list without all of its rows would be easier to order than it was.
    group = spec.evaluation.group
    both = both.filter(counts if group is None else counts.all().over(group))
    if both.is_empty():
        return 0, unknown, {}
    y = labels_of(both, label, spec.evaluation, classes)
    p = both.select(*named.values()).to_numpy().astype("float64")
    p = p if classes or facts.columns else p[:, 0]
    w, lists = weights_of(both, spec.features.weight), lists_of(both, group)
    values = {one.name: one.value(y, p, w=w, lists=lists) for one in metrics_of(spec.evaluation.objective)}
    for own in own_metrics(spec.evaluation):
        values[own.facts.name] = own.value(y, p, own.groups_of(both), w)
    return (
        both.height,
        unknown,
        {name: value if math.isfinite(value) else None for name, value in values.items()},
    )
