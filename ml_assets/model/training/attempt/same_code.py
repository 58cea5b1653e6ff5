"""Comparison of the code and packages of this process with those that the job names.

The record of a training names versions of code. An attempt imports the code anew: a file edited between two attempts,
or an image built from other files, would give weights that the record does not describe.

Here too: the version of the platform's own modules that run in the workers. It takes 0.4 s to compute, since it follows
imports and compares meaning. Equal text has an equal version and takes a twentieth of that. Not here: versions of other
code (ml_assets.foundation.code), the comparison before a launch (steps.identity).
"""

import hashlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import ml_assets
from ml_assets.foundation.code.code_version import (
    SourceUnavailable,
    modules_version,
    public_version,
    python_version,
    versions_of,
)
from resources.job.errors import InputChanged
from resources.job.job import TrainingJob


def refuse_other_code(job: TrainingJob, *, is_pod: bool) -> None:
    """Raise `InputChanged` if this machine has other code or other packages than `job` names.

    Compares the model function or script, `decode`, the platform's modules in workers, and each installed package with
    a version in the job. Packages that only other systems install are left out. A job made by hand, without versions,
    is not compared.
    """
    changes = [*_changed_code(job), *_changed_platform(job), *_changed_packages(job)]
    if not changes:
        return
    remedy = (
        "A pod runs the code and packages of its image: build the image from the code that was submitted, or submit "
        "what the image holds"
        if is_pod
        else "Materialize the model again, which trains the code as it is now; or restore the code, and the training "
        "resumes from its last checkpoint"
    )
    raise InputChanged(
        f"the code changed after this training was submitted: {'; '.join(changes)}. No step was trained with it. "
        f"{remedy}"
    )


def _changed_code(job: TrainingJob) -> Iterator[str]:
    if not job.code_version:
        return
    try:
        found = versions_of(job.script, (job.model_function, job.decode))
    except SourceUnavailable as error:
        yield str(error)
        return
    submitted = job.code_version.split("-")
    if len(submitted) != len(found):
        yield f"{', '.join(found)} have version {'-'.join(found.values())}, submitted was {job.code_version}"
        return
    for (path, version), wanted in zip(found.items(), submitted, strict=True):
        if version != wanted:
            yield f"{path} has version {version}, submitted was {wanted}"


def _changed_platform(job: TrainingJob) -> Iterator[str]:
    if not job.loop_version or platform_text() == job.platform_text:
        return
    found = loop_version(job.script)
    if found != job.loop_version:
        yield f"the platform (ml_assets.model.training) has version {found}, submitted was {job.loop_version}"


def _changed_packages(job: TrainingJob) -> Iterator[str]:
    for name, wanted in job.packages.items():
        if name == "python":
            found = python_version()
        else:
            try:
                found = public_version(metadata.version(name))
            except metadata.PackageNotFoundError:
                continue
        if found != wanted:
            yield f"{name} is {found}, submitted was {wanted}"


_NODE = ("ml_assets.model.training.node.torchrun", "ml_assets.model.training.node.agent")
_LOOP = "ml_assets.model.training.entry"
_SCRIPT = "ml_assets.model.training.script.script_rank"
_CHANGES_NO_WEIGHTS = (
    "resources",  # documents, whose values are in the fingerprint, and transport, whose bytes have digests
    "ml_assets.model.training.telemetry",
    "ml_assets.model.training.attempt",
    "ml_assets.model.training.process.heartbeat",
)
"""Modules that only report on a training or count its attempts: none of them handles a tensor."""


def worker_modules(script: str) -> tuple[list[str], list[str]]:
    """Return the modules that a worker begins with, and the modules behind them that do not count.

    `script` is the pipeline's script, or empty if it has a model function.
    """
    # Another version of XGBoost does not change the training of a torch module.
    without = [*_CHANGES_NO_WEIGHTS, *([] if script else ["ml_assets.model.training.script"])]
    return [*_NODE, _SCRIPT if script else _LOOP], without


def loop_version(script: str) -> str:
    """Return the version of the platform's modules that run in the workers: 16 hex digits."""
    names, without = worker_modules(script)
    return modules_version(names, without=without)


def platform_text() -> str:
    """Return the SHA-256 of the names and texts of all modules of the platform, as they are on this machine."""
    folder = Path(ml_assets.__path__[0])
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()
