"""`ml-assets reproduce`: train a version again and say how much of it came back."""

import dataclasses
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ml_assets.cli.project import Project, say, say_aside

if TYPE_CHECKING:
    from ml_assets.model.release.registry import RegisteredVersion
    from ml_assets.model.steps.reproduce import Level, Reproduction


@click.command("reproduce", short_help="Train a version again and compare weights, predictions, metrics.")
@click.argument("version", metavar="MODEL/VERSION|RUN")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Number of workers. Default: that of the training."
)
@click.option(
    "--level",
    type=click.Choice(["weights", "predictions", "metrics"]),
    help="Level that must hold. Default: the one that the training's determinism promises.",
)
@click.option("--code", is_flag=True, help="Train with the recorded code, checked out in a scratch folder.")
@click.option(
    "--environment", is_flag=True, help="Train with the recorded packages, in an environment of their own."
)
@click.option("--with-this-code", is_flag=True, help="Train with the code and packages of this machine.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the comparison as a JSON object on the last line."
)
def command(
    version: str,
    workers: int | None,
    level: str | None,
    code: bool,
    environment: bool,
    with_this_code: bool,
    as_json: bool,
) -> None:
    """Train MODEL/VERSION again on this machine, and compare it with what was recorded.

    RUN is the id of a Dagster run that evaluated a version. Rows come from the recorded commit of the lake, settings
    and seed from the recorded job. Code, lock and packages must be those of its launch: --code and --environment
    restore them. Nothing is stored. The exit status is 0 if the level held.
    """
    from rich.console import Console

    from ml_assets.cli.problems import Problem
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.steps.reproduce import reproduce

    if with_this_code and (code or environment):
        raise click.UsageError(
            "--with-this-code trains with what is here: leave --code and --environment out"
        )
    project = Project.here()
    found = _version(project, version)
    if code or environment:
        asked = {"--workers": workers, "--level": level}
        options = [text for name, value in asked.items() if value is not None for text in (name, str(value))]
        options += ["--json"] if as_json else []
        sys.exit(_restored(project, found, options, code=code, environment=environment))
    spec = project.component(TrainingPipeline, found.model).spec
    console = Console(stderr=True)
    with console.status(f"{found.model} {found.number}: training again") as status:
        made = reproduce(
            spec,
            project.platform,
            found,
            workers=workers,
            with_this_code=with_this_code,
            on_log=lambda text: status.update(f"{found.model} {found.number}: {text}"),
        )
    wanted = made.expected if level is None else cast("Level", level)
    if as_json:
        say(json.dumps(dataclasses.asdict(made)))
    else:
        _tell(made, wanted)
    if not made.reaches(wanted):
        raise Problem(f"{found.model} {found.number} was not reproduced: {wanted} differ")


def _restored(
    project: Project, version: "RegisteredVersion", options: list[str], *, code: bool, environment: bool
) -> int:
    """Run this command with the recorded code, the recorded packages or both; return its exit status."""
    from rich.console import Console

    from ml_assets.foundation.checkout import ROOT
    from ml_assets.model.steps.recorded_environment import locked_interpreter, recorded_tree, run_in
    from ml_assets.model.steps.reproduce import recorded_launch

    launch = recorded_launch(project.platform, version)
    with ExitStack() as scratch:
        tree, python = ROOT, Path(sys.executable)
        if code:
            tree = scratch.enter_context(recorded_tree(project.platform, launch))
            on_top = f" with changes {launch.difference[:12]}" if launch.difference else ""
            say_aside(f"code: commit {launch.commit[:12]}{on_top}")
        if environment:
            with Console(stderr=True).status("installing the recorded packages: minutes for the first time"):
                python = locked_interpreter(project.platform, launch)
            say_aside(f"packages: {python.parent.parent}")
        named = f"{version.model}/{version.number}"
        return run_in(tree, python, project.settings.home, ["reproduce", named, *options])


def _tell(made: "Reproduction", wanted: "Level") -> None:
    width = max(len(one.what) for one in made.compared)
    for one in made.compared:
        mark = "same" if one.is_same else "OTHER"
        beside = one.recorded if one.recorded == one.again else f"{one.recorded}; again: {one.again}"
        say(f"{mark:5}  {one.what:{width}}  {beside}")
    say(f"level that held with {made.workers} workers: {made.level}; expected: {wanted}")
    if wanted == "none":
        say(
            "A script has batches of its own, so another number of workers promises nothing. --level asks for a level"
        )


def _version(project: Project, named: str) -> "RegisteredVersion":
    from ml_assets.cli.problems import Problem
    from ml_assets.cli.registered import registered
    from ml_assets.model.release.releases import registry_of

    model, _, number = named.partition("/")
    if number.isdecimal():
        return registered(project, model, int(number))
    log = project.platform.ledger.models
    for model in log.models():
        for row in log.evaluations(model):
            if row.run_id == named:
                for one in registry_of(project.platform).versions(model):
                    if one.bundle_digest == row.bundle_digest:
                        return one
    raise Problem(
        f"'{named}' is neither MODEL/VERSION nor a run that evaluated a registered version: ml-assets history MODEL "
        "shows the versions"
    )
