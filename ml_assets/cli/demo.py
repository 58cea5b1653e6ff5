"""Work of `ml-assets demo`: the whole path from raw data to a registered model, with real flights of 2013."""

import json
import time
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import dagster as dg
from rich.table import Table

from ml_assets.cli.opened import writing
from ml_assets.cli.terminal import progress, say
from ml_assets.components.metadata import declared_tables
from ml_assets.components.training_pipeline import STAGES
from ml_assets.context.launch import Finished, materialize
from ml_assets.context.project import Project
from ml_assets.data.tables.guard import validate_window

MODEL = "flight_delay"
PARTITION = "2013-12-31"
FIRST, LAST = "2013-01-01", "2013-12-31"
UNPARTITIONED = ("datasets/airlines", "datasets/airports", "datasets/planes")
DATED = ("datasets/flights", "datasets/weather", "features/flight_departures")
ROLES = ("", "baseline_", "reference_")
"""Prefixes of the metrics of the model, the naive baseline, and the regression on the same columns."""
STEPS = ("validate_inputs", "snapshot", "train", "evaluate", "register")


@dataclass
class DemoRecord:
    """Record of the demo: seconds per stage, and stages that were reused."""

    seconds: dict[str, float] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)


def demo(as_json: bool) -> None:
    """Build the registered model of the demo, or reuse what is finished; print its figures, or JSON."""
    began = time.monotonic()
    console = progress()
    project = writing().project
    console.print(f"Home {project.settings.home}. Nothing is downloaded: the data came with the packages.")
    with console.status("loading the definitions"):
        _ = project.defs
    record = DemoRecord()

    def run(
        name: str, keys: list[dg.AssetKey], partition: str | None = None, last: str | None = None
    ) -> Finished:
        started = time.monotonic()
        with console.status(name) as status:
            finished = materialize(
                project,
                keys,
                partition=partition,
                last=last,
                on_progress=lambda text: status.update(f"{name}: {text}"),
            )
        record.seconds[name] = round(time.monotonic() - started, 2)
        console.print(
            f"[green]✓[/] {name}  {finished.materialized} materializations  {record.seconds[name]:.1f} s"
        )
        return finished

    fresh = [table for table in UNPARTITIONED if not _is_finished(project, table)]
    if fresh:
        run("tables without dates", [dg.AssetKey(table.split("/")) for table in fresh])
    else:
        _say_reused(console, record, "tables without dates")
    for table in DATED:
        if _is_finished(project, table):
            _say_reused(console, record, table)
        else:
            run(table, [dg.AssetKey(table.split("/"))], FIRST, LAST)
    finished = run(MODEL, [dg.AssetKey([MODEL, stage]) for stage in STAGES], PARTITION)
    for step in STEPS:
        record.seconds[f"{MODEL}.{step}"] = round(finished.step_seconds.get(f"{MODEL}.{step}", 0.0), 2)
    facts = _facts(project, finished, record, time.monotonic() - began)
    if facts["training_reused"]:
        console.print(f"  the finished training {facts['fingerprint'][:12]} was found and reused")
    if as_json:
        say(json.dumps(facts))
    else:
        _tell(console, project, facts)


def _mlflow_pages(project: Project) -> str:
    """Return the address of MLflow's pages, or the command that serves them."""
    uri = project.settings.resolved_tracking_uri
    is_server = uri.reveal().startswith("http")
    return str(uri) if is_server else f".venv/bin/mlflow server --backend-store-uri {uri} --port 5000"


def _is_finished(project: Project, table: str) -> bool:
    """Return True if the guard finds every partition current: usable and not stale."""
    tables = declared_tables(project.defs)
    declared = tables.find(table)
    if declared is None:
        return False
    keys = declared.cadence.keys(date.fromisoformat(FIRST), date.fromisoformat(LAST))
    reader = project.reader()
    validation = validate_window(reader, project.platform.ledger, tables, table, keys)
    return validation.ok and not validation.stale


def _say_reused(console: Any, record: DemoRecord, name: str) -> None:
    record.reused.append(name)
    record.seconds[name] = 0.0
    console.print(f"[green]✓[/] {name}  finished earlier, reused")


def _facts(project: Project, finished: Any, record: DemoRecord, seconds: float) -> dict[str, Any]:
    of = {
        stage: finished.metadata.get(dg.AssetKey([MODEL, stage]), {})
        for stage in ("training_set", "checkpoint", "evaluation", "registered_model")
    }
    evaluation = of["evaluation"]
    return {
        **{
            name: evaluation[name]
            for role in ROLES
            for name in (f"{role}auc", f"{role}logloss", f"{role}ece")
        },
        "gate": evaluation["decision"],
        "why": evaluation["why"],
        "model_version": of["registered_model"].get("version"),
        "commit_id": of["training_set"]["lake/commit"],
        "fingerprint": of["training_set"]["fingerprint"],
        "mlflow_run": of["checkpoint"]["mlflow/run"],
        "training_reused": of["checkpoint"]["reused"],
        "seconds": round(seconds, 1),
        "stages": record.seconds,
        "reused": record.reused,
        "report": str(evaluation["report_file"]),
    }


def _tell(console: Any, project: Project, facts: dict[str, Any]) -> None:
    table = Table(title="flight_delay 2013-12-31, holdout November and December 2013", title_justify="left")
    for column in ("", "model", "naive baseline", "logistic regression"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("AUC", *(f"{facts[f'{role}auc']:.4f}" for role in ROLES))
    table.add_row("log loss", *(f"{facts[f'{role}logloss']:.4f}" for role in ROLES))
    table.add_row("calibration error", *(f"{facts[f'{role}ece']:.4f}" for role in ROLES))
    console.print(table)
    say(f"gate        {facts['why']}")
    say(f"report      {facts['report']}")
    say(f"MLflow run  {facts['mlflow_run']} in {project.settings.resolved_tracking_uri}")
    where = project.settings.lake_url or project.settings.lake_folder
    say(f"lake        commit {facts['commit_id'][:16]} under {where}")
    say(f"seconds     {facts['seconds']:.0f}")
    if facts["model_version"] is not None:
        say(f"model       {MODEL} version {facts['model_version']}, loadable by mlflow.pyfunc")
    say()
    say("Next:")
    if facts["gate"] == "blessed":
        say("  put it into production   .venv/bin/ml-assets promote flight_delay --reason 'first model'")
        say(
            "  let others approve it    .venv/bin/ml-assets approve flight_delay VERSION --reason '…', or on a page:"
        )
        say("                           .venv/bin/ml-assets review; both once release.approval asks for it")
        say("  answer requests with it  .venv/bin/ml-assets serve flight_delay")
    say(f"  pages, lineage, sensors  make ui ARGS='--only {MODEL}'")
    say(f"  curves, versions         {_mlflow_pages(project)}")
    say("  your own pipeline        README.md, 'Add a pipeline in ten minutes'")
