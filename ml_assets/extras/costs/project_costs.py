"""Costs of the trainings of a project, as a person asks for them: sums over all, or one by its version or its run.

Not here: the sums (costs).
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from ml_assets.context.errors import NotFound
from ml_assets.context.project import Project
from ml_assets.context.runs import Runs
from ml_assets.context.versions import version_named
from ml_assets.extras.costs.budget import BudgetState, budgets_of
from ml_assets.extras.costs.costs import By, Costs, TrainingCost, cost_of, costs_of, read_records, settled
from ml_assets.extras.costs.prices import read_prices
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.steps.usage import read_usage
from resources.words import did_you_mean


def all_costs(project: Project, by: By, since: date | None) -> Costs:
    """Return the costs of all trainings; see `Context.costs`."""
    settings = project.settings
    prices = read_prices(settings.prices)
    groups: dict[str, str] = {}
    if by == "group":
        groups = {name: spec.group_name for name, spec in project.declared.pipelines().items()}
    records = read_records(project.platform.artifacts, settings.environment, settings.env)
    return costs_of(records, prices, by, since, groups)


def all_budgets(project: Project) -> list[BudgetState]:
    """Return the budgets of this month; see `Context.budgets`."""
    settings = project.settings
    prices = read_prices(settings.prices)
    if prices is None or not prices.monthly_budget:
        return []
    known = project.declared.pipelines()
    return [
        one if one.model in known else replace(one, wrong=_undeclared(one.model, known))
        for one in budgets_of(read_records(project.platform.artifacts, settings.environment), prices)
    ]


def _undeclared(name: str, known: Iterable[str]) -> str:
    return f"no pipeline is named {name!r}, so it limits nothing{did_you_mean(name, [*known])}"


def training_cost(project: Project, training: str) -> TrainingCost:
    """Return the costs of one training; see `Context.training_cost`."""
    prices = read_prices(project.settings.prices)
    artifacts = project.platform.artifacts
    model, fingerprint = _fingerprint(project, training)
    record = read_usage(artifacts, model, fingerprint)
    if record is None:
        raise NotFound(
            f"the training of {training} has no record of what it reserved: it waits for its first place, or was made "
            "by a release before 2026-11-30. Trainings from now on have a record"
        )
    return cost_of(settled(artifacts, record), prices)


def _fingerprint(project: Project, training: str) -> tuple[str, str]:
    """Return model and fingerprint of the training of a version or a run. Raises `NotFound`."""
    if "/" in training:
        version = version_named(project, training)
        bundle = bundles_of(project.platform).open(version.bundle_digest)
        return version.model, bundle.facts.lineage.fingerprint
    runs = Runs(project)
    run = runs.training(training)
    found = runs.training_set(run)
    if not found:
        raise NotFound(
            f"the run {training} froze no training set, so it trained nothing: ml-assets ui shows why"
        )
    return run.model, str(found["fingerprint"])
