"""`ml-assets launch`: materialize a model or a table in this process."""

import click

from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say


@click.command("launch", short_help="Materialize a model or a table in this process.")
@click.argument("target")
@click.argument("partitions", required=False)
def command(target: str, partitions: str | None) -> None:
    """Materialize TARGET for PARTITIONS.

    TARGET is a model (`flight_delay`: its whole execution set) or a table (`datasets/flights`). PARTITIONS is one
    key (`2013-12-31`), a range of a table (`2013-01-01..2013-12-31`), or left out for a table without partitions.
    """
    import dagster as dg
    from rich.console import Console

    from ml_assets.cli.runs import materialize
    from ml_assets.components.training_pipeline import STAGES, TrainingPipeline

    project = Project.here()
    if "/" in target:
        keys = [dg.AssetKey(target.split("/"))]
    else:
        pipeline = project.component(TrainingPipeline, target)
        keys = [dg.AssetKey([pipeline.spec.name, stage]) for stage in STAGES]
        pipeline.spec.partitions.as_cadence.bounds(partitions or "")  # refuses what is no key of this model
    _require_known(project, keys)
    first, _, last = (partitions or "").partition("..")
    console = Console(stderr=True)
    with console.status(f"{target} {partitions or ''}") as status:
        finished = materialize(
            project,
            keys,
            partition=first or None,
            last=last or None,
            on_progress=lambda text: status.update(f"{target}: {text}"),
        )
    say(f"{target} {partitions or ''}: {finished.materialized} materializations in {finished.seconds:.1f} s")
    for key, facts in finished.metadata.items():
        shown = {
            name: facts[name]
            for name in ("verdict", "auc", "logloss", "rmse", "version", "gate", "next")
            if name in facts
        }
        if shown:
            say(f"  {key.to_user_string()}: " + ", ".join(f"{name} {value}" for name, value in shown.items()))
    for key, text in finished.observed.items():
        say(f"  {key.to_user_string()}: {text}")
    say(f"  run {project.settings.ui_url}/runs/{finished.run_id}")


def _require_known(project: Project, keys: list) -> None:
    known = project.defs.resolve_asset_graph().get_all_asset_keys()
    for key in keys:
        if key not in known:
            tables = sorted(one.to_user_string() for one in known if one.path[0] in ("datasets", "features"))
            raise Problem(f"no asset is named '{key.to_user_string()}'; tables are: {', '.join(tables)}")
