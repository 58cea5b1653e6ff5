"""Losses of work in earlier trainings of a pipeline, from the records of their attempts (usage).

A launch with `checkpoint_every_minutes: auto` gives them to its workers, which add those of their own training. Not
here: the interval (ml_assets.model.training.attempt.pace).
"""

import statistics
from collections.abc import Iterable

from ml_assets.model.steps.live_report import TrainingPage
from ml_assets.model.steps.usage import UsageRecord
from resources.artifacts import ArtifactsError
from resources.job.job import LossHistory, TrainingJob
from resources.platform import Platform


def loss_history(platform: Platform, job: TrainingJob, page: TrainingPage) -> LossHistory | None:
    """Return the losses of all other trainings of the pipeline in this environment.

    None, with a warning on the page, if a record cannot be read: a training does not fail for its interval.
    """
    from ml_assets.extras.costs.costs import read_records

    try:
        records = read_records(platform.artifacts, platform.settings.environment, model=job.model)
    except ArtifactsError as error:
        page.warning(f"checkpoint_every_minutes: auto begins without a history: {error}")
        return None
    return history_of(one for one in records if one.fingerprint != job.fingerprint)


def history_of(records: Iterable[UsageRecord]) -> LossHistory:
    """Return the losses of these trainings."""
    attempts = [one for record in records for one in record.attempts]
    costs = [
        one.interval.checkpoint_cost_seconds
        for one in attempts
        if one.interval is not None and one.interval.is_save_measured
    ]
    return LossHistory(
        losses=sum(one.lost_work for one in attempts),
        worker_seconds=sum(one.workers * one.trained_seconds for one in attempts),
        save_seconds=statistics.median(costs) if costs else None,
    )
