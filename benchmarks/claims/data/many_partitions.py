"""Simulation of many pipelines with long histories: ticks, `doctor`, `digest`, `plan`, pages, and memory over ticks.

Two homes are measured in one run: one with a quarter of the pipelines, one with all. What is linear takes at most four
times as long. By default 20 pipelines of 250 days, which fits a few minutes; `--pipelines 100 --partitions 1000` is the
aim. `--postgresql` keeps the ledger and Dagster's events in a PostgreSQL of the testbed. Answers that Dagster alone
gives are named so. Published partitions have two rows: the simulation says nothing about data. Dagster gets the events
of all but the newest partitions by plain inserts.
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg

from benchmarks._report import Result, emit
from benchmarks.claims.data._bulk_events import add_materializations
from benchmarks.claims.data._many_pipelines import asset, components, day_of, name_of
from benchmarks.claims.data._tick_tables import NEWEST, feature_columns, fill
from benchmarks.claims.data.ticks import Daemon
from ml_assets.assembly import build_defs
from ml_assets.components.assets.digest import declared_subjects
from ml_assets.components.metadata import declared_tables
from ml_assets.components.sensors.ended_runs import ended_launches
from ml_assets.components.sensors.reconcile import compare, report_partitions, tables_of
from ml_assets.context.home import make_home
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.reader import TableReader
from ml_assets.foundation.code.syntax import reading_once
from ml_assets.pages.digest import bounds_of, digest_of
from ml_assets.pages.partition_page import partition_page
from resources.platform import Platform
from resources.settings import Settings

LINEAR = 4 * 1.5
"""Most times that a measurement over four times the pipelines may take, with half as much again for noise."""
MOST_GROWTH_MIB = 32.0
REPORTED = 10
"""Newest partitions of each table that the first ticks report to Dagster."""


def rss_mib() -> float:
    """Return the memory of this process that is in RAM, in MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(name: str, before: float, after: float) -> Result:
    """Return the memory that work added to this process, from `rss_mib` before and after it."""
    grown = after - before
    return Result(
        name=name,
        value=grown,
        unit="MiB",
        peers={"before": before},
        bar=f"≤ {MOST_GROWTH_MIB:g} MiB",
        ok=grown <= MOST_GROWTH_MIB,
    )


class Simulation:
    """A home with pipelines, its definitions, and Dagster's events of all its partitions."""

    def __init__(self, folder: Path, pipelines: int, partitions: int, **settings: Any) -> None:
        self.pipelines, self.partitions = pipelines, partitions
        self.settings = Settings(home=folder / "home", **settings)
        make_home(self.settings)
        self.platform = Platform(self.settings)
        start = time.process_time()
        with reading_once():  # as the definitions of a project
            declared = [one for number in range(pipelines) for one in components(number, partitions)]
            self.defs = build_defs(self.settings, components=declared, platform=self.platform)
        self.repository = self.defs.get_repository_def()
        self.load_seconds = time.process_time() - start
        keys = [day_of(number) for number in range(partitions)]
        for one in declared:
            if (table := getattr(one, "table", None)) is not None:
                is_derived = table.kind == "features"
                fill(self.platform, table, keys, columns=feature_columns() if is_derived else ())
        NEWEST[0] = keys[-1]
        self.instance = dg.DagsterInstance.from_config(str(self.settings.dagster_home))
        self.tables = tables_of(self.repository.asset_graph)
        self._report([day.isoformat() for day in keys[:-REPORTED]])
        self.daemons = [self._daemon(one) for one in self.repository.sensor_defs if _is_ours(one)]

    def _daemon(self, sensor: dg.SensorDefinition) -> Daemon:
        resources = {"platform": self.platform, "tables": declared_tables(self.defs)}
        needed = {name: resources[name] for name in sensor.required_resource_keys}
        return Daemon(sensor, self.instance, resources=needed, repository_def=self.repository)

    def _report(self, keys: Sequence[str]) -> None:
        """Report partitions of all tables to Dagster: the first one as the platform does, the others like it."""
        reader = TableReader.at(self.platform.lake)
        for table in self.tables:
            digests = reader.digests(table)
            report_partitions(self.instance, reader, self.platform.ledger, table, keys[:1])
            add_materializations(self.instance, asset(table), keys[0], {key: digests[key] for key in keys})

    def first_ticks(self) -> None:
        """Evaluate each sensor once: it looks at everything, and reports the newest partitions to Dagster."""
        for daemon in self.daemons:
            daemon.tick()
        if compare(self.instance, TableReader.at(self.platform.lake), self.tables):
            raise SystemExit("Dagster lacks partitions of main after the first ticks")

    def tick(self) -> None:
        """Evaluate each sensor, as the daemon does each minute."""
        for daemon in self.daemons:
            daemon.tick()

    def measured(self) -> dict[str, Callable[[], object]]:
        """Return name → work that a person or the daemon asks for."""
        now = datetime.now(UTC)
        subjects, tables = declared_subjects(self.defs), declared_tables(self.defs)
        table = f"features/{name_of(0)}"
        window = [
            day_of(number).isoformat() for number in range(max(0, self.partitions - 30), self.partitions)
        ]

        def guarded() -> object:
            reader = TableReader.at(self.platform.lake)
            return validate_window(reader, self.platform.ledger, tables, table, window)

        return {
            "a minute of unchanged ticks": self.tick,
            "`doctor`, events of Dagster": lambda: compare(
                self.instance, TableReader.at(self.platform.lake), self.tables
            ),
            "`digest`": lambda: digest_of(
                self.platform, subjects, now.date(), ended_launches(self.instance, *bounds_of(now.date()))
            ),
            "guard of `plan` for one model": guarded,
            "page of a partition": lambda: partition_page(self.platform, table, window[-1], draw=False),
            "Dagster: records of all assets": lambda: self.instance.get_asset_records(
                [asset(one) for one in self.tables]
            ),
            "Dagster: partitions of a table": lambda: self.instance.get_materialized_partitions(asset(table)),
        }

    def close(self) -> None:
        """Close Dagster's storage."""
        self.instance.dispose()


