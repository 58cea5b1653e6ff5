"""Pruning of Dagster's event log of 100 tables × 1,000 daily partitions, each rebuilt several times.

The first and the last build are runs; those between are copies of the first one's rows with ids of their own, so that
the log grows in minutes. Asked before and after: statuses, partitions, staleness, data versions, checks and lineage of
every table over GraphQL. Half of the tables have inputs. Of these an older event of each partition stays, from which
Dagster derives the times of their data.
"""

import os
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import sqlalchemy as sa

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.data._asset_answers import asked
from ml_assets.components.metadata import RANGE_END, RANGE_START
from ml_assets.context.home import write_dagster_settings
from ml_assets.dagster_host.instance import EVENT_BATCH
from ml_assets.extras.event_pruning.prune import find_prunable, prune_events
from resources.settings import Settings

BUILDS = 16
LEAST_SHARE = 0.9
_COPY = """
INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
SELECT :new, replace(event, run_id, :new), dagster_event_type, datetime(timestamp, :later), step_key, asset_key,
  partition
FROM event_logs WHERE run_id = :old ORDER BY id
"""
_COPY_TAGS = """
INSERT INTO asset_event_tags (event_id, asset_key, key, value, event_timestamp)
SELECT e.id, e.asset_key, t.key, t.value, e.timestamp
FROM event_logs AS e JOIN event_logs AS o ON o.asset_key = e.asset_key AND o.partition = e.partition
  AND o.dagster_event_type = e.dagster_event_type AND o.run_id = :old JOIN asset_event_tags AS t ON t.event_id = o.id
WHERE e.run_id = :new ORDER BY e.id
"""
_COPY_CHECKS = """
INSERT INTO asset_check_executions (asset_key, check_name, partition, run_id, execution_status, evaluation_event,
  evaluation_event_timestamp, evaluation_event_storage_id, materialization_event_storage_id)
SELECT asset_key, check_name, partition, :new, execution_status, replace(evaluation_event, run_id, :new),
  evaluation_event_timestamp, evaluation_event_storage_id, materialization_event_storage_id
FROM asset_check_executions WHERE run_id = :old
"""


def build(
    instance: dg.DagsterInstance, defs: dg.Definitions, table: dg.AssetKey, first: str, last: str
) -> str:
    """Materialize all partitions of a table in one run; return the id of the run."""
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[table],
        tags={RANGE_START: first, RANGE_END: last},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    return result.run_id


def copy(database: sa.Engine, runs: list[str], number: int) -> None:
    """Add another build: the rows of `runs` with other ids."""
    with database.begin() as connection:
        for run in runs:
            ids = {"old": run, "new": str(uuid.uuid4())}
            connection.execute(sa.text(_COPY), ids | {"later": f"+{number} minutes"})
            connection.execute(sa.text(_COPY_TAGS), ids)
            connection.execute(sa.text(_COPY_CHECKS), ids)


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    arguments = parse_args(__doc__)
    os.environ["MANY_TABLES"] = "10,100" if arguments.quick else "100,1000"
    os.environ["DAGSTER_EVENT_BATCH_SIZE"] = EVENT_BATCH
    from benchmarks.claims.data._many_tables import DAYS, PARTITIONS, TABLES, defs

    keys = PARTITIONS.get_partition_keys()
    graph = defs.resolve_asset_graph()
    tables = graph.toposorted_asset_keys
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        settings.dagster_home.mkdir()
        write_dagster_settings(settings)
        with dg.DagsterInstance.from_config(str(settings.dagster_home)) as instance:
            runs = [build(instance, defs, table, keys[0], keys[-1]) for table in tables]
            database = sa.create_engine(f"sqlite:///{settings.dagster_home}/history/event_log.db")
            for number in range(BUILDS - 2):
                copy(database, runs, number)
            for table in tables:
                build(instance, defs, table, keys[0], keys[-1])
            database.dispose()
            since = datetime.now(UTC) + timedelta(days=1)
            with asked(instance, "benchmarks.claims.data._many_tables", "defs") as graphql:
                before = graphql.everything(closely=5)
            start = time.perf_counter()
            planned = find_prunable(instance, graph, since)
            look = time.perf_counter() - start
            start = time.perf_counter()
            done = prune_events(instance, graph, since)
            seconds = time.perf_counter() - start
            with asked(instance, "benchmarks.claims.data._many_tables", "defs") as graphql:
                after = graphql.everything(closely=5)
    share = 1 - done.after / done.before
    size = f"{TABLES} tables × {DAYS} partitions, built {BUILDS} times"
    return emit(
        [
            Result(
                name=f"bytes pruned from the event log of {size}",
                value=100 * share,
                unit="%",
                peers={"estimate of the dry run": 100 * (1 - planned.after / planned.before)},
                bar="≥ 90 %",
                ok=share >= LEAST_SHARE,
            ),
            Result(
                name=f"bytes before ({done.before / 1e6:,.0f} MB) and after",
                value=done.after / 1e6,
                unit="MB",
                bar="less",
                ok=done.after < done.before,
            ),
            Result(
                name=f"characters of GraphQL answers that differ, of {len(before):,}",
                value=float(
                    sum(a != b for a, b in zip(before, after, strict=False)) + abs(len(before) - len(after))
                ),
                unit="",
                bar="0",
                ok=before == after,
            ),
            Result(name="dry run", value=look, unit="s", bar="shown", ok=True),
            Result(name="pruning", value=seconds, unit="s", bar="shown", ok=True),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
