"""Assets `<model>/predictions` and `<model>/live`: scores by the version in production, their drift and their metrics.

Here: Dagster's side, and the source of the figures: the table of predictions, or the log of requests. Not here: the
predictions (`steps.scoring`), the figures (`live.performance`).
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import dagster as dg

from ml_assets.components.assets.table import Reported, publish_and_report, ranged_asset, require_all
from ml_assets.components.base import ON_LATE_INPUTS, condition_named, lookback_mapping
from ml_assets.components.checks.table import check_specs
from ml_assets.components.pages import readable, table_of
from ml_assets.components.specs import ScoringSection, TrainingPipelineSpec
from ml_assets.dagster_host.steps import log_materializations
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.derive import plan
from ml_assets.data.tables.guard import InputsRefused
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.reports.page import as_markdown
from ml_assets.foundation.reports.text import in_markdown
from ml_assets.model.evaluation.metrics.metrics import metrics_of
from ml_assets.model.steps.retraining import OF_INPUTS, RetrainSection
from ml_assets.model.steps.spec import PREDICTIONS
from ml_assets.use.live.logged_rows import logged_day, mark_measured, scored_of_log
from ml_assets.use.live.performance import DayFigures, VersionFigures, holdout_of, measure_day
from ml_assets.use.live.performance_history import (
    days_up_to,
    earlier_profiles,
    is_measured,
    pictures,
    store_day,
)
from ml_assets.use.live.retrain import value_of
from ml_assets.use.live.scored_rows import predictions_of, scored_of_table
from resources.platform import Platform
from resources.words import counted, name_some

PREDICTIONS_GROUP = "predictions"
"""Group of all such assets: "Materialize all" of a pipeline's group trains, when nothing may be in production yet."""


def predictions_key(model: str) -> dg.AssetKey:
    """Return the asset key `<model>/predictions`."""
    return dg.AssetKey([model, PREDICTIONS])


def predictions_asset(spec: TrainingPipelineSpec, scoring: ScoringSection) -> dg.AssetsDefinition:
    """Return the asset that scores partitions of the feature table of `spec`."""
    key = predictions_key(spec.name)

    return ranged_asset(
        key,
        partial(_publish, spec, scoring),
        spec,
        condition_named(scoring.automation_condition),
        deps=[dg.AssetDep(spec.features.table.split("/"), partition_mapping=lookback_mapping(0))],
        check_specs=check_specs(key),
        group_name=PREDICTIONS_GROUP,
        description=f"Predictions of the version of {spec.name} in production for each row of {spec.features.table}, "
        f"and of the canary beside it. Run it: `ml-assets launch {spec.name}/{PREDICTIONS} PARTITION`.",
        kinds={"onnx", "parquet"},
        metadata={"lake/table": f"{spec.name}/{PREDICTIONS}"},
    )


def _publish(
    spec: TrainingPipelineSpec,
    scoring: ScoringSection,
    context: dg.AssetExecutionContext,
    platform: Platform,
    tables: DeclaredTables,
) -> Iterator[Reported]:
    """Score the partitions of the run whose features may be used; raise for the others when these have landed."""
    from ml_assets.model.steps.scoring import (
        CanaryCannotScore,
        predictions_table,
        scored_partitions,
        scorers_of,
    )

    features = tables.find(spec.features.table)
    assert features is not None  # otherwise `require_consistent` refuses the declarations
    scorers = scorers_of(platform, spec.name)
    reader = TableReader.at(platform.lake, "main")
    table = predictions_table(spec, scoring.volume, dict(features.columns), scorers)
    inputs = [InputTable(table=features.table, cadence=features.cadence)]
    possible = plan(reader, platform.ledger, tables, inputs, context.partition_keys, table.cadence)
    keys = [key for one in possible.ranges for key in one]
    faults: dict[str, str] = {}
    if keys:
        partitions = scored_partitions(platform, spec, table, scorers, reader, keys, faults)
        yield from publish_and_report(context, platform, tables, table, partitions, total=len(keys))
    require_all(table.table, possible)
    fault = scorers.canary_fault or next(iter(faults.values()), "")
    if fault:
        lacking = name_some(sorted(faults) or keys)
        raise CanaryCannotScore(
            f"the predictions of production are on main, but the canary has none for {lacking}: {fault}. "
            f"Take it back: ml-assets demote {spec.name} --canary --reason '…'"
        )