def _is_ours(sensor: dg.SensorDefinition) -> bool:
    return not isinstance(sensor, dg.AutomationConditionSensorDefinition) and not hasattr(
        sensor, "_run_status_sensor_fn"
    )


def seconds_of(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median CPU seconds and wall seconds of `work`, after one unmeasured round."""
    work()
    taken: list[tuple[float, float]] = []
    for _ in range(rounds):
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        taken.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpus, walls = zip(*taken, strict=True)
    return statistics.median(cpus), statistics.median(walls)


@contextmanager
def servers(folder: Path, *, postgresql: bool) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Yield the settings of a home by its number: embedded stores, or databases of a PostgreSQL."""
    if not postgresql:
        yield lambda number: {}
        return
    from deployment.testbed.servers import Servers
    from deployment.testbed.servers.postgresql import make_database

    group = Servers(folder / "servers", ("postgresql",))
    try:
        running = group.up()

        def of(number: int) -> dict[str, Any]:
            urls: dict[str, Any] = {}
            for name in ("ledger", "dagster"):
                make_database(running, f"{name}{number}")
                urls[f"{name}_url"] = running.database_url(f"{name}{number}")
            # `dagster.yaml` names the variable.
            os.environ["ML_ASSETS_DAGSTER_URL"] = urls["dagster_url"]
            return urls

        yield of
    finally:
        group.down()


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=250)
    parser.add_argument("--ticks", type=int, default=2000, help="ticks over which memory is watched")
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--quick", action="store_true", help="4 pipelines of 40 days, 200 ticks")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    given = parser.parse_args()
    pipelines, partitions, ticks = given.pipelines, given.partitions, given.ticks
    if given.quick:
        pipelines, partitions, ticks = 4, 40, 200
    where = "PostgreSQL" if given.postgresql else "embedded"
    size = f"{pipelines} pipelines × {partitions:,} partitions, {where}"
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="many-partitions-") as name,
        servers(Path(name), postgresql=given.postgresql) as settings_of,
    ):
        taken: list[dict[str, tuple[float, float]]] = []
        for number, count in enumerate((max(1, pipelines // 4), pipelines)):
            folder = Path(name) / str(number)
            here = Simulation(folder, count, partitions, **settings_of(number))
            first = seconds_once(here.first_ticks)
            work = here.measured()
            taken.append({what: seconds_of(one, 3) for what, one in work.items()})
            taken[-1]["load definitions"] = here.load_seconds, here.load_seconds
            taken[-1][f"first ticks, which report {REPORTED} partitions of each table"] = first
            if number == 1:
                before = rss_mib()
                rounds = max(1, ticks // len(here.daemons))
                for _ in range(rounds):
                    here.tick()
                results.append(
                    growth(f"memory that {rounds * len(here.daemons):,} ticks add; {size}", before, rss_mib())
                )
            here.close()
        quarter, whole = taken
        for what, (cpu, wall) in whole.items():
            before_cpu, _ = quarter[what]
            is_dagsters = what.startswith("Dagster")
            ratio = cpu / before_cpu if before_cpu else 1.0
            results.append(
                Result(
                    name=f"{what}; {size}; {1000 * wall:.0f} ms of wall time",
                    value=1000 * cpu,
                    unit="ms",
                    peers={"a quarter of the pipelines": 1000 * before_cpu},
                    ratio=ratio,
                    bar="shown" if is_dagsters else f"≤ {LINEAR:g} × a quarter of the pipelines",
                    ok=is_dagsters or ratio <= LINEAR,
                )
            )
    return emit(results, json=given.json)


def seconds_once(work: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU seconds and wall seconds of `work`."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


if __name__ == "__main__":
    raise SystemExit(main())
