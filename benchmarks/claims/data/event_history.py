"""Disk space of Dagster's event history per materialized partition: our storage beside Dagster's own.

A year of weather, 365 daily partitions in one run, is materialized several times in one home, like a table that is
rebuilt over years. Bytes are those of all files of the history.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from benchmarks._report import Result, emit, parse_args
from ml_assets.context.home import make_home, point_dagster
from ml_assets.context.project import Project
from resources.settings import Settings

TABLE = dg.AssetKey(["datasets", "weather"])
FIRST = "2013-01-01"
MOST_BYTES = 5_000


def bytes_of(folder: Path) -> int:
    """Sum of the sizes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def materialize(defs: dg.Definitions, instance: dg.DagsterInstance, days: Sequence[str]) -> None:
    """Materialize the partitions of `days`, which follow each other, in one run."""
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[TABLE],
        tags={"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[-1]},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    if instance.get_materialized_partitions(TABLE) != set(days) or not result.success:
        raise SystemExit("the year was not materialized")


def bytes_each(project: Project, instance: dg.DagsterInstance, folder: Path, days: int, rounds: int) -> float:
    """Return the bytes that a materialization adds below `folder`, in which `instance` keeps its history."""
    partitions = project.defs.resolve_asset_graph().get(TABLE).partitions_def
    assert partitions is not None
    keys = [key for key in partitions.get_partition_keys() if key >= FIRST][:days]
    before = bytes_of(folder)
    for _ in range(rounds):
        materialize(project.defs, instance, keys)
    return (bytes_of(folder) - before) / (rounds * len(keys))


def main() -> int:
    """Measure; return exit status 1 if the bar does not hold."""
    arguments = parse_args(__doc__)
    days, rounds = (91, 2) if arguments.quick else (365, 3)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "ours"
        os.environ.pop("DAGSTER_HOME", None)
        settings = Settings(home=home)
        make_home(settings)
        point_dagster(settings)
        project = Project(settings)
        with project.instance as instance:
            ours = bytes_each(project, instance, settings.dagster_home, days, rounds)
        plain = Path(name) / "plain"
        plain.mkdir()
        with dg.DagsterInstance.local_temp(str(plain), {"telemetry": {"enabled": False}}) as instance:
            theirs = bytes_each(project, instance, plain, days, rounds)
    return emit(
        Result(
            name=f"event history of a materialization, {days} partitions materialized {rounds} times",
            value=ours,
            unit="bytes",
            peers={"Dagster's SQLite storage": theirs},
            ratio=ours / theirs,
            bar=f"≤ {MOST_BYTES:,} bytes",
            ok=ours <= MOST_BYTES,
        ),
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