LIVE = "live"
"""Last part of the asset's key."""


def live_asset(spec: TrainingPipelineSpec, scoring: ScoringSection) -> dg.AssetsDefinition:
    """Return the asset that measures partitions of the table of predictions of `spec`."""
    # The label may come after the prediction, with a later build of the same features.
    read = [dg.AssetKey(spec.features.table.split("/"))]
    if scoring.live_source == "predictions":
        read.insert(0, predictions_key(spec.name))

    return ranged_asset(
        dg.AssetKey([spec.name, LIVE]),
        partial(_measure if scoring.live_source == "predictions" else _measure_log, spec),
        spec,
        None if condition_named(scoring.automation_condition) is None else ON_LATE_INPUTS,
        deps=[dg.AssetDep(one, partition_mapping=lookback_mapping(0)) for one in read],
        group_name=PREDICTIONS_GROUP,
        description=f"Drift of the predictions of {spec.name}, and their metrics once labels are there, for production "
        f"and canary. Run it: `ml-assets launch {spec.name}/{LIVE} PARTITION`.",
        kinds={"python"},
    )


def _measure(
    spec: TrainingPipelineSpec, context: dg.AssetExecutionContext, platform: Platform, _: DeclaredTables
) -> Iterator[Reported]:
    """Measure the scored partitions of the run; then raise `InputsRefused` for the others."""
    table = predictions_of(spec.name)
    reader = TableReader.at(platform.lake, "main")
    scored = set(reader.keys(table))
    holdout = cache(partial(holdout_of, platform, spec.name))
    events = [
        _stored(context, spec, platform, measure_day(spec, key, scored_of_table(spec, reader, key), holdout))
        for key in sorted(scored.intersection(context.partition_keys))
    ]
    log_materializations(context, events)
    if missing := sorted(set(context.partition_keys) - scored):
        refused = {f"{table} {key}": "not scored yet" for key in missing}
        raise InputsRefused(f"{spec.name}/{LIVE}", refused, {table: missing})
    yield from ()  # a returned value would be a second materialization of each partition


def _measure_log(
    spec: TrainingPipelineSpec, context: dg.AssetExecutionContext, platform: Platform, _: DeclaredTables
) -> Iterator[Reported]:
    """Measure the answers to requests that arrived in the partitions of the run.

    Where parts of the log were deleted since an earlier measurement, its figures stay.
    """
    reader, artifacts = TableReader.at(platform.lake, "main"), platform.artifacts
    holdout = cache(partial(holdout_of, platform, spec.name))
    events: list[dg.AssetMaterialization] = []
    for key in sorted(context.partition_keys):
        logged = logged_day(spec, artifacts, key)
        if logged.deleted and is_measured(artifacts, spec.name, key):
            (figures,) = days_up_to(artifacts, spec.name, key, most=1)
            at = f"{figures.measured_at:%Y-%m-%d %H:%M} UTC"
            note = f"the log of this partition was deleted: these are the figures of {at}"
            figures = figures.model_copy(update={"notes": (note,)})
        else:
            earlier = earlier_profiles(artifacts, spec.name, key)
            scored = scored_of_log(spec, reader, platform, logged, earlier)
            notes = logged.notes
            figures = measure_day(spec, key, scored, holdout, source="request_log", notes=notes)
        events.append(_stored(context, spec, platform, figures))
        mark_measured(spec, artifacts, key, logged)
    log_materializations(context, events)
    yield from ()


def _stored(
    context: dg.AssetExecutionContext, spec: TrainingPipelineSpec, platform: Platform, figures: DayFigures
) -> dg.AssetMaterialization:
    """Store the figures of a day, and return its materialization."""
    retrain = None if spec.scoring is None else spec.scoring.retrain
    address = store_day(platform.artifacts, figures)
    said = [*(_in_words(one) for one in figures.versions), *figures.notes]
    return dg.AssetMaterialization(
        context.asset_key,
        partition=figures.partition,
        description="; ".join(said),
        metadata=_page(platform, figures, retrain) | {"document": dg.MetadataValue.text(address)},
    )


