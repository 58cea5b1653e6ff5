"""`ml-assets serve`: answer requests with the versions in production."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ml_assets.cli.project import Project, say

if TYPE_CHECKING:
    from ml_assets.components.specs import TrainingPipelineSpec
    from ml_assets.use.serving.answering import ServerParts
    from ml_assets.use.serving.online_lookup import OnlineLookup
    from ml_assets.use.serving.watch import Declaration

_ONLINE_PATIENCE_SECONDS = 0.5
"""Wait of one call to the online store. A request must not wait as long as a run does."""


@click.command("serve", short_help="Answer requests with the versions in production, over HTTP.")
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
def command(
    models: tuple[str, ...],
    host: str,
    port: int,
    shadows: tuple[str, ...],
    online: bool,
    poll_seconds: float,
    log_share: float,
    log_keep_days: int,
    log_max_gib: float,
    max_body_mib: float,
    max_rows: int,
    max_connections: int,
    canary_seconds: float,
) -> None:
    """Answer requests for each MODEL with its version in production, until Ctrl-C.

    The server watches the ledger: after `promote`, `rollback` or `demote` it changes versions without a lost request. A
    canary answers its share of the entities (`release.canary` of the rules in force), or is a shadow.

    With --online, the feature table of each MODEL must declare `online`.
    """
    from pydantic import ValidationError

    from ml_assets.cli.problems import Problem
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.use.serving.server import ServerSettings, serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("ml_assets.use.serving").setLevel(logging.INFO)
    try:
        settings = ServerSettings(
            poll_seconds=poll_seconds,
            log_share=log_share,
            log_keep_days=log_keep_days,
            log_max_gib=log_max_gib,
            max_body_mib=max_body_mib,
            max_rows=max_rows,
            max_connections=max_connections,
            canary_seconds=canary_seconds,
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        raise Problem(f"--{str(wrong['loc'][0]).replace('_', '-')}: {wrong['msg']}") from None
    project = Project.here(patience_seconds=5.0)
    of_shadows = _shadows(project, models, shadows)
    declarations = [
        _declared(project.component(TrainingPipeline, model).spec, of_shadows.get(model, ()))
        for model in dict.fromkeys(models)
    ]
    try:
        serve(
            project.platform,
            declarations,
            settings,
            host=host,
            port=port,
            on_start=_tell,
            online={one: _online(project, one) for one in dict.fromkeys(models)} if online else None,
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


def _online(project: Project, model: str) -> "OnlineLookup":
    """Return the online rows of a model's feature table. Raises `NothingOnline` if it declares none."""
    from ml_assets.components.feature_table import FeatureTable
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.use.serving.online_lookup import OnlineLookup

    features = project.component(TrainingPipeline, model).spec.features
    table = project.component(FeatureTable, features.table.removeprefix("features/")).spec.online_table
    store = replace(project.platform, patience_seconds=_ONLINE_PATIENCE_SECONDS).online
    return OnlineLookup(table=table, store=store, primary_key=features.primary_key)


def _shadows(
    project: Project, models: tuple[str, ...], shadows: tuple[str, ...]
) -> dict[str, tuple[tuple[int, str], ...]]:
    """Return model → number and bundle digest of each shadow. `Problem` for text that names none."""
    from ml_assets.cli.problems import Problem
    from ml_assets.model.release.releases import releases_of

    found: dict[str, tuple[tuple[int, str], ...]] = {}
    for text in shadows:
        model, _, number = text.rpartition("/")
        if model not in models or not number.isdecimal():
            raise Problem(
                f"--shadow {text}: give a model of this server and a version, such as {models[0]}/3"
            )
        version = releases_of(project.platform).version(model, int(number))
        found[model] = (*found.get(model, ()), (version.number, version.bundle_digest))
    return found


def _tell(address: str, parts: "ServerParts") -> None:
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
