"""`ml-assets doctor`: check the installation and name the remedy for each fault."""

import logging
import os
import shutil
import sys
from collections.abc import Callable

import click

from ml_assets.cli import doctor_storage
from ml_assets.cli.doctor_storage import NotWell, WorthKnowing
from ml_assets.cli.project import Project, say
from ml_assets.cli.variables import unknown_variables
from resources.environment import version_of

ENOUGH_DISK_GB = 2
PATIENCE_SECONDS = 3.0
"""Wait for a server. Shorter than in a run, which waits for a server that restarts: a person expects a quick answer."""
PARTS = ("dagster", "mlflow", "onnxruntime", "pandera", "polars", "torch")


@click.command("doctor", short_help="Check settings, storage and versions; name the remedies.")
def command() -> None:
    """Check each part of the platform and print a line for it. A failed check names its remedy.

    Exit status 1 if a check fails. A line `warn` is not a failure.
    """
    # Libraries log each try; the lines below show the result.
    logging.getLogger().setLevel(logging.ERROR)
    project = Project.here(PATIENCE_SECONDS)
    checks: list[tuple[str, Callable[[Project], str]]] = [
        ("python", _python),
        ("packages", _packages),
        ("settings", _settings),
        ("home", _home),
        ("definitions", _definitions),
        ("lake", doctor_storage.lake),
        ("artifacts", doctor_storage.artifacts),
        ("ledger", doctor_storage.ledger),
        ("accounts", doctor_storage.accounts),
        ("tracker", doctor_storage.tracker),
        *_of_server(project),
        ("production", doctor_storage.production),
        ("registry", doctor_storage.registry),
        ("rules", doctor_storage.rules),
        ("dagster storage", doctor_storage.dagster_storage),
        ("dagster events", doctor_storage.dagster_events),
        *_workers(project),
    ]
    failed = warned = 0
    for name, check in checks:
        try:
            say(f"ok    {name:16} {check(project)}")
        except WorthKnowing as known:
            warned += 1
            say(f"warn  {name:16} {known}")
        except Exception as error:  # a doctor reports every failure, whatever its type
            failed += 1
            what = str(error) if isinstance(error, NotWell) else f"{type(error).__name__}: {error}"
            say(f"FAIL  {name:16} {what}")
    if failed:
        say(f"{failed} of {len(checks)} checks failed; each FAIL line names the remedy.")
        raise SystemExit(1)
    say("All checks passed." if not warned else "No check failed; each warn line names the remedy.")


def _of_server(project: Project) -> list[tuple[str, Callable[[Project], str]]]:
    """Return the check of the guard, which an MLflow server has and a database has not."""
    is_server = project.settings.resolved_tracking_uri.reveal().startswith(("http://", "https://"))
    return [("guard", doctor_storage.guard)] if is_server else []


def _workers(project: Project) -> list[tuple[str, Callable[[Project], str]]]:
    """Return the checks of the place where trainings run: this machine or a cluster."""
    if project.settings.launcher == "local":
        return [("processes", _processes)]
    from resources.launcher.kubernetes.cluster_checks import cluster_checks

    return [(name, lambda _, check=check: check()) for name, check in cluster_checks(project.settings)]


def _python(project: Project) -> str:
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise NotWell(
            f"Python {sys.version.split()[0]} is not supported: use 3.11, 3.12 or 3.13 (make setup looks for them)"
        )
    return sys.version.split()[0]


def _packages(project: Project) -> str:
    return ", ".join(f"{name} {version_of(name)}" for name in PARTS)


def _settings(project: Project) -> str:
    if unknown := unknown_variables():
        raise NotWell("; ".join(unknown))
    given = sorted(name for name in os.environ if name.startswith("ML_ASSETS_"))
    return ", ".join(given) or "defaults: no ML_ASSETS_… is set"


def _home(project: Project) -> str:
    home = project.settings.home
    free = shutil.disk_usage(home).free / 1e9
    if free < ENOUGH_DISK_GB:
        raise NotWell(
            f"the disk of {home} has {free:.1f} GB left and needs {ENOUGH_DISK_GB} GB: delete files, or set "
            "ML_ASSETS_HOME to another disk"
        )
    return f"{home}, {free:.0f} GB free (ML_ASSETS_HOME moves it)"


def _definitions(project: Project) -> str:
    graph = project.defs.resolve_asset_graph()
    return f"{len(graph.get_all_asset_keys())} assets, {len(list(graph.asset_check_keys))} checks"


def _processes(project: Project) -> str:
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise NotWell(
            "the installed torch has no gloo, so training cannot use several processes: install PyPI's torch"
        )
    devices = torch.cuda.device_count()
    return f"gloo available, {torch.get_num_threads()} threads, {devices} CUDA devices"
