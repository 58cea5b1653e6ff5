"""Job of a training, with the code that its weights come from: everything that its fingerprint covers.

Here: the document for the workers; versions of the pipeline's own functions, of the platform's modules in workers, and
of the installed packages that both import. Not here: the version of code (code.code_version), the choice of the
platform's modules (attempt.same_code), the fingerprint itself (resources.job.job).
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

from ml_assets.data.tables.guard import BuildRefused
from ml_assets.foundation.code.code_version import packages_of, python_version, reached_by, versions_of
from ml_assets.foundation.code.syntax import reading_once
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.steps.search_space import Choice
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.values import TrainingSet
from ml_assets.model.training.attempt.same_code import loop_version, platform_text, worker_modules
from resources.job.job import TrainingJob

_CONVERTERS = "ml_assets.model.training.script.libraries"
_CONVERTED = {"lightgbm", "xgboost", "sklearn"}
"""Packages whose models a script hands in directly, through `_CONVERTERS`, which imports all of them."""


@dataclass(frozen=True, kw_only=True)
class TrainingCode:
    """Versions of all code that can change the weights."""

    code_version: str
    """Version of the model function or script and, after a dash, of `decode`."""
    loop_version: str
    """Version of the platform's modules that run in the workers."""
    platform_text: str
    """SHA-256 of the text of all modules of the platform."""
    packages: dict[str, str]
    """`python` and each installed package that the workers' code imports → version."""


@reading_once()  # the four parts reach the same modules
def training_code(spec: PipelineSpec) -> TrainingCode:
    """Return the versions of the code that `spec` trains with, as it is on this machine."""
    model, blob = spec.model, spec.features.blob
    loop, without = worker_modules(model.script or "")
    paths = [path for path in (model.function, blob.decode if blob else None) if path]
    own = [model.script] if model.script else []
    converts = bool(_CONVERTED & reached_by(own, without=["ml_assets.model.training"]).packages)
    return TrainingCode(
        code_version="-".join(versions_of(model.script or "", paths).values()),
        loop_version=loop_version(model.script or ""),
        platform_text=platform_text(),
        packages={
            "python": python_version(),
            **packages_of(
                [*own, *(path.rpartition(".")[0] for path in paths), *loop],
                without=[*without, *([] if converts else [_CONVERTERS])],
            ),
        },
    )


def training_job(
    spec: PipelineSpec,
    partition: str,
    folder: Path,
    snapshot_digest: str,
    initial_weights: str = "",
    schema_hash: str = "",
) -> TrainingJob:
    """Return the document that the workers receive."""
    model = spec.model
    return TrainingJob(
        model=spec.name,
        partition=partition,
        model_function=model.function or "",
        objective=facts_of(spec.evaluation.objective).trained_as,
        hyperparameters=model.hyperparameters,
        arguments=model.arguments,
        snapshot=str(folder),
        snapshot_digest=snapshot_digest,
        **vars(training_code(spec)),
        seed=spec.seed,
        initial_weights=initial_weights,
        schema_hash=schema_hash,
        settings=spec.training,
        script=model.script or "",
        decode=spec.features.blob.decode if spec.features.blob else "",
    )


def foreign_job(job: TrainingJob, digest: str) -> TrainingJob:
    """Return the job of a model that was trained elsewhere: with the data of `job`, and without its code and settings.

    `digest` is that of the model's document. No launcher runs such a job.
    """
    return TrainingJob(
        model=job.model,
        partition=job.partition,
        model_function="",
        objective=job.objective,
        hyperparameters={},
        snapshot=job.snapshot,
        snapshot_digest=job.snapshot_digest,
        code_version="",
        seed=0,
        schema_hash=job.schema_hash,
        foreign=digest,
    )


def settings_digest(spec: PipelineSpec, job: TrainingJob | None = None, choice: Choice | None = None) -> str:
    """Return the SHA-256 of all that determines a training, except the data: settings, seed, code, columns, window.

    `job` is any job of `spec` with the code as it is now; without it, one is built. With a `choice`, the result of its
    study counts, too: another result with the same values gives the same weights, and is another origin of them.
    """
    job = job or training_job(spec.with_choice(choice), "", Path(), "")
    without_data = dataclasses.replace(
        job, snapshot_digest="", initial_weights="", schema_hash="", restored=None
    )
    chosen = (spec.features.model_dump_json(), spec.window.model_dump_json(), spec.model.init_from or "")
    chosen += () if spec.evaluation.group is None else (spec.evaluation.group,)
    chosen += () if choice is None else (choice.source,)
    return hashlib.sha256("\n".join((without_data.fingerprint, *chosen)).encode()).hexdigest()


_PARTS_OF_A_JOB = {
    "the code of the model": ("model_function", "script", "decode", "code_version"),
    "the platform or an installed package": ("loop_version", "packages"),
    "the settings": ("objective", "hyperparameters", "arguments", "seed", "settings"),
}
"""Parts of a training, named for people → fields of the job."""
_DATA_OF_A_JOB = {
    "the rows": ("snapshot_digest", "schema_hash"),
    "the version that it begins with": ("initial_weights",),
}
"""Data of a training, named for people → fields of the job."""


class RestoreRefused(BuildRefused):
    """A checkpoint cannot be continued exactly: rows, code or settings differ from those of its training."""


def require_same_training(job: TrainingJob, origin: TrainingJob) -> None:
    """Raise `RestoreRefused`, which names the changed parts, if a checkpoint of `origin` is not a state of `job`."""
    if (
        dataclasses.replace(job, restored=None).fingerprint
        == dataclasses.replace(origin, restored=None).fingerprint
    ):
        return
    parts = {**_PARTS_OF_A_JOB, **_DATA_OF_A_JOB}
    changed = [what for what, of in parts.items() if any(getattr(job, f) != getattr(origin, f) for f in of)]
    raise RestoreRefused(
        f"{job.model} {job.partition} cannot begin with a checkpoint of training {origin.fingerprint[:16]}: "
        f"{' and '.join(changed)} changed since. A checkpoint is the state of one configuration on the same rows. "
        f"Undo the change, or train anew: ml-assets launch {job.model} {job.partition}"
    )


class DeclarationChanged(BuildRefused):
    """The declaration or the code changed after a training set was frozen."""


def require_as_frozen(spec: PipelineSpec, training_set: TrainingSet, *, is_trained: bool = False) -> None:
    """Refuse a training set that was frozen for other settings or code than the current ones.

    A run that continues a failed run keeps the job of that run, but workers import the current code: the record would
    name code that the weights do not come from. A model function may also be edited during a training. Gates do not
    count. Raises `DeclarationChanged`, which names the changed parts.
    """
    job, choice = training_set.job, training_set.choice
    # A newer result of a study does not count: the training set holds the values of the result that it was frozen for.
    now = training_job(
        spec.with_choice(choice),
        job.partition,
        Path(job.snapshot),
        job.snapshot_digest,
        job.initial_weights,
        job.schema_hash,
    )
    if job.foreign:
        now = foreign_job(now, job.foreign)
    if training_set.settings == settings_digest(spec, now, choice):
        return
    changed = [
        what for what, of in _PARTS_OF_A_JOB.items() if any(getattr(job, f) != getattr(now, f) for f in of)
    ]
    kept = " Its weights are kept: if you undo the change, this run can continue." if is_trained else ""
    whose = f"{job.model} {job.partition}"
    raise DeclarationChanged(
        f"{whose} cannot continue: {' and '.join(changed) or 'columns, lists or window'} changed since its training "
        f"set was frozen. Materialize {whose} again to train the current declaration.{kept}"
    )
