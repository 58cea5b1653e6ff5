"""Work of `ml-assets doctor`: checks of the installation and of stored data, and the remedy for each fault.

Each check returns a line for people if it passes, and raises an error with the remedy if it fails. Checks use the same
code as runs, so they reach the servers that the settings name.
"""

import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click

from ml_assets.cli.opened import writing
from ml_assets.cli.terminal import say
from ml_assets.components.metadata import declared_tables
from ml_assets.components.sensors.reconcile import compare, tables_of
from ml_assets.context.home import unknown_variables
from ml_assets.context.project import Project
from ml_assets.data.tables.environments import inherited_by
from ml_assets.model.release.mlflow_view import differences
from ml_assets.model.release.registry import moved_from
from ml_assets.model.release.releases import registry_of
from ml_assets.model.release.rules_in_force import RulesLog, why_other
from ml_assets.model.release.standing import InputsUnknown, in_words
from resources.clocks import behind_http_server, why_wrong
from resources.environment import installed_version
from resources.extras import missing_extra
from resources.lake import LakeUnavailable
from resources.ledger import LedgerBusy, LedgerChanged, LedgerUnavailable
from resources.ledger.migrations import NEWEST
from resources.words import counted, did_you_mean, name_some

ENOUGH_DISK_GB = 2
PATIENCE_SECONDS = 3.0
"""Wait for a server. Shorter than in a run, which waits for a server that restarts: a person expects a quick answer."""
NEEDS = {
    **dict.fromkeys(("accounts", "guard", "production", "registry", "rules"), "ledger"),
    "dagster events": "lake",
}
"""Check → the check before it without which it would only wait for the same server once more."""
PARTS = ("dagster", "mlflow", "onnxruntime", "pandera", "polars", "torch")


class NotWell(Exception):
    """A check failed. The message has the remedy."""


class WorthKnowing(Exception):
    """Everything works, and somebody should know this nevertheless. The message has the remedy."""


def doctor(parts: Sequence[str] = ()) -> None:
    """Print a line for each check, or for those named `parts`. Exit status 1 if a check fails."""
    # Libraries log each try; the lines below show the result.
    logging.getLogger().setLevel(logging.ERROR)
    project = writing(patience_seconds=PATIENCE_SECONDS).project
    checks: list[tuple[str, Callable[[Project], str]]] = [
        ("python", _python),
        ("packages", _packages),
        ("settings", _settings),
        ("home", _home),
        ("clock", _clock),
        ("definitions", _definitions),
        ("lake", lake),
        ("artifacts", artifacts),
        ("ledger", ledger),
        ("accounts", accounts),
        ("tracker", tracker),
        *_of_server(project),
        ("production", production),
        ("registry", registry),
        ("rules", rules),
        ("dagster storage", dagster_storage),
        ("dagster events", dagster_events),
        *_workers(project),
    ]
    names = [name for name, _ in checks]
    if unknown := [part for part in parts if part not in names]:
        raise click.UsageError(f"no check is named '{unknown[0]}'{did_you_mean(unknown[0], names)}")
    checks = [(name, check) for name, check in checks if not parts or name in parts]
    failed: set[str] = set()
    warned = 0
    for name, check in checks:
        if (needed := NEEDS.get(name)) in failed:
            failed.add(name)
            say(f"FAIL  {name:16} not checked, because it needs what failed above: {needed}")
            continue
        try:
            say(f"ok    {name:16} {check(project)}")
        except WorthKnowing as known:
            warned += 1
            say(f"warn  {name:16} {known}")
        except Exception as error:  # a doctor reports every failure, whatever its type
            failed.add(name)
            said = str(error) if isinstance(error, NotWell) else f"{type(error).__name__}: {error}"
            what = missing_extra(error) or said
            say(f"FAIL  {name:16} {what}")
    if failed:
        say(f"{len(failed)} of {len(checks)} checks failed; each FAIL line names the remedy.")
        raise SystemExit(1)
    say("All checks passed." if not warned else "No check failed; each warn line names the remedy.")


def _of_server(project: Project) -> list[tuple[str, Callable[[Project], str]]]:
    """Return the check of the guard, which an MLflow server has and a database has not."""
    is_server = project.settings.resolved_tracking_uri.reveal().startswith(("http://", "https://"))
    return [("guard", guard)] if is_server else []


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
    return ", ".join(f"{name} {installed_version(name)}" for name in PARTS)


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


