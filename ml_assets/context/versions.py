"""Registered versions by what a person calls them: number, alias, or the run that evaluated them."""

from ml_assets.context.errors import NotFound
from ml_assets.context.project import Project
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import registry_of
from ml_assets.model.steps.record import version_to_show


def registered_version(project: Project, model: str, number: int | None = None) -> RegisteredVersion:
    """Return version `number` of a model; None: the version in production, or else the newest.

    Raises `NotFound` for a model that is not declared, or has no version, and `VersionMissing` with the versions.
    """
    version = version_to_show(project.platform, model, number)
    if version is None:
        project.declared.pipeline(model)  # `NotFound` with the names there are
        raise NotFound(f"{model} has no registered version yet. To make one: ml-assets launch {model} DATE")
    return version


def version_named(project: Project, named: str) -> RegisteredVersion:
    """Return the version `MODEL/NUMBER`, or the one that the Dagster run with the id `named` evaluated.

    Raises `NotFound` and `VersionMissing`.
    """
    model, _, number = named.partition("/")
    if number.isdecimal():
        return registered_version(project, model, int(number))
    log = project.platform.ledger.models
    for model in log.models():
        for row in log.evaluations(model):
            if row.run_id == named:
                for one in registry_of(project.platform).versions(model):
                    if one.bundle_digest == row.bundle_digest:
                        return one
    raise NotFound(
        f"'{named}' is neither MODEL/VERSION nor a run that evaluated a registered version: ml-assets history MODEL "
        "shows the versions"
    )
