"""Registered version that a command is about."""

from typing import TYPE_CHECKING, Any

import click

from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project
from resources.words import whole_number

if TYPE_CHECKING:
    from ml_assets.model.release.registry import RegisteredVersion


class _VersionNumber(click.ParamType):
    """Number of a version in plain digits. Click reads `1_0` as version 10."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; a usage error for another text."""
        number = value if isinstance(value, int) else whole_number(str(value))
        if number is None:
            self.fail(f"'{value}' is not the number of a version: write digits, such as 3", param, ctx)
        return number


VERSION = _VersionNumber()


def registered(project: Project, model: str, number: int | None) -> "RegisteredVersion":
    """Return version `number` of a model; None: the version in production, or else the newest.

    Raises `Problem` for a model that is not declared, or has no version, and `VersionMissing` with the versions.
    """
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.steps.record import version_to_show

    version = version_to_show(project.platform, model, number)
    if version is None:
        project.component(TrainingPipeline, model)  # `Problem` with the names there are
        raise Problem(f"{model} has no registered version yet. To make one: ml-assets launch {model} DATE")
    return version