def _clock(project: Project) -> str:
    """Compare the clock of this machine with those of the servers. A server that is away is told by its own check."""
    of = project.settings
    behind: dict[str, timedelta] = {}
    for name, address in (("lakeFS", of.lake_url), ("S3", of.s3_endpoint_url), ("MLflow", of.tracking_uri)):
        if address is not None and address.reveal().startswith(("http://", "https://")):
            told = behind_http_server(address.reveal(), PATIENCE_SECONDS)
            behind |= {} if told is None else {name: told}
    if of.ledger_url is not None:
        with suppress(LedgerUnavailable, LedgerBusy):
            behind["the ledger"] = project.platform.ledger.models.now() - datetime.now(UTC)
    if why := why_wrong(behind):
        raise NotWell(why)
    return f"agrees with {name_some(list(behind))}" if behind else "no server to compare it with"


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


def lake(project: Project) -> str:
    """Check that `main` can be read and that its audit hook is of this version."""
    store = project.platform.lake
    try:
        commit = store.resolve("main")
    except LakeUnavailable as away:
        raise NotWell(
            f"lakeFS: {away} Check that lakeFS and its database run, and check ML_ASSETS_LAKE_URL"
        ) from away
    if not project.platform.audit_hook_is_current():
        raise NotWell(
            f"main is at {commit[:12]} and lacks this version's audit hook, so unaudited rows could reach main: "
            "run ml-assets lake init"
        )
    place = project.settings.lake_url or project.settings.lake_folder
    branches = len(store.branches())
    return f"main at {commit[:12]}, {branches} branch{'es' * (branches != 1)}, {place}"


def artifacts(project: Project) -> str:
    """Check that a small file can be written and removed."""
    home = project.platform.artifacts
    name = f"doctor/{uuid.uuid4().hex[:12]}"
    began = time.monotonic()
    (home.folder(name) / "probe").write_text("well")
    address = home.push(name)
    home.remove(name)
    if home.exists(name):
        raise NotWell(f"cannot delete {address}: give this account the permission to delete objects")
    place, took = address.removesuffix(f"/{name}"), time.monotonic() - began
    return f"{place}, a file written and removed in {took:.2f} s"


def ledger(project: Project) -> str:
    """Check that verdicts can be read, that the tables have this version's schema revision, and the hash chain."""
    asked = project.platform.ledger
    asked.newest_verdicts("datasets/none", ["none"])
    revision = asked.revision()
    if revision != NEWEST:
        raise NotWell(
            f"the tables have revision {revision}, this version of ml-assets needs {NEWEST}: use the newer version, "
            "and stop the processes that run another one"
        )
    try:
        head = asked.models.verify()
    except LedgerChanged as changed:
        raise NotWell(
            f"{changed}. Somebody wrote into the database behind the ledger: restore it from a backup, and check who "
            "may write to it"
        ) from changed
    return f"{project.settings.resolved_ledger_url}, revision {revision}, {head.place} chained decisions"


def accounts(project: Project) -> str:
    """Check that the token of the environment, if there is one, belongs to an account in force."""
    acting = project.platform.acting
    known = project.platform.ledger.accounts.in_force()
    if not known:
        return f"none: nobody checks that you are {acting.name}. To begin: ml-assets accounts add NAME --administrator"
    administrators = sum(one.is_administrator for one in known)
    you = (
        f"nobody checks that you are {acting.name}, so you can decide nothing: set ML_ASSETS_TOKEN"
        if acting.checked_by == "nobody"
        else f"you are {acting.in_words}"
    )
    return f"{counted(len(known), 'account')}, {counted(administrators, 'administrator')}; {you}"


def tracker(project: Project) -> str:
    """Check that the registry can be read."""
    registry_of(project.platform).versions("none")
    return str(project.settings.resolved_tracking_uri)


def guard(project: Project) -> str:
    """Check that the MLflow server runs with the guard, and that the guard reads this ledger."""
    from ml_assets.extras.governance.mlflow_guard import guarded_head

    log = project.platform.ledger.models
    earliest = log.head()
    found = guarded_head(project.settings.resolved_tracking_uri.reveal())
    so_that = "so a client can move @production and @canary against the ledger"
    if found is None:
        raise WorthKnowing(
            f"the MLflow server runs without its guard, {so_that}: start it as mlflow server --app-name ml-assets-guard"
        )
    remedy = (
        f"{so_that}: start the MLflow server with the ML_ASSETS_LEDGER_URL of this project, which is "
        f"{project.settings.resolved_ledger_url}"
    )
    if found.place < earliest.place:
        raise WorthKnowing(
            f"the guard reads another ledger or an old copy, with {found.place} decisions instead of "
            f"{earliest.place}, {remedy}"
        )
    if not found.place:
        return "runs; which ledger it reads shows after the first decision"
    try:
        log.verify(found)
    except LedgerChanged as changed:
        raise WorthKnowing(
            f"the guard reads another ledger, or this one was changed ({changed}), {remedy}"
        ) from changed
    return f"reads this ledger, {found.place} chained decisions"


