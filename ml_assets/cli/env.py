"""`ml-assets env`: create an environment, list, compare, merge and drop it."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from ml_assets.cli.data import primary_keys_of
from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say
from ml_assets.cli.written import html_option, show
from resources.words import counted, name_some


@click.group(
    "env",
    cls=SuggestingGroup,
    short_help="Work in an environment: a branch of the lake; compare, merge, drop it.",
)
def command() -> None:
    """Work in an environment: a branch of the lake in place of main, with a ledger, tracking and Dagster of its own.

    Every command works in the environment that ML_ASSETS_ENV names. These five always look at it from main.
    """


@command.command("create", short_help="Create an environment at main's head, without a copy of data.")
@click.argument("name")
def create(name: str) -> None:
    """Create environment NAME at main's head. No data is copied. NAME has small letters, digits and _."""
    from ml_assets.data.tables.environments.environment import create_environment

    project = Project.on_main()
    made = create_environment(project.platform, name, project.settings.author)
    say(f"Environment {name} begins at commit {made.origin[:12]} of main. No data was copied.")
    say(f"To work in it: export ML_ASSETS_ENV={name}      To work on main again: unset ML_ASSETS_ENV")


@command.command("list", short_help="List the environments of this home.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def list_(as_json: bool) -> None:
    """List the environments of this home: author, time, changed partitions, conflicts with main."""
    from ml_assets.data.tables.environments.environment import changes_of
    from resources.lake.environments import environments

    project = Project.read_only(on_main=True)
    found = [changes_of(project.platform, one) for one in environments(project.settings.home)]
    if as_json:
        facts = [
            {
                **asdict(one.environment),
                "created_at": one.environment.created_at.isoformat(),
                "changed": one.changed,
                "conflicts": one.conflicts,
            }
            for one in found
        ]
        say(json.dumps(facts, indent=1))
        return
    for one in found:
        conflicts = sum(map(len, one.conflicts.values()))
        say(
            f"{one.environment.name}  by {one.environment.author}, {one.environment.created_at:%Y-%m-%d %H:%M} UTC, "
            f"{counted(one.partitions, 'changed partition')}"
            + (f", {counted(conflicts, 'conflict')} with main" if conflicts else "")
        )
    if not found:
        say("no environment; to create one: ml-assets env create NAME")


@command.command("diff", short_help="Show which partitions, rows, columns and models differ from main.")
@click.argument("name")
@click.option("--no-rows", is_flag=True, help="Compare manifests and profiles only; read no data file.")
@click.option(
    "--markdown", is_flag=True, help="Print a comment for a pull request: short enough, with a mark."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@html_option
def diff(name: str, no_rows: bool, markdown: bool, as_json: bool, html: Path | None) -> None:
    """Compare environment NAME with the commit of main at which it began, and its models with main's.

    Changes of main since then are not shown, except conflicts: partitions that both changed.
    """
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.data.tables.environments.environment import changes_of
    from ml_assets.data.tables.history.diff import compare_lake
    from ml_assets.model.steps.difference_page import as_comment, environment_page
    from ml_assets.model.steps.version_difference import models_trained_in
    from resources.lake.environments import read_environment

    project = Project.read_only(on_main=True)
    main = project.platform
    environment = read_environment(project.settings.home, name)
    changes = changes_of(main, environment)
    difference = compare_lake(
        main.whole_lake, environment.base, changes.head, primary_keys_of(project), read_rows=not no_rows
    )
    specs = {one.spec.name: one.spec for one in project.components(TrainingPipeline)}
    models = models_trained_in(main, main.inside(name), specs)
    page = environment_page(changes, difference, models)
    if as_json:
        facts = [
            {"model": one.model, "decision": one.decision, "main": one.main, "metrics": one.metrics}
            for one in models
        ]
        say(json.dumps({**asdict(difference), "conflicts": changes.conflicts, "models": facts}, indent=1))
    elif markdown:
        say(as_comment(page, name).rstrip())
    else:
        show(page, html)


@command.command("merge", short_help="Make the environment's partitions main's, without building them again.")
@click.argument("name")
def merge(name: str) -> None:
    """Merge the changed partitions of environment NAME into main, with their verdicts. Nothing is built again.

    It is refused, and changes nothing, if main changed one of the same partitions, or if a partition is rejected.
    """
    from ml_assets.data.tables.environments.merge import merge_environment

    main = Project.on_main().platform
    merged = merge_environment(main, name, main.acting)
    for table, keys in merged.partitions.items():
        say(f"{table}: {counted(len(keys), 'partition')}: {name_some(keys, 3)}")
    if merged.overtaken:
        say(f"another run changed these meanwhile, and main keeps its rows: {name_some(merged.overtaken)}")
    if merged.partitions:
        say(f"merged into main at commit {merged.commit[:12]}; nothing was built again")
    else:
        say(f"environment {name} changed no partition: nothing to merge")


@command.command("drop", short_help="Delete an environment: its branches, ledger, tracking and Dagster home.")
@click.argument("name")
def drop(name: str) -> None:
    """Delete environment NAME: its branches of the lake, its ledger, tracking and Dagster home. Main stays as it is."""
    from ml_assets.data.tables.environments.environment import drop_environment

    drop_environment(Project.on_main().platform, name)
    say(f"Environment {name} is gone.")
