"""Initial weights from an earlier training (fine-tuning), as a file in the job's folder.

    initial.safetensors     put there before the workers start; the job names its SHA-256

They replace every value of the pipeline's own model. The fill for missing numbers comes from the snapshot. Not here:
the choice of weights (release.initial_version), resuming this training (checkpoints).
"""

# pyright: reportUnknownVariableType=false
# (the annotations of safetensors are partial)

from pathlib import Path
from typing import TYPE_CHECKING

from ml_assets.data.snapshots.split_reader import file_sha256
from resources.artifacts import Artifacts
from resources.files import link_or_copy, whole_file
from resources.job.errors import BadConfiguration, InputChanged
from resources.job.job import TrainingJob

if TYPE_CHECKING:  # a pod stages this file before it imports torch
    from ml_assets.model.training.data.preprocess import FullModel

INITIAL = "initial.safetensors"
_CORE = "core."
"""Prefix of the pipeline's own model in the names of a weights file."""


def hand_over(weights: Path, artifacts: Artifacts, name: str) -> None:
    """Put the file `weights` where the workers of the job in folder `name` begin with it. Safe to repeat."""
    place = artifacts.folder(name) / INITIAL
    with whole_file(place) as writing:
        link_or_copy(weights, writing)
    artifacts.push(name, [INITIAL])


def begin_with(model: "FullModel", job: TrainingJob, folder: Path) -> None:
    """Overwrite the initial weights of `model` with the file that the job names.

    Raises `InputChanged` if the file's digest differs from the job's, `BadConfiguration` if its names or shapes differ
    from the model's. A model that took over only a part of the weights would look like one that learned badly.
    """
    from safetensors.torch import load_file

    file = folder / INITIAL
    found = file_sha256(file) if file.exists() else "missing"
    if found != job.initial_weights:
        raise InputChanged(
            f"{file} has digest {found[:12]}, but the job starts from {job.initial_weights[:12]}: launch it again, "
            "which copies the file again"
        )
    there = {
        name.removeprefix(_CORE): value for name, value in load_file(file).items() if name.startswith(_CORE)
    }
    own = model.core.state_dict()
    shapes = {name: (tuple(there[name].shape), tuple(own[name].shape)) for name in there.keys() & own.keys()}
    unlike = [
        *(f"{name}: not in init_from" for name in own.keys() - there.keys()),
        *(f"{name}: only in init_from" for name in there.keys() - own.keys()),
        *(f"{name}: {old} in init_from, {new} here" for name, (old, new) in shapes.items() if old != new),
    ]
    if unlike:
        raise BadConfiguration(
            f"{job.model_function} cannot start from these weights, {len(unlike)} values differ: "
            f"{'; '.join(sorted(unlike))}. Use the function and hyperparameters that init_from was trained with, or "
            "leave init_from out"
        )
    model.core.load_state_dict(there)
