"""Step 3 for Dagster: the run's page while workers train, and the checkpoint's page afterwards."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets.components.failures import RETRY_TRANSIENT, final_unless_transient
from ml_assets.components.metadata import RESOURCES
from ml_assets.components.pages import RunPage, bullets, readable, study_facts, tracked_facts
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.model.steps.values import TrainedModel, TrainingSet
from resources.job.events import TrainingEvent, read_events, recoveries_of
from resources.job.job import TrainingResult
from resources.launcher.resource_profile import changes_of
from resources.platform import Platform

SETTINGS_DIGEST = "settings_digest"
"""Metadata of a checkpoint: digest of everything that decides it except the data. `ml-assets plan` compares it with the
declaration."""
READ_DIGEST, READ_AT = "read_digest", "read_at"
"""Metadata of a checkpoint: digest of the values that its training read, and the commit at which this run read them.
`ml-assets plan` compares them with main."""


def train_op(spec: TrainingPipelineSpec, checkpoint: dg.AssetKey) -> dg.OpDefinition:
    """Return the op that runs the workers. The run page and the tracker show the loss while they train."""

    @dg.op(
        name=f"{spec.name}__train",
        out=dg.Out(),
        description="Train with torchrun; live metrics on this page and in MLflow.",
        retry_policy=RETRY_TRANSIENT,
    )
    def train(
        context: dg.OpExecutionContext, platform: dg.ResourceParam[Platform], training_set: TrainingSet
    ) -> dg.Output[TrainedModel]:
        from ml_assets.model.steps.train import train_model

        with final_unless_transient():
            trained = train_model(
                spec,
                platform,
                training_set,
                RunPage(context, checkpoint, partition=context.partition_key),
                run_id=context.run_id,
                resources=changes_of(context.get_tag(RESOURCES) or ""),
            )
            folder = Path(trained.folder)
            return dg.Output(
                trained,
                metadata={
                    **_shown(trained.result),
                    **_survived(read_events(folder)),
                    "reused": trained.is_reused,
                    SETTINGS_DIGEST: training_set.settings,
                    READ_DIGEST: training_set.read,
                    READ_AT: training_set.source_commit,
                    **({} if training_set.choice is None else study_facts(training_set.choice)),
                    **tracked_facts(platform.tracker.uri, trained.mlflow_run),
                    "folder": dg.MetadataValue.path(folder),
                },
                data_version=dg.DataVersion(trained.result.weights_sha256),
            )

    return train


def _survived(events: Iterable[TrainingEvent]) -> dict[str, Any]:
    """Return metadata of the training's interruptions and their cost; empty without interruptions."""
    said = [recovery.in_words() for recovery in recoveries_of(events)]
    return {"recoveries": bullets(said)} if said else {}


def _shown(result: TrainingResult) -> dict[str, Any]:
    return {
        "best validation loss": readable(result.best_validation_loss),
        "best step": result.best_step,
        "steps": result.steps,
        **({"epochs": result.epochs} if result.epochs else {}),
        "world size": result.world_size,
        **({"rows per second": readable(result.rows_per_second)} if result.epochs else {}),
        "seconds": readable(result.seconds),
        "attempts": result.attempts,
        **(
            {"resumed from steps": dg.MetadataValue.json(resumed)}
            if (resumed := [*result.resumed_from_steps])
            else {}
        ),
        "weights": result.weights_sha256,
    }
