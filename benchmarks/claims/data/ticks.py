"""A tick of each sensor if nothing moved, at 3,650 partitions, and a tick after one more day.

The peers are an empty tick of Dagster, in the same process and rounds, and the tick of definitions that were just
loaded, which looks at the whole history as each tick did before. CPU seconds, because they do not depend on the load.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from benchmarks._report import Result, Timing, emit, interleave, parse_args, ratio_of
from benchmarks.claims.data._tick_tables import (
    NEWEST,
    READINGS,
    dataset,
    days,
    feature_table,
    fill,
    home_with,
    rows,
)
from ml_assets.assembly import build_defs
from ml_assets.components.dataset import new_data_sensor
from ml_assets.components.metadata import declared_tables
from ml_assets.context.home import make_home
from resources.platform import Platform

MOST_OF_EMPTY = 40
MOST_OF_FRESH = 0.02
MOST_GROWTH = 2.0


class Daemon:
    """Ticks of one sensor over a home, with the cursor kept between them, as Dagster's daemon keeps it."""

    def __init__(self, sensor: dg.SensorDefinition, instance: dg.DagsterInstance, **context: Any) -> None:
        self._sensor, self._instance, self._context = sensor, instance, context
        self._cursor: str | None = None

    def tick(self) -> str:
        """Evaluate the sensor and report its events; return the reason why nothing was requested."""
        with dg.build_sensor_context(
            instance=self._instance, cursor=self._cursor, **self._context
        ) as context:
            answer = self._sensor.evaluate_tick(context)
        self._cursor = answer.cursor
        for event in answer.asset_events:
            self._instance.report_runless_asset_event(event)
        return answer.skip_message or ""


