"""Asset `<model>/live`: drift of each day's predictions, and their metrics once labels are there.

Here: Dagster's side. Not here: the figures (`live.performance`), the predictions (`components.predictions`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.components.conditions import ON_LATE_INPUTS, condition_named
from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.many_events import log_materializations, log_output
from ml_assets.components.pages import readable, table_of
from ml_assets.components.partitions import lookback_mapping, partitions_definition
from ml_assets.components.predictions import PREDICTIONS_GROUP, predictions_key
from ml_assets.components.specs import ScoringSection, TrainingPipelineSpec
from ml_assets.pipeline.retraining import RetrainSection
from ml_assets.tables.reader import TableReader
from ml_assets.tables.refusal import InputsRefused
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.live.performance import DayFigures, VersionFigures

LIVE = "live"
"""Last part of the asset's key."""


def live_asset(spec: TrainingPipelineSpec, scoring: ScoringSection) -> dg.AssetsDefinition:
    """Return the asset that measures partitions of the table of predictions of `spec`."""
    same_day = lookback_mapping(0)

    @dg.asset(
        key=dg.AssetKey([spec.name, LIVE]),
        deps=[
            dg.AssetDep(predictions_key(spec.name), partition_mapping=same_day),
            # The label may come after the prediction, with a later build of the same features.
            dg.AssetDep(spec.features.table.split("/"), partition_mapping=same_day),
        ],
        partitions_def=partitions_definition(spec.partitions),
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        group_name=PREDICTIONS_GROUP,
        description=f"Drift of the predictions of {spec.name}, and their metrics once labels are there, for production "
        f"and canary. Run it: `ml-assets launch {spec.name}/{LIVE} PARTITION`.",
        owners=list(spec.owners) or None,
        kinds={"python"},
        automation_condition=None
        if condition_named(scoring.automation_condition) is None
        else ON_LATE_INPUTS,
        retry_policy=RETRY_TRANSIENT,
    )
    def live(context: dg.AssetExecutionContext, platform: dg.ResourceParam[Platform]) -> Iterator[Any]:
        with final_unless_transient():
            _measure(context, spec, platform)
            log_output(context)
            yield from ()  # a returned value would be a second materialization of each partition

    return live


def _measure(context: dg.AssetExecutionContext, spec: TrainingPipelineSpec, platform: Platform) -> None:
    """Measure the scored partitions of the run; then raise `InputsRefused` for the others."""
    from ml_assets.live.performance import measure_day, predictions_of
    from ml_assets.live.performance_history import store_day

    table = predictions_of(spec.name)
    retrain = None if spec.scoring is None else spec.scoring.retrain
    reader = TableReader.at(platform.lake, "main")
    scored = set(reader.keys(table))
    events: list[dg.AssetMaterialization] = []
    for key in sorted(scored.intersection(context.partition_keys)):
        figures = measure_day(spec, reader, key)
        address = store_day(platform.artifacts, figures)
        events.append(
            dg.AssetMaterialization(
                context.asset_key,
                partition=key,
                description="; ".join(_in_words(one) for one in figures.versions),
                metadata=_page(platform, figures, retrain) | {"document": dg.MetadataValue.text(address)},
            )
        )
    log_materializations(context, events)
    if missing := sorted(set(context.partition_keys) - scored):
        refused = {f"{table} {key}": "not scored yet" for key in missing}
        raise InputsRefused(f"{spec.name}/{LIVE}", refused, {table: missing})


def _in_words(one: "VersionFigures") -> str:
    return f"{one.role} (version {one.version}): {one.drift_in_words}; {one.labels_in_words}"


def _page(platform: Platform, figures: "DayFigures", retrain: RetrainSection | None) -> dict[str, Any]:
    from ml_assets.live.performance_history import days_up_to, in_markdown

    drawn = in_markdown(days_up_to(platform.artifacts, figures.model, figures.partition))
    rows = [
        {
            "output": moved.output,
            "role": one.role,
            "version": one.version,
            "mean": readable(moved.mean),
            "mean before": readable(moved.reference_mean),
            "PSI": readable(moved.psi),
            "PSI beyond chance": readable(moved.psi_excess),
            "KS": "" if moved.ks is None else readable(moved.ks),
        }
        for one in figures.versions
        for moved in one.drift
    ]
    return {
        "summary": dg.MetadataValue.md("\n\n".join([*map(_in_words, figures.versions), *drawn])),
        **{name: value for one in figures.versions for name, value in _numbers(one).items()},
        "drift": table_of(rows),
        **({} if retrain is None else {"limits": table_of(_limits(figures, retrain))}),
    }


def _limits(figures: "DayFigures", retrain: RetrainSection) -> list[dict[str, str | float]]:
    """Return a row for each limit of `scoring.retrain`: the value of the version in production on this day."""
    from ml_assets.live.retrain import value_of

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
        for value in [value_of(one, rule.metric)]
    ]


def _numbers(one: "VersionFigures") -> dict[str, Any]:
    """Return the figures that Dagster draws over the partitions."""
    moved = one.largest_drift
    return {
        f"{one.role} version": one.version,
        f"{one.role} rows": one.rows,
        f"{one.role} labelled": one.labelled,
        **({f"{one.role} unknown classes": one.unknown_classes} if one.unknown_classes else {}),
        **({} if moved is None else {f"{one.role} drift": readable(moved.psi_excess)}),
        **{
            f"{one.role} {name}": "not defined" if value is None else readable(value)
            for name, value in one.metrics.items()
        },
    }
