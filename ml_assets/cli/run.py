"""`ml-assets demo`, `plan`, `launch`, `reproduce`, `serve`: build models and answer requests with them."""

import dataclasses
import json
import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from pydantic import ValidationError

from ml_assets.cli.opened import reading, writing
from ml_assets.cli.terminal import Problem, progress, say, say_aside
from ml_assets.foundation.checkout import ROOT
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.components.specs import TrainingPipelineSpec
    from ml_assets.context import Context
    from ml_assets.context.launch import Finished
    from ml_assets.context.project import Project
    from ml_assets.extras.reproduction.reproduce import Level, Reproduction
    from ml_assets.model.release.registry import RegisteredVersion
    from ml_assets.use.serving.answering import ServerParts
    from ml_assets.use.serving.online_lookup import OnlineLookup
    from ml_assets.use.serving.watch import Declaration


@click.command("demo")
@click.option("--json", "as_json", is_flag=True, help="Print the results as a JSON object on the last line.")
@click.option(
    "--replay",
    metavar="DAYS",
    help="Replay past days instead, such as 14d, one after another under Dagster's pages and daemon, in a home of its "
    "own.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of the pages of a replay. Default: 3000, or the next free one.",
)
@click.option("--stay", is_flag=True, help="After the last day of a replay, serve the pages until Ctrl-C.")
def demo(as_json: bool, replay: str | None, port: int | None, stay: bool) -> None:
    """Ingest 365 days of flights and weather, build features, train with two processes, evaluate, register.

    With `--replay`, days of the winter of 2013 come one after another, once the day before was handled. Sensors and a
    schedule run by themselves. Some days are damaged on purpose; each event that matters is a line with an address.
    """
    if replay is None:
        from ml_assets.cli import demo as work

        if port is not None or stay:
            raise Problem("--port and --stay are for a replay: add --replay 14d, or leave them out")
        work.demo(as_json)
    else:
        from ml_assets.cli import replay as shown

        if as_json:
            raise Problem("--json is for the demo without --replay: leave one of them out")
        shown.replay(replay, port, stays=stay)


@click.command("plan")
@click.argument("model")
@click.argument("partition", required=False)
def plan(model: str, partition: str | None) -> None:
    """Show what a launch of MODEL at PARTITION would run, and which partitions are missing, rejected or stale.

    Without PARTITION it is the newest. Changes nothing.
    """
    from ml_assets.cli.plan import say_plan

    say_plan(reading().plan(model, partition))


@click.command("launch")
@click.argument("target", required=False)
@click.argument("partitions", required=False)
@click.option(
    "--resources",
    metavar="CHANGES",
    help="Resources of this launch's workers on a cluster, instead of the declared ones: memory=8Gi,nodes=2, or a JSON "
    "object.",
)
@click.option("--with-missing", is_flag=True, help="First build here what TARGET reads and nobody built.")
@click.option(
    "--restore",
    metavar="RUN/STEP",
    help="Train on from this checkpoint of the training of a run, as a new training of the same rows and settings.",
)
@click.option(
    "-f",
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Train the `model` at the `partition` of this YAML file, with the resources under its `config`, as the API "
    "does for POST /api/v1/training-runs.",
)
def launch(
    target: str | None,
    partitions: str | None,
    resources: str | None,
    with_missing: bool,
    restore: str | None,
    file: Path | None,
) -> None:
    """Materialize TARGET for PARTITIONS.

    TARGET is a model (`flight_delay`: validated, trained, evaluated, registered), its study
    (`flight_delay/hyperparameters`, if it declares `tuning`), its predictions and their live performance
    (`flight_delay/predictions`, `flight_delay/live`, if it declares `scoring`), a table (`datasets/flights`), or the
    online store of a feature table (`features/sales_features/online`, if it declares `online`).
    PARTITIONS is one key (`2013-12-31`) or, for a table, predictions or their performance, a range
    (`2013-01-01..2013-12-31`). Leave it out for a table
    without partitions.
    """
    if restore is not None:
        if target is not None or file is not None or with_missing:
            raise click.UsageError(
                "--restore names the training: leave TARGET, --file and --with-missing out"
            )
        run_id, _, step = restore.rpartition("/")
        if not run_id or not step.isdecimal():
            raise click.UsageError(
                f"--restore {restore}: give the id of a run and a step, such as 0d3c5d9e/40"
            )
        _restore(writing(), run_id, int(step), resources)
        return
    if file is not None:
        from ml_assets.context.launch_document import read_training

        if target is not None or resources is not None:
            raise click.UsageError(
                "--file names model, partition and resources: leave TARGET and --resources out"
            )
        asked = read_training(file)
        target, partitions, resources = asked.model, asked.partition, asked.resources
    if target is None:
        raise click.UsageError("name a TARGET, or a file with --file")
    context = writing()
    for table, keys in context.missing_behind(target, partitions) if with_missing else ():
        _launch(context, table, keys)
    _launch(context, target, partitions, resources)


