"""Load time of the definitions, which every run and tick pays first, and of a plan, which needs a part of them, also
with a history of trainings to expect the next one from.

Each measurement is a fresh interpreter, ours and the peer in turn. `import dagster` is the peer because no user of
Dagster can pay less. CPU time, because an import hardly waits for anything but the other work on the machine.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._report import Result, emit, interleave, parse_args, ratio_of
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.usage import UsageRecord, UsedAttempt, UsedLaunch, usage_file
from resources.artifacts import artifacts_of
from resources.job.reserved import Reserved

MOST_TIMES_DAGSTER = 4.5
"""Most CPU time, as a multiple of `import dagster`: 3.75 to 3.88 times. Half of it declares the pipelines."""
MOST_OF_A_PLAN = 3.0
"""Most CPU time of `plan`, as a multiple of `import dagster`. The home is empty, so that it also makes the tables of a
ledger in memory."""
TRAININGS = 100
"""Records of trainings in the home with a history."""
_PLAN = (
    "import sys; sys.argv = ['ml-assets', 'plan', 'flight_delay', '2013-12-31']; "
    "from ml_assets.cli import main; main()"
)


def _interpreter(code: str, home: str) -> None:
    """Run `code` in a new interpreter with an empty home of the platform."""
    environment = {"PATH": "/usr/bin:/bin", "ML_ASSETS_HOME": home, "HOME": home}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
    )


def _with_history(home: str) -> None:
    """Give `home` the records of completed trainings of the planned model."""
    artifacts = artifacts_of(None, Path(home) / "artifacts")
    for number in range(TRAININGS):
        began = 1e9 + 1e5 * number
        held = Reserved(
            job=f"{number}",
            at=began + 600 + number,
            began=began,
            places=0,
            place_seconds=600.0 + number,
            cores=1.0,
            memory_bytes=0,
            gpus=0,
        )
        record = UsageRecord(
            environment="local",
            env="",
            model="flight_delay",
            partition="2013-12-30",
            fingerprint=f"{number:016d}",
            launches=(
                UsedLaunch(id="a", run_id="r", author="ada", began=began, at=held.at, state="completed"),
            ),
            attempts=(UsedAttempt(reading=held, gpus=0, gpu="", state="completed", workers=2),),
            goodput=Goodput(compute=held.place_seconds),
        )
        with artifacts.create(*usage_file(record.model, record.fingerprint)) as stream:
            stream.write(record.to_json().encode())


def _cpu_of_children() -> float:
    """Return the CPU seconds of all processes that ended so far below this one."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> int:
    """Measure, print, decide."""
    arguments = parse_args(__doc__)
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as used:
        _with_history(used)
        timings = interleave(
            {
                "definitions": lambda: _interpreter("import ml_assets.definitions as d; d.defs()", home),
                "plan": lambda: _interpreter(_PLAN, home),
                "expecting": lambda: _interpreter(_PLAN, used),
                "import dagster": lambda: _interpreter("import dagster", home),
            },
            rounds=3 if arguments.quick else 5,
            clock=_cpu_of_children,
        )
    dagster = timings["import dagster"]

    def result(way: str, what: str, bar: float) -> Result:
        times = ratio_of(timings[way].seconds, dagster.seconds)
        return Result(
            name=f"{what}, CPU time ({times.spread})",
            value=timings[way].median,
            unit="s",
            peers={"import dagster": dagster.median},
            ratio=times.median,
            bar=f"≤ {bar:g} × import dagster",
            ok=times.median <= bar,
        )

    results = [
        result("definitions", "loading the definitions", MOST_TIMES_DAGSTER),
        result("plan", "plan of a model", MOST_OF_A_PLAN),
        result("expecting", f"plan of a model with {TRAININGS} trainings on record", MOST_OF_A_PLAN),
    ]
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
