"""Registered version that a command is about."""

from typing import TYPE_CHECKING

from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project

if TYPE_CHECKING:
    from ml_assets.release.registry import RegisteredVersion


def registered(project: Project, model: str, number: int | None) -> "RegisteredVersion":
    """Return version `number` of a model; None: the version in production, or else the newest.

    Raises `Problem` for a model that is not declared, or has no version, and `VersionMissing` with the versions.
    """
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.pipeline.model_card import version_to_show

    version = version_to_show(project.platform, model, number)
    if version is None:
        project.component(TrainingPipeline, model)  # `Problem` with the names there are
        raise Problem(f"{model} has no registered version yet. To make one: ml-assets launch {model} DATE")
    return version