def production(project: Project) -> str:
    """Check that no training input of a version in production was rejected since."""
    releases, log = project.releases, project.platform.ledger.models
    held = [promotion for name in log.models() if (promotion := log.in_production(name))]
    said: list[str] = []
    for one in held:
        try:
            refused = releases.rejected_in_production(one.model)
        except InputsUnknown as unknown:
            refused = {"some": f"are not known: {unknown}"} if not one.despite else {}
        if refused:
            said.append(
                f"{one.model} version {one.version} is in production, and among its training inputs {in_words(refused)}"
            )
    if said:
        raise NotWell(
            f"{'; '.join(said)}. Fix or accept the partition; or train again and promote the new version; or take the "
            "version out of production: ml-assets demote MODEL --reason '…'"
        )
    return ", ".join(f"{one.model} {one.version}" for one in held) or "nothing yet"


def registry(project: Project) -> str:
    """Check that MLflow's aliases and tags show what the ledger decided, that the ledger knows its models, and that
    addresses are those of this home."""
    bundles = project.bundles
    if before := moved_from(project.settings.resolved_tracking_uri, bundles):
        raise NotWell(
            f"MLflow looks for bundles and files of runs under {name_some(before, 3)}, and this home keeps them beside "
            f"{bundles.address}: it was moved, or is a restored copy. Give MLflow its addresses: ml-assets home move"
        )

    releases, models = project.releases, project.platform.ledger.models.models()
    if lost := [model for model in registry_of(project.platform).models() if model not in models]:
        raise NotWell(
            f"MLflow has versions of {name_some(lost, 3)}, and the ledger has no decision about them, so it was "
            "lost or is another one: check ML_ASSETS_LEDGER_URL, and that its file or volume is still there; restore "
            "it from a copy. Until then nobody knows what is in production, and nothing can be rolled back"
        )
    said = [line for model in models for line in differences(releases.registry, releases.log, model)]
    if said:
        raise NotWell(
            f"{name_some(said, 3)}. The ledger decides, and nobody but ml-assets should write there. The next "
            "evaluation, promotion or demotion of the model corrects MLflow; so does ml-assets promote MODEL NUMBER "
            "--reason '…' with the version in production, which changes nothing else"
        )
    return f"aliases and tags of {len(models)} models as in the ledger"


def rules(project: Project) -> str:
    """Check that the rules of releases in each defs.yaml are those that the ledger has in force."""
    specs = project.declared.pipelines().values()
    recorded = {one.name: RulesLog.read(project.platform.ledger, one.name) for one in specs}
    found = [why_other(recorded[one.name], one.rules) or recorded[one.name].why_unconfirmed for one in specs]
    if said := [why for why in found if why]:
        raise NotWell("; ".join(said))
    known = [name for name, one in recorded.items() if one.newest]
    return f"rules of {len(known)} models as in the ledger"


def dagster_storage(project: Project) -> str:
    """Check that runs can be counted; return the storage of events and step logs."""
    runs = project.instance.get_runs_count()
    logs = type(project.instance.compute_log_manager).__name__
    place = project.settings.dagster_url or project.settings.dagster_home
    return f"{place}, {runs} runs, step logs by {logs}"


def dagster_events(project: Project) -> str:
    """Check that Dagster knows the partitions that main holds."""
    tables = tables_of(project.defs.resolve_asset_graph())
    reader, inherited = project.reader(), inherited_by(project.platform)
    apart = compare(project.instance, reader, tables, inherited)
    unreported = [f"{one.table}: {name_some(one.unreported, 3)}" for one in apart if one.unreported]
    declared = declared_tables(project.defs)
    gone: list[str] = []
    for one in apart:
        is_retired = declared.retired(one.table, reader.digests(one.table))
        if left := [key for key in one.gone if not is_retired(key)]:
            gone.append(f"{one.table}: {name_some(left, 3)}")
    help_ = "the next ml-assets launch reports them, and so does the sensor report_missing_materializations"
    said = [f"on main, but unknown to Dagster: {one} ({help_})" for one in unreported]
    said += [f"known to Dagster, but not on main: {one} (materialize them again)" for one in gone]
    if said:
        raise NotWell("; ".join(said))
    return f"Dagster knows the partitions of main in all {len(tables)} tables"
