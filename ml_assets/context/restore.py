"""Launch of a training that begins with a checkpoint of another one, in its own lineage.

A checkpoint is the state of one configuration on the same rows, so all else must be as it was. What can be compared
before the launch is compared here; the step that freezes the rows compares the rest. Not here: the copy of the state
(`ml_assets.model.training.checkpoint.restored`).
"""

import dataclasses
from functools import partial
from pathlib import Path

from ml_assets.components.pipeline_steps import READ_DIGEST
from ml_assets.components.restores import Restores
from ml_assets.context.errors import NotFound
from ml_assets.context.launch import Launchable, launchable
from ml_assets.context.plan import plan_of
from ml_assets.context.project import Project
from ml_assets.context.runs import Runs
from ml_assets.model.steps.identity import RestoreRefused, require_same_training, training_job
from ml_assets.model.steps.snapshot import initial_of, source_values
from resources.job.job import TrainingJob


def restorable(project: Project, run_id: str, step: int, *, resources: str | None = None) -> Launchable:
    """Return the launch; see `Context.restorable`. Its `prepare` copies the checkpoint."""
    from ml_assets.model.training.checkpoint.restored import hand_over_state, job_of, state_of_checkpoint

    runs, artifacts = Runs(project), project.platform.artifacts
    training = runs.training(run_id)
    frozen = runs.training_set(training)
    if not frozen:
        raise NotFound(f"the run {run_id} has no training set yet, and so no checkpoint: choose another run")
    what = launchable(project, training.model, training.partitions or None, resources=resources)
    fingerprint = str(frozen["fingerprint"])
    state = state_of_checkpoint(artifacts, training.model, fingerprint, step)
    origin = job_of(artifacts, training.model, fingerprint)
    _require_same(project, origin, training.partitions, str(frozen.get(READ_DIGEST, "")))
    job = dataclasses.replace(origin, restored=state)
    return dataclasses.replace(
        what,
        own_tags=Restores(run=training.id, state=state).to_tag(),
        prepare=partial(hand_over_state, artifacts, job, state),
    )


def _require_same(project: Project, origin: TrainingJob, partition: str, read: str) -> None:
    """Raise `RestoreRefused` if a launch would train another configuration, or other rows, than `origin`.

    `read` is the digest of the values that the training read; empty for a run that did not record it.
    """
    planned = plan_of(project, origin.model, partition)
    spec, platform = planned.spec, project.platform
    initial = initial_of(spec, platform)
    choice = None if planned.chosen is None else planned.chosen.choice
    now = training_job(
        spec.with_choice(choice),
        origin.partition,
        Path(origin.snapshot),
        origin.snapshot_digest,
        "" if initial is None else initial.weights_sha256,
        origin.schema_hash,
    )
    require_same_training(now, origin)
    if read and not planned.validation.barred:
        keys = planned.validation.keys
        if source_values(spec, project.reader(), spec.features.table, keys).digest != read:
            raise RestoreRefused(
                f"{origin.model} {partition} cannot begin with a checkpoint of training {origin.fingerprint[:16]}: the "
                f"rows of its window changed since. Train anew: ml-assets launch {origin.model} {partition}"
            )