def _in_words(one: VersionFigures) -> str:
    return f"{one.role} (version {one.version}): {one.rows_in_words}; {one.drift_in_words}; {one.labels_in_words}"


def _page(platform: Platform, figures: DayFigures, retrain: RetrainSection | None) -> dict[str, Any]:
    drawn = as_markdown(pictures(days_up_to(platform.artifacts, figures.model, figures.partition)))
    rows = [
        {
            "output": moved.output,
            "role": one.role,
            "version": one.version,
            "compared with": against,
            "mean": readable(moved.mean),
            "its mean": readable(moved.reference_mean),
            "PSI": readable(moved.psi),
            "PSI beyond chance": readable(moved.psi_excess),
            "KS": "" if moved.ks is None else readable(moved.ks),
        }
        for one in figures.versions
        for against, outputs in (
            (counted(len(one.reference), "earlier partition"), one.drift),
            ("its holdout", one.holdout_drift),
        )
        for moved in outputs
    ]
    slices = list(_slices(figures))
    said = [*map(_in_words, figures.versions), *figures.notes, *_about_slices(figures)]
    return {
        "summary": dg.MetadataValue.md("\n\n".join([*map(in_markdown, said), *drawn])),
        **{name: value for one in figures.versions for name, value in _numbers(one).items()},
        "drift": table_of(rows),
        **({"slices": table_of(slices)} if slices else {}),
        **({} if retrain is None else {"limits": table_of(_limits(figures, retrain))}),
    }


def _slices(figures: DayFigures) -> Iterator[dict[str, str | float]]:
    """Yield a row for each slice and version: rows, and the metrics of the objective with their intervals."""
    names = [one.name for one in metrics_of(figures.objective)]
    for one in figures.versions:
        for part in one.slices:
            values = {name: str(part.metrics[name]) if part.metrics else "too few rows" for name in names}
            yield {
                "slice": part.slice,
                "role": one.role,
                "version": one.version,
                "labelled": part.rows,
            } | values


def _about_slices(figures: DayFigures) -> Iterator[str]:
    """Yield the meaning of the intervals of slices."""
    redrawn = {part.redrawn for one in figures.versions for part in one.slices}
    if redrawn & {"rows", "lists"}:
        what = "lists" if "lists" in redrawn else "rows"
        yield f"Intervals of slices redraw single {what}: they are about this partition only."


def _limits(figures: DayFigures, retrain: RetrainSection) -> list[dict[str, str | float]]:
    """Return a row for each limit of `scoring.retrain`: the value of the version in production on this day."""
    return [
        {
            "metric": rule.metric,
            "value": "not known yet" if value is None else readable(value),
            "limit": str(rule),
            "kept": "" if value is None else "yes" if rule.allows(value) else "no",
            "in a row": f"{rule.partitions} partitions request a training",
        }
        for one in figures.versions
        if one.role == "production"
        for rule in retrain.when
        if rule.metric not in OF_INPUTS
        for value in [value_of(one, rule.metric)]
    ]


def _numbers(one: VersionFigures) -> dict[str, Any]:
    """Return the figures that Dagster draws over the partitions."""
    moved, from_holdout = one.largest_drift, one.largest_holdout_drift
    return {
        f"{one.role} version": one.version,
        f"{one.role} rows": one.rows,
        f"{one.role} labelled": one.labelled,
        **({f"{one.role} stands for": round(one.stands_for)} if one.stands_for > one.rows else {}),
        **({f"{one.role} unknown classes": one.unknown_classes} if one.unknown_classes else {}),
        **({} if moved is None else {f"{one.role} drift": readable(moved.psi_excess)}),
        **({} if from_holdout is None else {f"{one.role} holdout drift": readable(from_holdout.psi_excess)}),
        **{
            f"{one.role} {name}": "not defined" if value is None else readable(value)
            for name, value in one.metrics.items()
        },
    }
