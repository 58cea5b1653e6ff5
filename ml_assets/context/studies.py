"""Studies of hyperparameters, by the runs that they are: trials while they run, and their result.

Not here: the study (`ml_assets.extras.tuning`), launching it (`context.launch`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dagster as dg

from ml_assets.components.assets.hyperparameters import HYPERPARAMETERS, RESULT_DIGEST, study_key
from ml_assets.context.errors import NotFound
from ml_assets.context.project import Project
from ml_assets.context.runs import Runs, ShownRun
from ml_assets.model.steps.search_space import Scalar
from ml_assets.model.steps.study_metric import BY_LOSS, TRIAL_VALUE, StudyMetric, study_metric

_MOST_POINTS = 10_000
"""Newest observations of a running study that are looked at: as many as Dagster returns at once."""


@dataclass(frozen=True, kw_only=True)
class ShownTrial:
    """Trial of a study."""

    number: int
    state: Literal["running", "finished", "paused", "failed"]
    """`running` also for a trial that paused or failed, while its study has no result."""
    parameters: Mapping[str, Scalar]
    """`hyperparameters.<key>` or `training.<key>` → value; empty while the study runs."""
    loss: float | None
    """Lowest validation loss so far."""
    value: float | None
    """Metric by which the trial is compared; another metric than the validation loss is measured when it finished."""
    step: int
    """Newest step."""
    why: str
    """Reason of a failure or of a pause."""


@dataclass(frozen=True, kw_only=True)
class ShownStudy:
    """Study as a run."""

    run: ShownRun
    model: str
    metric: str
    """Metric by which trials are compared."""
    direction: str
    trials: Sequence[ShownTrial]
    """By number. Of a study without a result: those in its newest 10,000 observations."""
    chosen: int | None
    """Number of the chosen trial; None before there is a result."""
    because: str
    """Reason of the choice in one sentence."""


def study_target(model: str) -> str:
    """Return the target of a launch that is the study of a model."""
    return study_key(model).to_user_string()


def study_of(project: Project, run_id: str) -> ShownStudy:
    """Return the study of a run. Raises `NotFound`, and `StudyChanged` for a result that was altered."""
    runs = Runs(project)
    run = runs.show(run_id)
    models = [one.rpartition("/")[0] for one in run.assets if one.rpartition("/")[2] == HYPERPARAMETERS]
    if len(models) != 1:
        raise NotFound(f"the run {run_id} is no study: ask for it among the runs of pipelines")
    (model,) = models
    made = runs.made(run, study_key(model))
    if not made:
        spec = project.declared.find_pipeline(model)
        tuning = None if spec is None else spec.tuning
        metric = BY_LOSS if spec is None or tuning is None else study_metric(tuning, spec.evaluation)
        return ShownStudy(
            run=run,
            model=model,
            metric=metric.name,
            direction=metric.direction,
            trials=_running(project, run, model, metric),
            chosen=None,
            because="",
        )
    from ml_assets.extras.tuning.chosen import stored_result

    result = stored_result(project.platform, model, str(made[RESULT_DIGEST]))
    return ShownStudy(
        run=run,
        model=model,
        metric=result.metric,
        direction=result.direction,
        trials=[
            ShownTrial(
                number=one.number,
                state=one.state,
                parameters=one.parameters,
                loss=one.validation_loss,
                value=result.compared_by.value_of(one),
                step=one.steps,
                why=one.why,
            )
            for one in result.trials
        ],
        chosen=result.chosen.number,
        because=result.because,
    )


def _running(project: Project, run: ShownRun, model: str, metric: StudyMetric) -> list[ShownTrial]:
    """Return the trials of a study without a result, from what its page shows."""
    asked = dg.AssetRecordsFilter(study_key(model), after_timestamp=run.created_at.timestamp())
    found = project.instance.fetch_observations(asked, limit=_MOST_POINTS).records
    newest: dict[int, dict[str, Any]] = {}
    for one in reversed(found):
        if one.event_log_entry.run_id == run.id and one.asset_observation is not None:
            facts: dict[str, Any] = {
                name: value.value for name, value in one.asset_observation.metadata.items()
            }
            newest.setdefault(int(facts["trial"]), {}).update(facts)
    so_far = "best_validation_loss"
    return [
        ShownTrial(
            number=number,
            state="finished" if TRIAL_VALUE in facts else "running",
            parameters={},
            loss=facts.get(so_far),
            value=facts.get(TRIAL_VALUE, facts.get(so_far) if metric.is_validation_loss else None),
            step=int(facts["step"]),
            why="",
        )
        for number, facts in sorted(newest.items())
    ]
