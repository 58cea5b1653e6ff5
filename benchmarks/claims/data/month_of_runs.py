"""Simulation of 500 runs a day for 30 days: Dagster's runs and events, ledger, MLflow, and the memory of readers.

A few runs are real: of a dataset, executed by Dagster. Their rows in Dagster's databases are copied with other ids and
times, as if 500 of them had run each day. Verdicts are recorded in the ledger by its own call, and one MLflow run for
each tenth run, as a tenth of them are trainings. Each answer is measured after the first day and after the last: it
must not grow with the history. Memory is that of this process, in which the ticks and Dagster's GraphQL run; no daemon
and no webserver is started, and nothing is trained.
"""

import argparse
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa

from benchmarks._report import Result, emit
from benchmarks.claims.data._many_pipelines import SIMULATED, day_of, name_of
from benchmarks.claims.data.many_partitions import Simulation, growth, rss_mib
from ml_assets.components.assets.digest import declared_subjects
from ml_assets.components.metadata import PARTITION
from ml_assets.components.sensors.ended_runs import ended_launches
from ml_assets.pages.digest import bounds_of, digest_of
from resources.ledger import NewVerdict

MOST_GROWTH = 3.0
PIPELINES, PARTITIONS = 4, 60
_RUN = """
INSERT INTO runs (run_id, snapshot_id, pipeline_name, mode, status, run_body, partition, partition_set,
  create_timestamp, update_timestamp, start_time, end_time, backfill_id)
SELECT :new, snapshot_id, pipeline_name, mode, status, replace(run_body, run_id, :new), partition, partition_set,
  datetime(create_timestamp, :shift), datetime(update_timestamp, :shift), start_time + :seconds, end_time + :seconds,
  backfill_id
FROM runs WHERE run_id = :old
"""
_TAGS = "INSERT INTO run_tags (run_id, key, value) SELECT :new, key, value FROM run_tags WHERE run_id = :old"
_EVENTS = """
INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
SELECT :new, replace(event, run_id, :new), dagster_event_type, datetime(timestamp, :shift), step_key, asset_key,
  partition
FROM event_logs WHERE run_id = :old ORDER BY id
"""
_RUNS_PAGE = """{ runsOrError(limit: 25) { ... on Runs { results {
  runId status pipelineName startTime endTime tags { key value } assetSelection { path } } } } }"""
_RUN_PAGE = """query Run($id: ID!) { runOrError(runId: $id) { ... on Run { runId status
  eventConnection(limit: 1000) { events { __typename ... on MessageEvent { timestamp message } } } } } }"""
_ASSET_PAGE = """query Asset($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetMaterializations(limit: 50) { runId timestamp partition }
  partitionStats { numMaterialized numPartitions numFailed numMaterializing }
  staleStatus } } }"""