@dg.sensor(name="empty")
def empty(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Decide nothing."""
    return dg.SkipReason("nothing")


def cpu_of(work: Callable[[], object]) -> float:
    """Return the CPU seconds of `work`."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Home:
    """A home with a history, its daemon's sensors, and how long they take."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        self.platform = home_with(folder / "home", count)
        make_home(self.platform.settings)
        self.instance = dg.DagsterInstance.from_config(str(self.platform.settings.dagster_home))
        NEWEST[0] = days(count)[-1]
        components = [dataset(), feature_table()]
        self._defs = build_defs(self.platform.settings, components=components, platform=self.platform)
        self.new_data = self.daemon(new_data_sensor(dataset().spec, _key(READINGS)))

    def daemon(self, sensor: dg.SensorDefinition) -> Daemon:
        """Return the daemon of a sensor over this home."""
        resources = {"platform": self.platform, "tables": declared_tables(self._defs)}
        needed = {name: resources[name] for name in sensor.required_resource_keys}
        repository = self._defs.get_repository_def()
        return Daemon(sensor, self.instance, resources=needed, repository_def=repository)

    def unchanged(self, daemon: Daemon, rounds: int) -> dict[str, Timing]:
        """Return the CPU seconds of a tick after which nothing moved, beside those of an empty tick."""
        nothing = self.daemon(empty)
        daemon.tick()
        timings = interleave({"tick": daemon.tick, "empty": nothing.tick}, rounds, clock=time.process_time)
        if not daemon.tick().startswith("nothing moved"):
            raise SystemExit(f"something moved: {daemon.tick()}")
        return timings

    def fresh(self, rounds: int) -> float:
        """Return the CPU seconds of a tick by definitions that were just loaded."""
        return statistics.median(
            cpu_of(self.daemon(new_data_sensor(dataset().spec, _key(READINGS))).tick) for _ in range(rounds)
        )

    def moved(self, rounds: int) -> float:
        """Return the CPU seconds of a tick after the rows of one day changed."""
        taken: list[float] = []
        table, day = dataset().table, days(self.count)[self.count // 2]
        for number in range(rounds):
            fill(self.platform, table, [day], value=float(number + 1))
            taken.append(cpu_of(self.new_data.tick))
        return statistics.median(taken)


def _key(table: str) -> dg.AssetKey:
    return dg.AssetKey(table.split("/"))


def of_files(folder: Path, platform: Platform, count: int, rounds: int) -> float:
    """Return the CPU seconds of an unchanged tick over a folder with a file for each day."""
    files = folder / "files"
    files.mkdir()
    for day in days(count):
        rows(day, 0.0).write_parquet(files / f"{day}.parquet")
    here = dataset({"kind": "file", "path": f"{files}/%Y-%m-%d.parquet"})
    defs = build_defs(platform.settings, components=[here], platform=platform)
    resources = {"platform": platform, "tables": declared_tables(defs)}
    daemon = Daemon(
        new_data_sensor(here.spec, _key(READINGS)),
        dg.DagsterInstance.ephemeral(),
        resources=resources,
        repository_def=defs.get_repository_def(),
    )
    daemon.tick()
    return statistics.median(cpu_of(daemon.tick) for _ in range(rounds))


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    from ml_assets.components.checks.leakage import request_leakage_tests
    from ml_assets.components.sensors.reconcile import report_missing_materializations

    arguments = parse_args(__doc__)
    few, many, rounds = (40, 400, 5) if arguments.quick else (365, 3650, 20)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        homes: list[Home] = []
        for count in (few, many):
            (folder / str(count)).mkdir()
            homes.append(Home(folder / str(count), count))
        large = homes[1]
        fresh = {}
        unchanged = {}
        for one in homes:
            NEWEST[0] = days(one.count)[-1]
            fresh[one.count] = one.fresh(3)
            unchanged[one.count] = one.unchanged(one.new_data, rounds)
        ours = unchanged[many]["tick"]
        to_empty = ratio_of(ours.seconds, unchanged[many]["empty"].seconds)
        growth = ours.median / unchanged[few]["tick"].median
        results += [
            Result(
                name=f"unchanged tick of `new_data`, {many:,} partitions ({to_empty.spread} an empty tick)",
                value=1000 * ours.median,
                unit="ms",
                peers={
                    "an empty tick of Dagster": 1000 * unchanged[many]["empty"].median,
                    "definitions just loaded": 1000 * fresh[many],
                },
                ratio=ours.median / fresh[many],
                bar=f"≤ {MOST_OF_FRESH} × the tick of definitions just loaded, ≤ {MOST_OF_EMPTY} × an empty tick",
                ok=ours.median <= MOST_OF_FRESH * fresh[many] and to_empty.median <= MOST_OF_EMPTY,
            ),
            Result(
                name="the same beside a tenth of the partitions",
                value=1000 * ours.median,
                unit="ms",
                peers={f"{few:,} partitions": 1000 * unchanged[few]["tick"].median},
                ratio=growth,
                bar=f"≤ {MOST_GROWTH} ×",
                ok=growth <= MOST_GROWTH,
            ),
        ]
        moved = {}
        for one in homes:
            NEWEST[0] = days(one.count)[-1]
            moved[one.count] = one.moved(5)
        results.append(
            Result(
                name=f"tick after the rows of one day changed, {many:,} partitions",
                value=1000 * moved[many],
                unit="ms",
                peers={
                    f"{few:,} partitions": 1000 * moved[few],
                    "definitions just loaded": 1000 * fresh[many],
                },
                ratio=moved[many] / fresh[many],
                bar="≤ 0.1 × the tick of definitions just loaded",
                ok=moved[many] <= 0.1 * fresh[many],
            )
        )
        for sensor in (report_missing_materializations, request_leakage_tests):
            taken = large.unchanged(large.daemon(sensor), rounds)
            ratio = ratio_of(taken["tick"].seconds, taken["empty"].seconds)
            results.append(
                Result(
                    name=f"unchanged tick of `{sensor.name}` ({ratio.spread})",
                    value=1000 * taken["tick"].median,
                    unit="ms",
                    peers={"an empty tick of Dagster": 1000 * taken["empty"].median},
                    ratio=ratio.median,
                    bar=f"≤ {MOST_OF_EMPTY} ×",
                    ok=ratio.median <= MOST_OF_EMPTY,
                )
            )
        taken_of_files = of_files(folder, large.platform, many, rounds)
        results.append(
            Result(
                name=f"unchanged tick over a folder with {many:,} files, which it lists",
                value=1000 * taken_of_files,
                unit="ms",
                peers={"the tick alone": 1000 * ours.median},
                bar="shown",
                ok=True,
            )
        )
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