def _launch(context: "Context", target: str, partitions: str | None, resources: str | None = None) -> None:
    """Run it and print its result."""
    with progress().status(f"{target} {partitions or ''}") as status:
        finished = context.launch(
            target,
            partitions,
            resources=resources,
            on_progress=lambda text: status.update(f"{target}: {text}"),
        )
    _say_finished(context, " ".join(filter(None, (target, partitions))), finished)


def _restore(context: "Context", run_id: str, step: int, resources: str | None) -> None:
    """Train on from a checkpoint and print the result."""
    what = f"{context.runs.training(run_id).model} from step {step}"
    with progress().status(what) as status:
        finished = context.restore(
            run_id, step, resources=resources, on_progress=lambda text: status.update(f"{what}: {text}")
        )
    _say_finished(context, what, finished)


@click.command("register")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def register(file: Path) -> None:
    """Evaluate the model in FILE, which was trained elsewhere, and register it if no gate rejects it.

    FILE is the JSON document of POST /api/v1/models/register: an ONNX graph in base64, its inputs, golden rows, and the
    days that the model has seen. The holdout of the named partition measures it.
    """
    from ml_assets.context.foreign import read_foreign

    document, context = read_foreign(file), writing()
    what = f"{document.model} {document.partition} from {file.name}"
    with progress().status(what) as status:
        finished = context.register(document, on_progress=lambda text: status.update(f"{what}: {text}"))
    _say_finished(context, what, finished)


def _say_finished(context: "Context", what: str, finished: "Finished") -> None:
    made = counted(finished.materialized, "materialization")
    say(f"{what}: {made} in {finished.seconds:.1f} s")
    for key, facts in finished.metadata.items():
        shown = [f"{name} {_short(facts[name])}{_beside(facts, name)}" for name in SHOWN if name in facts]
        if shown:
            say(f"  {key.to_user_string()}: {', '.join(shown)}")
        if "naive" in facts:
            say(f"    naive: {facts['naive']}")
        if facts.get("decision") == "undecided":
            _say_doubts(context, key.path[0], finished.run_id)
    for key, text in finished.observed.items():
        first, *reasons = text.splitlines()
        say("\n".join([f"  {key.to_user_string()}: {first}", *(f"    {one}" for one in reasons)]))
    for report in {one["report_file"]: None for one in finished.metadata.values() if "report_file" in one}:
        say(f"  report {report}")
    say(f"  run {context.project.settings.ui_url}/runs/{finished.run_id}")


def _say_doubts(context: "Context", model: str, run_id: str) -> None:
    """Print each rule that is undecided: what it asks, what was measured, with its range, and what would pass."""
    evaluations = context.project.platform.ledger.models.evaluations(model)
    for rule in (rule for one in evaluations if one.run_id == run_id for rule in one.rules):
        if rule.result == "undecided":
            say(
                f"    undecided on {rule.slice}: {rule.found}; asked: {rule.asks}; would pass: {rule.would_pass}"
            )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _beside(facts: Mapping[str, Any], name: str) -> str:
    """Return a metric's values for the naive baseline and for the regression on the same columns; empty if unknown."""
    said = {"naive": facts.get(f"baseline_{name}"), "regression": facts.get(f"reference_{name}")}
    known = [f"{model} {_short(value)}" for model, value in said.items() if value is not None]
    return f" ({', '.join(known)})" if known else ""


