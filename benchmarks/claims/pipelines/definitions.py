"""Many pipelines: CPU time to load all of them, to plan and launch one of them, and to list them by Dagster's `dg`.

The pipelines are scaffolded into copies of this project. Each measurement is a fresh process; the ways of a round run
in turn, and a ratio is that of a round. Peers: definitions and lists of a project without pipelines, and `import
dagster`, because no user of Dagster can pay less. A launch is measured until the first line of its first step, which
then ends the process. `--pipelines 10 100 1000` chooses the sizes; the last one also has the commands.

Shown besides: which part of the load is spent in Dagster and the libraries below it, by a profile of one load, whose
shares say more than its seconds.
"""

import argparse
import os
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks._report import Result, emit, interleave, ratio_of
from benchmarks.claims.pipelines._scaffolded import checkout, scaffold

MOST = {100: 2.0, 1000: 11.0}
"""Pipelines → most CPU time of all definitions, as a multiple of a project without pipelines."""
MOST_TIMES_DAGSTER = 3.0
"""Most CPU time of `plan`, and of `launch` until its first step, as a multiple of `import dagster`."""
_LOAD = "import ml_assets.definitions as d; d.defs()"
_COMMAND = "import sys; sys.argv = ['ml-assets', *{}]; from ml_assets.cli import main; main()"
_HOME = "import ml_assets; ml_assets.open(writes=True).project.instance"
_PROFILE = """
import cProfile, sys
import dagster, ml_assets.assembly, ml_assets.components
import ml_assets.definitions as d
profile = cProfile.Profile()
profile.runcall(d.defs)
profile.dump_stats(sys.argv[1])
"""
_FIRST_STEP = "    import os; os._exit(0)\n    draw = np.random.default_rng("
MEASURED = "shop_0000"


def _process(project: Path, *arguments: str) -> None:
    """Run Python in `project` with a home of its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(project),
        "ML_ASSETS_HOME": str(project / "home"),
        "ML_ASSETS_AUTHOR": "benchmark",
        "DAGSTER_HOME": str(project / "home" / "dagster"),
        "HOME": str(project),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")


def _cpu_of_children() -> float:
    """Return the CPU seconds of all processes that ended so far below this one."""
    times = os.times()
    return times.children_user + times.children_system


def _made(folder: Path, pipelines: int) -> Path:
    """Return a copy of this project with a home and as many pipelines."""
    project = checkout(folder / str(pipelines))
    scaffold(project, pipelines)
    _process(project, "-W", "ignore", "-c", _HOME)
    return project


def _share_of_libraries(project: Path, folder: Path) -> float:
    """Return the share of the load's own time that is spent outside this project."""
    _process(project, "-W", "ignore", "-c", _PROFILE, str(folder / "profile"))
    stats = pstats.Stats(str(folder / "profile")).stats  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
    own = total = 0.0
    for (file, _, _), (_, _, seconds, _, _) in stats.items():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        total += float(seconds)  # pyright: ignore[reportUnknownArgumentType]
        own += float(seconds) if str(project) in str(file) else 0.0  # pyright: ignore[reportUnknownArgumentType]
    return 1 - own / total


def main() -> int:
    """Measure, print, decide."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument(
        "--pipelines", type=int, nargs="+", default=[10, 30, 100], help="sizes of the project"
    )
    arguments = parser.parse_args()
    sizes: list[int] = sorted(arguments.pipelines)
    most = sizes[-1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        projects = {size: _made(folder, size) for size in (0, *sizes)}
        many = projects[most]
        source = many / "ml_assets" / "defs" / MEASURED / "source.py"
        plan = _COMMAND.format(["plan", MEASURED, "2024-03-31"])
        launch = _COMMAND.format(["launch", f"datasets/{MEASURED}", "2024-01-01"])
        source.write_text(source.read_text().replace("    draw = np.random.default_rng(", _FIRST_STEP, 1))
        dg = str(Path(sys.executable).with_name("dg"))

        def run(size: int, *given: str) -> Callable[[], object]:
            return partial(_process, projects[size], "-W", "ignore", *given)

        timings = interleave(
            {
                "import dagster": run(0, "-c", "import dagster"),
                **{f"definitions of {size}": run(size, "-c", _LOAD) for size in projects},
                "plan": run(most, "-c", plan),
                "launch": run(most, "-c", launch),
                "list of 0": run(0, dg, "list", "defs", "--json"),
                f"list of {most}": run(most, dg, "list", "defs", "--json"),
            },
            rounds=2 if arguments.quick else 3,
            clock=_cpu_of_children,
        )
        share = _share_of_libraries(many, folder)

    def result(way: str, peer: str, what: str, bar: float | None) -> Result:
        times = ratio_of(timings[way].seconds, timings[peer].seconds)
        return Result(
            name=f"{what}, CPU time ({times.spread})",
            value=timings[way].median,
            unit="s",
            peers={peer: timings[peer].median},
            ratio=times.median,
            bar="shown" if bar is None else f"≤ {bar:g} × {peer}",
            ok=bar is None or times.median <= bar,
        )

    return emit(
        [
            *(
                result(
                    f"definitions of {size}",
                    "definitions of 0",
                    f"definitions of {size} pipelines",
                    MOST.get(size),
                )
                for size in sizes
            ),
            result("plan", "import dagster", f"plan of one of {most} pipelines", MOST_TIMES_DAGSTER),
            result(
                "launch",
                "import dagster",
                f"launch of a table of one of {most}, until its first step",
                MOST_TIMES_DAGSTER,
            ),
            result(f"list of {most}", "list of 0", f"`dg list defs --json` of {most} pipelines", None),
            Result(
                name=f"share of Dagster and libraries in a load of {most} pipelines, without imports of the platform",
                value=round(share, 2),
                unit="of the profile",
                bar="shown",
                ok=True,
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
