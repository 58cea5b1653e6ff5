"""`ml-assets launch`: materialize a model or a table in this process."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say

if TYPE_CHECKING:
    import dagster as dg

SHOWN = ("verdict", "auc", "logloss", "rmse", "version", "gate", "next")
"""What of a materialization's metadata a terminal shows."""


@click.command("launch", short_help="Materialize a model or a table in this process.")
@click.argument("target")
@click.argument("partitions", required=False)
@click.option(
    "--resources",
    metavar="CHANGES",
    help="What this launch's workers get on a cluster other than declared: memory=8Gi,nodes=2, or a JSON object.",
)
def command(target: str, partitions: str | None, resources: str | None) -> None:
    """Materialize TARGET for PARTITIONS.

    TARGET is a model (`flight_delay`: validated, trained, evaluated, registered) or a table (`datasets/flights`).
    PARTITIONS is one key (`2013-12-31`), a range of a table (`2013-01-01..2013-12-31`), or left out for a table
    without partitions.
    """
    import dagster as dg
    from rich.console import Console

    from ml_assets.cli.partitions import typed_range
    from ml_assets.cli.runs import materialize
    from ml_assets.components.pages import counted
    from ml_assets.components.steps.train import RESOURCES
    from ml_assets.components.training_pipeline import STAGES, TrainingPipeline
    from resources.launcher.profile import changes_of

    project = Project.here()
    if "/" in target:
        if resources is not None:
            raise Problem(f"--resources are those of a model's workers; {target} is a table")
        keys = [dg.AssetKey(target.split("/"))]
    else:
        _require_no_table(project, target)
        pipeline = project.component(TrainingPipeline, target)
        keys = [dg.AssetKey([pipeline.spec.name, stage]) for stage in STAGES]
        # Refused now rather than after the snapshot.
        pipeline.spec.resources.of(partitions or "", changes_of(resources or ""))
    _require_known(project, keys)
    first, last = typed_range(
        target, project.defs.resolve_asset_graph().get(keys[0]).partitions_def, partitions
    )
    if last is not None and len(keys) > 1:
        raise Problem(f"a model is trained for one partition at a time: ml-assets launch {target} {last}")
    tags = {RESOURCES: resources} if resources is not None else {}
    console = Console(stderr=True)
    with console.status(f"{target} {partitions or ''}") as status:
        finished = materialize(
            project,
            keys,
            partition=first,
            last=last,
            tags=tags,
            on_progress=lambda text: status.update(f"{target}: {text}"),
        )
    made = counted(finished.materialized, "materialization")
    say(f"{' '.join(filter(None, (target, partitions)))}: {made} in {finished.seconds:.1f} s")
    for key, facts in finished.metadata.items():
        shown = [f"{name} {_short(facts[name])}{_naive(facts, name)}" for name in SHOWN if name in facts]
        if shown:
            say(f"  {key.to_user_string()}: {', '.join(shown)}")
    for key, text in finished.observed.items():
        say(f"  {key.to_user_string()}: {text}")
    for report in {facts["report"]: None for facts in finished.metadata.values() if "report" in facts}:
        say(f"  report {report}")
    say(f"  run {project.settings.ui_url}/runs/{finished.run_id}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _naive(facts: Mapping[str, Any], name: str) -> str:
    """What the naive baseline reached, beside what the model did."""
    value = facts.get(f"baseline_{name}")
    return f" (naive {_short(value)})" if value is not None else ""


def _require_no_table(project: Project, name: str) -> None:
    for key in project.defs.resolve_asset_graph().get_all_asset_keys():
        if key.path[0] in ("datasets", "features") and key.path[-1] == name:
            raise Problem(f"'{name}' is a table: ml-assets launch {key.to_user_string()} PARTITIONS")


def _require_known(project: Project, keys: Sequence["dg.AssetKey"]) -> None:
    known = project.defs.resolve_asset_graph().get_all_asset_keys()
    for key in keys:
        if key not in known:
            tables = sorted(one.to_user_string() for one in known if one.path[0] in ("datasets", "features"))
            raise Problem(f"no asset is named '{key.to_user_string()}'; tables are: {', '.join(tables)}")