@click.command("reproduce")
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
def reproduce(
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
    if with_this_code and (code or environment):
        raise click.UsageError(
            "--with-this-code trains with what is here: leave --code and --environment out"
        )
    from ml_assets.context.versions import version_named

    context = writing()
    project = context.project
    found = version_named(project, version)
    if code or environment:
        asked = {"--workers": workers, "--level": level}
        options = [text for name, value in asked.items() if value is not None for text in (name, str(value))]
        options += ["--json"] if as_json else []
        sys.exit(_restored(project, found, options, code=code, environment=environment))
    with progress().status(f"{found.model} {found.number}: training again") as status:
        made = context.reproduce(
            f"{found.model}/{found.number}",
            workers=workers,
            with_this_code=with_this_code,
            on_log=lambda text: status.update(f"{found.model} {found.number}: {text}"),
        )
    wanted = made.expected if level is None else cast("Level", level)
    if as_json:
        say(json.dumps(dataclasses.asdict(made)))
    else:
        _say_reproduced(made, wanted)
    if not made.reaches(wanted):
        raise Problem(f"{found.model} {found.number} was not reproduced: {wanted} differ")


def _restored(
    project: "Project", version: "RegisteredVersion", options: list[str], *, code: bool, environment: bool
) -> int:
    """Run this command with the recorded code, the recorded packages or both; return its exit status."""
    from ml_assets.extras.reproduction import recorded_environment, reproduce

    launch = reproduce.recorded_launch(project.platform, version)
    with ExitStack() as scratch:
        tree, python = ROOT, Path(sys.executable)
        if code:
            tree = scratch.enter_context(recorded_environment.recorded_tree(project.platform, launch))
            on_top = f" with changes {launch.difference[:12]}" if launch.difference else ""
            say_aside(f"code: commit {launch.commit[:12]}{on_top}")
        if environment:
            with progress().status("installing the recorded packages: minutes for the first time"):
                python = recorded_environment.locked_interpreter(project.platform, launch)
            say_aside(f"packages: {python.parent.parent}")
        named = f"{version.model}/{version.number}"
        return recorded_environment.run_in(
            tree, python, project.settings.home, ["reproduce", named, *options]
        )


def _say_reproduced(made: "Reproduction", wanted: "Level") -> None:
    width = max(len(one.what) for one in made.compared)
    for one in made.compared:
        mark = "same" if one.is_same else "OTHER"
        beside = one.recorded if one.recorded == one.again else f"{one.recorded}; again: {one.again}"
        say(f"{mark:5}  {one.what:{width}}  {beside}")
    say(f"level that held with {counted(made.workers, 'worker')}: {made.level}; expected: {wanted}")
    if wanted == "none":
        say(
            "A script has batches of its own, so another number of workers promises nothing. --level asks for a level"
        )


SHOWN = ("verdict", "chosen because", "decision", "auc", "logloss", "rmse", "version", "gate", "next")
"""Metadata of a materialization that a terminal shows."""
_ONLINE_PATIENCE_SECONDS = 0.5
"""Wait of one call to the online store. A request must not wait as long as a run does."""


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="MODEL…")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on. Nobody is authenticated."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one.")
@click.option(
    "--shadow", "shadows", multiple=True, metavar="MODEL/VERSION", help="Only log what this version predicts."
)
@click.option(
    "--online",
    is_flag=True,
    help="Take columns that a request leaves out from the online store, by the entity that it names.",
)
@click.option(
    "--poll-seconds", type=float, default=2.0, show_default=True, help="Seconds between looks at the ledger."
)
@click.option("--log-share", type=float, default=1.0, show_default=True, help="Share of requests in the log.")
@click.option(
    "--log-keep-days",
    type=int,
    default=90,
    show_default=True,
    help="Delete older days of the stored log; 0: none.",
)
@click.option(
    "--log-max-gib",
    type=float,
    default=0.0,
    show_default=True,
    help="Delete the oldest days of a model's stored log above this size; 0: any size.",
)
@click.option("--max-body-mib", type=float, default=4.0, show_default=True, help="Largest body of a request.")
@click.option("--max-rows", type=int, default=10_000, show_default=True, help="Most rows of a request.")
@click.option(
    "--max-connections",
    type=int,
    default=1024,
    show_default=True,
    help="Connections at once; a quarter of them of one address.",
)
@click.option(
    "--canary-seconds",
    type=float,
    default=1.0,
    show_default=True,
    help="Time that a request waits for a thread of its canary, and then for the prediction; then production "
    "answers.",
)
def serve(
    models: tuple[str, ...], host: str, port: int, shadows: tuple[str, ...], online: bool, **bounds: float
) -> None:
    """Answer requests for each MODEL with its version in production, until Ctrl-C.

    The server watches the ledger: after `promote`, `rollback` or `demote` it changes versions without a lost request. A
    canary answers its share of the entities (`release.canary` of the rules in force), or is a shadow.

    With --online, the feature table of each MODEL must declare `online`.
    """
    from ml_assets.use.serving import server

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("ml_assets.use.serving").setLevel(logging.INFO)
    try:
        settings = server.ServerSettings.model_validate(bounds)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise Problem(f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg']}") from None
    project = writing(patience_seconds=5.0).project
    of_shadows = _shadows(project, models, shadows)
    names = list(dict.fromkeys(models))
    declarations = [_declared(project.declared.pipeline(model), of_shadows.get(model, ())) for model in names]
    try:
        server.serve(
            project.platform,
            declarations,
            settings,
            host=host,
            port=port,
            on_start=_say_served,
            online={one: _online(project, one) for one in names} if online else None,
        )
    except OSError as error:
        raise Problem(
            f"cannot listen on {host}:{port} ({error.strerror or error}): end the process that does, or give another "
            "--port"
        ) from None


def _declared(spec: "TrainingPipelineSpec", shadows: tuple[tuple[int, str], ...]) -> "Declaration":
    """Return what the server needs to know of a pipeline."""
    from ml_assets.use.live.logged_rows import partitions_at
    from ml_assets.use.serving.watch import Declaration

    if spec.scoring is None or spec.scoring.live_source != "request_log":
        return Declaration(model=spec.name, shadows=shadows)
    return Declaration(model=spec.name, shadows=shadows, live_partitions=lambda day: partitions_at(spec, day))


def _online(project: "Project", model: str) -> "OnlineLookup":
    """Return the online rows of a model's feature table. Raises `NothingOnline` if it declares none."""
    from ml_assets.use.serving.online_lookup import OnlineLookup

    features = project.declared.pipeline(model).features
    table = project.declared.feature_table(features.table).online_table
    store = replace(project.platform, patience_seconds=_ONLINE_PATIENCE_SECONDS).online
    return OnlineLookup(table=table, store=store, primary_key=features.primary_key)


def _shadows(
    project: "Project", models: tuple[str, ...], shadows: tuple[str, ...]
) -> dict[str, tuple[tuple[int, str], ...]]:
    """Return model → number and bundle digest of each shadow. `Problem` for text that names none."""
    found: dict[str, tuple[tuple[int, str], ...]] = {}
    for text in shadows:
        model, _, number = text.rpartition("/")
        if model not in models or not number.isdecimal():
            raise Problem(
                f"--shadow {text}: give a model of this server and a version, such as {models[0]}/3"
            )
        version = project.releases.version(model, int(number))
        found[model] = (*found.get(model, ()), (version.number, version.bundle_digest))
    return found


def _say_served(address: str, parts: "ServerParts") -> None:
    for model in parts.watch.declarations:
        served = parts.watch.served(model)
        for role, version in served.versions.items() if served else ():
            say(f"{model}: {role} version {version.number} since {version.since:%Y-%m-%d %H:%M} UTC")
        for problem in parts.watch.problems(model):
            say(f"{model}: {problem}")
        if served is not None and served.production is None and not parts.watch.problems(model):
            say(
                f"{model}: no version in production. To put one there: ml-assets promote {model} --reason '…'"
            )
    if parts.watch.ledger_problem:
        say(f"The ledger cannot be read, the server tries again: {parts.watch.ledger_problem}")
    example = next(iter(parts.watch.declarations))
    say(f"Serving on {address} until Ctrl-C; POST a raw row to {address}/models/{example}/predict")
    say(f"Columns with an example: {address}/openapi.json; state: {address}/ready and {address}/metrics")