class RunsOfAMonth:
    """A home whose history of runs grows by a day at a time."""

    def __init__(self, folder: Path, real: int) -> None:
        self.here = Simulation(folder, PIPELINES, PARTITIONS)
        self.here.first_ticks()
        history = self.here.settings.dagster_home / "history"
        self._runs = sa.create_engine(f"sqlite:///{history}/runs.db")
        self._events = sa.create_engine(f"sqlite:///{history}/event_log.db")
        self.templates = [self._real(number) for number in range(real)]
        self._mlflow: dict[str, str] = {}

    def _real(self, number: int) -> str:
        """Execute a run of a dataset; return its id."""
        name = name_of(number % PIPELINES)
        result = self.here.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.here.instance,
            asset_selection=[dg.AssetKey(["datasets", name])],
            partition_key=day_of(PARTITIONS - 1).isoformat(),
            tags={PARTITION: day_of(PARTITIONS - 1).isoformat()},
            run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        if not result.success:
            raise SystemExit("the real run failed")
        return result.run_id

    def add_day(self, ago: int, runs: int) -> None:
        """Add the runs of the day that was `ago` days before today, with their verdicts and trainings in MLflow."""
        with self._runs.begin() as of_runs, self._events.begin() as of_events:
            for number in range(runs):
                back = timedelta(days=ago, minutes=number)
                words = {
                    "old": self.templates[number % len(self.templates)],
                    "new": str(uuid.uuid4()),
                    "shift": f"-{int(back.total_seconds())} seconds",
                    "seconds": -back.total_seconds(),
                }
                for statement in (_RUN, _TAGS):
                    of_runs.execute(sa.text(statement), words)
                of_events.execute(sa.text(_EVENTS), words)
        at = datetime.now(UTC) - timedelta(days=ago)
        self.here.platform.ledger.record_verdicts([self._verdict(number) for number in range(runs)], at)
        self._train(at, runs // 10)

    def _verdict(self, number: int) -> NewVerdict:
        """Return a verdict about a feature table, which no sensor of a dataset watches."""
        return NewVerdict(
            table=f"features/{name_of(number % PIPELINES)}",
            key=day_of(number % PARTITIONS).isoformat(),
            content_digest="c" * 64,
            contract_digest="r" * 64,
            status="passed",
            rows=2,
            body_json='{"findings": []}',
            run_id="simulated",
            branch="main",
        )

    def _train(self, at: datetime, count: int) -> None:
        import mlflow

        client = mlflow.MlflowClient(str(self.here.settings.resolved_tracking_uri.reveal()))
        for number in range(count):
            model = f"m_{name_of(number % PIPELINES)}"
            if model not in self._mlflow:
                self._mlflow[model] = client.create_experiment(model)
            moment = int((at.timestamp() - 60 * number) * 1000)
            run = client.create_run(self._mlflow[model], start_time=moment, run_name=f"{number}")
            client.log_metric(run.info.run_id, "worker_hours", 0.1, timestamp=moment)
            client.set_terminated(run.info.run_id, end_time=moment + 30_000)

    def answers(self, ask: Callable[..., Any]) -> Mapping[str, Callable[[], object]]:
        """Return name → work that the daemon or a person asks for."""
        here, today = self.here, datetime.now(UTC).date()
        subjects = declared_subjects(here.defs)
        waiting = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
        key = {"path": ["datasets", name_of(0)]}
        return {
            "a minute of unchanged ticks": here.tick,
            "`digest`": lambda: digest_of(
                here.platform, subjects, today, ended_launches(here.instance, *bounds_of(today))
            ),
            "newest verdicts of a table": lambda: here.platform.ledger.newest_verdicts(
                f"features/{name_of(0)}"
            ),
            "Dagster: runs in progress, as the queue asks": lambda: here.instance.get_runs_count(
                dg.RunsFilter(statuses=waiting)
            ),
            "Dagster: page of the runs": lambda: ask(_RUNS_PAGE),
            "Dagster: page of a run": lambda: ask(_RUN_PAGE, id=self.templates[0]),
            "Dagster: page of an asset": lambda: ask(_ASSET_PAGE, key=key),
        }


def measured(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """Return name → median CPU seconds and longest wall seconds, after one unmeasured round."""
    found: dict[str, tuple[float, float]] = {}
    for name, one in work.items():
        one()
        cpus: list[float] = []
        walls: list[float] = []
        for _ in range(rounds):
            cpu, wall = time.process_time(), time.perf_counter()
            one()
            cpus.append(time.process_time() - cpu)
            walls.append(time.perf_counter() - wall)
        found[name] = statistics.median(cpus), max(walls)
    return found


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    from benchmarks.claims.data._asset_answers import asked

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--runs-a-day", type=int, default=500)
    parser.add_argument("--real", type=int, default=4, help="real runs of datasets")
    parser.add_argument("--quick", action="store_true", help="5 days of 40 runs")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    given = parser.parse_args()
    days, runs = (5, 40) if given.quick else (given.days, given.runs_a_day)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="month-of-runs-") as name:
        history = RunsOfAMonth(Path(name), given.real)
        os.environ[SIMULATED] = f"{PIPELINES},{PARTITIONS},{history.here.settings.home}"
        with asked(history.here.instance, "benchmarks.claims.data._many_pipelines", "defs") as ask:
            work = history.answers(ask)
            history.add_day(days - 1, runs)
            first = measured(work, 5)
            before = rss_mib()
            sizes: Sequence[int] = [_bytes(history)]
            for ago in reversed(range(days - 1)):
                history.add_day(ago, runs)
                for one in work.values():
                    one()
            after = rss_mib()
            last = measured(work, 5)
            sizes = [*sizes, _bytes(history)]
        size = f"{days} days of {runs} runs"
        results.append(growth(f"memory that reading {size} adds, a tick and each page a day", before, after))
        for what, (cpu, wall) in last.items():
            ratio = cpu / first[what][0] if first[what][0] else 1.0
            is_dagsters = what.startswith("Dagster")
            results.append(
                Result(
                    name=f"{what}; {size}; at most {1000 * wall:.0f} ms of wall time",
                    value=1000 * cpu,
                    unit="ms",
                    peers={"after the first day": 1000 * first[what][0]},
                    ratio=ratio,
                    bar="shown" if is_dagsters else f"≤ {MOST_GROWTH:g} × after the first day",
                    ok=is_dagsters or ratio <= MOST_GROWTH,
                )
            )
        results.append(
            Result(
                name=f"disk of Dagster's history, a run; {size}",
                value=(sizes[1] - sizes[0]) / max(1, runs * (days - 1)) / 1000,
                unit="kB",
                bar="shown",
                ok=True,
            )
        )
        history.here.close()
    return emit(results, json=given.json)


def _bytes(history: RunsOfAMonth) -> int:
    folder = history.here.settings.dagster_home / "history"
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    raise SystemExit(main())
