"""The window of a run, as later steps ask for it again: a day may be rejected at any moment after it was judged.

Here: the question and the refusal. Not here: judging a window before anything is launched (`validate_inputs`), the
question at the moment a version is written (`release.promotion`).
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from ml_assets.components.failures import inputs_refused
from ml_assets.components.specs import TrainingPipelineSpec
from resources.ledger import TrainedOn
from resources.platform import Platform


def trained_on(spec: TrainingPipelineSpec, snapshot: Mapping[str, Any]) -> TrainedOn:
    """The window that the snapshot step froze, and the version it began with."""
    keys: list[str] = snapshot["keys"]
    initial = snapshot["initial"]
    return TrainedOn(
        commit=snapshot["source_commit"],
        table=spec.features.table,
        first=keys[0],
        last=keys[-1],
        partitions=len(keys),
        begins_with="" if initial is None else initial["evaluation"],
    )


def require_nothing_rejected_since(
    spec: TrainingPipelineSpec,
    platform: Platform,
    partition: str,
    snapshot: Mapping[str, Any],
    *,
    is_trained: bool = False,
) -> None:
    """Refuse a window that was judged earlier and holds, at any depth, what is rejected by now.

    A training takes hours, and a run that goes on from a failed one may begin days later.
    """
    from ml_assets.release.inputs import contents_of
    from ml_assets.tables.guard import rejections_of

    behind = contents_of(platform.lake, platform.ledger.models, trained_on(spec, snapshot))
    if refused := rejections_of(platform.ledger, behind):
        raise rejected_since(spec, partition, refused, is_trained=is_trained)


def rejected_since(
    spec: TrainingPipelineSpec, partition: str, refused: Mapping[str, str], *, is_trained: bool
) -> dg.Failure:
    """`partition` of the model is not built on: what was rejected after its window was judged, by name."""
    kept = " It is trained and not registered; its weights are kept, and materializing it again uses them."
    return inputs_refused(f"{spec.name} {partition}", refused, {}, more=kept if is_trained else "")
