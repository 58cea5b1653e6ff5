"""Facts of a finished installation that must not depend on kills.

Here: reading them, and what a dead process must not leave behind. Not here: the runs (`demand_project`), the killing.
"""

import fcntl
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets.components.metadata import declared_tables
from ml_assets.components.training_pipeline import STAGES
from ml_assets.data.snapshots.keep import versions_of
from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.data.tables import layout
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.links import report_name
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.release.releases import bundles_of, registry_of
from ml_assets.model.release.runtime import ServingModel
from ml_assets_tests.faults.demand_project import MODEL, WEEK, WEEKS, DemandProject, key_of
from ml_assets_tests.training.small_jobs import assert_each_row_once_per_epoch
from resources.job.events import EVENTS, read_events, recoveries_of
from resources.job.job import TrainingJob, TrainingResult
from resources.tracking.mlflow_client import open_client

SERVERS_OWN = "_lakefs_actions/"
"""Prefix of what a lake on a server holds besides tables."""
_LEAVING_SECONDS = 10.0
"""Seconds for processes to leave; a hung one is killed after 30."""


@dataclass(frozen=True, kw_only=True)
class PipelineFacts:
    """Equal for every way to the same end."""

    objects: Mapping[str, str]
    """Path on main → SHA-256: every partition's files and manifest."""
    contents: Mapping[str, Mapping[str, str]]
    """Table → partition → content digest."""
    merges: Mapping[tuple[str, str], int]
    """Table and partition → how often it was merged into main."""
    verdicts: Mapping[tuple[str, str], Sequence[tuple[str, str, int]]]
    """Table and partition → content digest, status and rows of each verdict."""
    branches: Sequence[str]
    """Branches of the lake, sorted, without commits in their names. Not those of audits: a killed run may leave one."""
    fingerprint: str
    weights: str
    """SHA-256."""
    best: tuple[int, float]
    """Step and validation loss of the best weights."""
    versions: Sequence[tuple[int, str, str, str, str]]
    """Number, semantic version, gate status, bundle digest and fingerprint of each."""
    runs: Sequence[tuple[str, str, Mapping[str, str]]]
    """Fingerprint, status and parameters of each MLflow run."""
    steps: Mapping[str, Mapping[int, int]]
    """Metric → step → how many points MLflow has for it; of those that each step has, whoever trained it."""
    values: Mapping[str, Sequence[tuple[int, float]]]
    """Metric → step and value, for those that follow from the data alone."""


def facts_of(project: DemandProject) -> PipelineFacts:
    """Everything of one installation."""
    home = project.settings.home
    platform = project.platform
    reader = TableReader.at(platform.lake)
    result = TrainingResult.read(_job_folder(home) / "result.json")
    history = _metrics(platform.settings.resolved_tracking_uri.reveal())
    (run,) = history.values() if len(history) == 1 else ({},)
    return PipelineFacts(
        objects={
            stat.path: stat.sha256
            for stat in platform.lake.list(reader.commit_id)
            if not stat.path.startswith(SERVERS_OWN)
        },
        contents={table: dict(reader.digests(table)) for table in WEEKS},
        merges=_merges(project),
        verdicts={
            (table, week): [
                (row.content_digest, row.status, row.rows)
                for row in platform.ledger.histories(table, [week]).get(week, [])
            ]
            for table, weeks in WEEKS.items()
            for week in weeks
        },
        branches=sorted(
            _without_commit(one) for one in platform.lake.branches() if not one.startswith(layout.AUDIT)
        ),
        fingerprint=result.fingerprint,
        weights=result.weights_sha256,
        best=(result.best_step, result.best_validation_loss),
        versions=[
            (one.number, one.semantic, one.tags["gate_status"], one.bundle_digest, one.tags["fingerprint"])
            for one in registry_of(platform).versions(MODEL)
        ],
        runs=[
            (run.data.tags["fingerprint"], run.info.status, run.data.params)
            for run in _runs(platform.settings.resolved_tracking_uri.reveal())
        ],
        steps={
            name: Counter(step for step, _ in points)
            for name, points in run.items()
            if not name.startswith(("checkpoint_", "recovery_", "serving_", "system/"))
        },
        values={name: points for name, points in run.items() if _follows_from_data(name)},
    )


