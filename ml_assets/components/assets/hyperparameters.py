"""Asset `<model>/hyperparameters`: the study of a model for Dagster, and its page.

It has no partitions: each materialization searches on the newest window. Nothing materializes it by itself, because a
study costs many trainings. Not here: the study (`tuning.tune`), the steps that use its result (`steps.snapshot`).
"""

from typing import TYPE_CHECKING, Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, comes_back, final_unless_transient
from ml_assets.components.metadata import RESOURCES
from ml_assets.components.pages import RunPage, readable, report_facts, table_of
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.foundation.links import report_page
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.study_metric import study_metric
from resources.launcher.resource_profile import changes_of
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.extras.tuning.tune import StoredStudy

HYPERPARAMETERS = "hyperparameters"
"""Last part of the asset's key."""
RESULT_DIGEST = "study_result"
"""Metadata of the asset: digest of the study's result."""
_GROUP = "studies"
"""Group of all studies: "Materialize all" of a pipeline's group must not run a search that costs many trainings."""


def study_key(model: str) -> dg.AssetKey:
    """Return the asset key `<model>/hyperparameters`."""
    return dg.AssetKey([model, HYPERPARAMETERS])


def study_asset(spec: TrainingPipelineSpec, tuning: TuningSection) -> dg.AssetsDefinition:
    """Return the asset whose materialization runs the study of `spec`."""
    key = study_key(spec.name)

    @dg.asset(
        key=key,
        deps=[dg.AssetKey(spec.features.table.split("/"))],
        group_name=_GROUP,
        description="Values of the hyperparameters with the "
        f"{study_metric(tuning, spec.evaluation).best_in_words} among the trials of a study on the newest window. The "
        "next training uses them. "
        f"Run it: `ml-assets launch {spec.name}/{HYPERPARAMETERS}`.",
        owners=list(spec.owners) or None,
        kinds={"optuna"},
        retry_policy=RETRY_TRANSIENT,
    )
    def hyperparameters(
        context: dg.AssetExecutionContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> dg.Output[None]:
        from ml_assets.extras.tuning.tune import run_study

        with final_unless_transient(platform.settings):
            stored = run_study(
                spec,
                tuning,
                platform,
                tables,
                _StudyPage(context, key),
                run_id=context.run.run_id,
                resources=changes_of(context.run.tags.get(RESOURCES, "")),
                comes_back=comes_back,
            )
            version = dg.DataVersion(stored.report.result.digest)
            return dg.Output(None, metadata=_shown(stored, platform), data_version=version)

    return hyperparameters


class _StudyPage(RunPage):
    """Reporter of a study, whose trials are observations of its page."""

    def of_trial(self, number: int) -> RunPage:
        return RunPage(self._context, self._asset, prefix=f"trial {number}: ", trial=number)


def _shown(stored: "StoredStudy", platform: Platform) -> dict[str, Any]:
    result = stored.report.result
    best, metric = result.chosen, result.compared_by
    names = list(dict.fromkeys(name for one in result.trials for name in one.parameters))
    rows = [
        {
            "trial": one.number,
            **{name: one.parameters.get(name, "–") for name in names},
            **({} if metric.is_validation_loss else {metric.in_words: _cell(one.value)}),
            "validation loss": _cell(one.validation_loss),
            "epochs": one.epochs,
            **({"paused after": ", ".join(map(str, one.pauses))} if result.pruner != "none" else {}),
            "seconds": readable(one.seconds),
            "result": "chosen" if one.number == best.number else one.why.partition("\n")[0] or one.state,
        }
        for one in result.trials
    ]
    saved, (epochs, budget) = {}, result.epochs_saved
    if result.pruner != "none":
        saved = {
            "epochs saved": f"{epochs:,} of {budget:,} ({epochs / budget:.0%}) by pruner {result.pruner}"
        }
    page = report_page(platform.settings.ui_url, stored.folder)
    return {
        "summary": dg.MetadataValue.md(stored.summary),
        "chosen": dg.MetadataValue.json(dict(best.parameters)),
        "chosen because": result.because,
        f"best {metric.in_words}": _cell(metric.value_of(best)),
        "trials": table_of(rows),
        **saved,
        **({"new study": result.differs} if result.differs else {}),
        **({"began from": result.prior} if result.prior else {}),
        "partition": result.partition,
        **({"stopped": result.stopped} if result.stopped else {}),
        "hours": readable(result.spent.hours),
        "worker hours": readable(result.spent.worker_hours),
        "study": result.study,
        RESULT_DIGEST: result.digest,
        "name in Optuna": result.name,
        **report_facts(page, stored.report_file),
        "document": dg.MetadataValue.text(stored.document),
        "snapshot": result.snapshot,
    }


def _cell(value: float | None) -> str | float:
    return "" if value is None else readable(value)