def assert_sound(project: DemandProject) -> None:
    """The parts of one installation fit each other, and nobody and nothing of a dead process is left."""
    home = project.settings.home
    platform = project.platform
    reader = TableReader.at(platform.lake)
    for table, weeks in WEEKS.items():
        verdict = validate_window(reader, platform.ledger, declared_tables(project.defs), table, weeks)
        assert verdict.ok, verdict.explain()
        assert not verdict.stale

    folder = _job_folder(home)
    job = TrainingJob.from_json((folder / "job.json").read_text())
    assert_each_row_once_per_epoch(folder, open_snapshot(Path(job.snapshot), job.snapshot_digest), job)
    evaluation = platform.ledger.models.evaluations(MODEL)[-1]
    written = home / "artifacts" / report_name(MODEL, WEEK, evaluation.evaluation_digest) / "evaluation.json"
    report = Report.model_validate_json(written.read_text())
    assert report.digest == evaluation.evaluation_digest
    assert list(report.recoveries) == recoveries_of(read_events(folder))
    (version,) = registry_of(platform).versions(MODEL)
    ServingModel.load(bundles_of(platform).open(version.bundle_digest).folder)  # replays its golden rows
    kept = platform.lake.branches(f"{versions_of(MODEL)}{version.number}")
    assert list(kept.values()) == [version.tags["lake_commit"]]

    materialized = {table: project.instance.get_materialized_partitions(key_of(table)) for table in WEEKS}
    assert materialized == {table: set(weeks) for table, weeks in WEEKS.items()}
    for stage in STAGES:
        assert project.instance.get_materialized_partitions(dg.AssetKey([MODEL, stage])) == {WEEK}

    assert not (left := _processes_in_the_end(home)), left
    assert not (held := [file for file in home.rglob("lock") if _is_held(file)]), held
    assert list((home / "artifacts" / "spool").glob("*.jsonl")) == []
    going_on = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING])
    assert project.instance.get_runs_count(going_on) == 0


def _without_commit(branch: str) -> str:
    """Return the name of a branch without the commit of main that a version was made from: its id holds the time."""
    return branch.rpartition("-")[0] if branch.startswith(versions_of(MODEL)) else branch


def _processes_in_the_end(home: Path) -> list[str]:
    """Return the processes that are still there after those asked to end had the time to."""
    deadline = time.monotonic() + _LEAVING_SECONDS
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def processes_of(home: Path) -> list[str]:
    """Command lines of processes that work for this home: ranks by what they said of themselves, any other by
    the paths in its arguments."""
    ranks = {
        pid
        for events in home.glob(f"artifacts/training/*/*/{EVENTS}")
        for event in read_events(events.parent)
        if event.kind == "started"
        for pid in event.values["pids"]
    }
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX" and (str(home) in arguments or int(folder.name) in ranks):
            found.append(arguments)
    return found


def _job_folder(home: Path) -> Path:
    (folder,) = home.glob(f"artifacts/training/{MODEL}/*")
    return folder


def _merges(project: DemandProject) -> Counter[tuple[str, str]]:
    counted: Counter[tuple[str, str]] = Counter()
    for commit in project.platform.lake.log("main", 1000):
        keys = commit.metadata.get("keys", "")
        counted.update((commit.metadata["table"], key) for key in keys.split(",") if key)
    return counted


def _runs(uri: str) -> list[Any]:
    client = open_client(uri)
    experiment = client.get_experiment_by_name(MODEL)
    return list(client.search_runs([experiment.experiment_id]))


def _metrics(uri: str) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Run → metric → its points by step."""
    client = open_client(uri)
    return {
        run.info.run_id: {
            name: sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }
        for run in _runs(uri)
    }


def _follows_from_data(metric: str) -> bool:
    return "validation_loss" in metric or metric.startswith("holdout_") or metric == "learning_rate"


def _is_held(file: Path) -> bool:
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
