"""A click log of 40 GB from its source to a registered model, in 4 GB of memory.

The log is synthetic and has the columns of a known public one: 13 numbers, 26 categories (`click_log`). A copy of this
project gets the pipeline, and the commands that a person types run in a cgroup with the limit, so that the memory is a
fact. `--gigabytes` chooses the size in Parquet. The disk needs three and a half times of it, and the cgroup needs root.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from string import Template

from benchmarks._report import Result, emit
from benchmarks.claims.pipelines._memory_group import MemoryGroup, memory_group
from benchmarks.claims.pipelines._scaffolded import checkout

GIGABYTES, QUICK_GIGABYTES, MEMORY = 40.0, 1.0, 4.0
CHUNK_MIB = "64"
"""A task of features then has one day with its lookback: a GB for each of the workers."""
DAY_GB = 0.0489
"""Parquet of a day of the log."""
DISK = 4.0
"""Free disk, as a multiple of the log: log, features, training set and its buckets."""
FIRST = date(2024, 1, 1)
BEFORE, VALIDATION, HOLDOUT = 3, 2, 4
"""Days without features, days of the two other splits."""
PIPELINE = Path(__file__).parent / "click_log"


def project_of(folder: Path, days: int) -> Path:
    """Copy this project into `folder`, with the click log as its only pipeline; return it."""
    project = checkout(folder / "project")
    own = project / "ml_assets" / "defs" / PIPELINE.name
    shutil.copytree(PIPELINE, own, ignore=shutil.ignore_patterns("__pycache__"))
    declared = own / "defs.yaml"
    filled = {"last": _day(days - 1), "train": days - BEFORE - VALIDATION - HOLDOUT}
    declared.write_text(Template(declared.read_text()).substitute(filled))
    return project


def _day(number: int) -> str:
    return (FIRST + timedelta(days=number)).isoformat()


def _gigabytes(*folders: Path) -> float:
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files) / 1e9


def demonstrate(project: Path, home: Path, days: int, group: MemoryGroup) -> list[Result]:
    """Run the commands one after the other; return the most memory that each held, and the sizes of what they made."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(project),
        "PYTHONPATH": str(project),
        "ML_ASSETS_HOME": str(home),
        "ML_ASSETS_AUTHOR": "demo",
        "ML_ASSETS_CHUNK_MIB": CHUNK_MIB,
    }
    last = _day(days - 1)
    steps = {
        "ingest, validation": ["datasets/clicks", f"{FIRST}..{last}"],
        "features with a lookback of three days": ["features/click_features", f"{_day(BEFORE)}..{last}"],
        "training set, training, evaluation, registration": ["click", last],
    }
    results: list[Result] = []
    sizes: dict[str, float] = {}
    for name, arguments in steps.items():
        began = time.monotonic()
        program = "from ml_assets.cli import main; main()"
        group.run([sys.executable, "-W", "ignore", "-c", program, "launch", *arguments], environment, project)
        minutes = (time.monotonic() - began) / 60
        sizes[name] = _gigabytes(home / "lake") - sum(sizes.values())
        results.append(
            Result(
                name=f"{name}, {minutes:.1f} min, {group.cpu_seconds / 60:.1f} of CPU: most memory of all processes, "
                "without pages of files",
                value=round(group.most_bytes / 1e9, 2),
                unit="GB",
                bar=f"≤ {group.limit_bytes / 1e9:g} GB, the limit of their cgroup",
                ok=group.most_bytes <= group.limit_bytes,
            )
        )
    log, features, _ = sizes.values()
    training_set = _gigabytes(*(found.parent for found in home.rglob("snapshot.json")))
    return [
        Result(
            name=f"a click log of {days} days to a registered model: its log in Parquet; features "
            f"{features:.1f} GB, training set {training_set:.1f} GB",
            value=round(log, 1),
            unit="GB",
            peers={"memory of its processes, at most": group.limit_bytes / 1e9},
            ratio=round(log * 1e9 / group.limit_bytes, 2),
            bar="shown",
            ok=True,
        ),
        *results,
    ]


def main() -> int:
    """Run the demonstration; return exit status 1 if it needed more memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=GIGABYTES, help="Parquet of the log")
    parser.add_argument(
        "--memory", type=float, default=MEMORY, help="GB that all processes may hold together"
    )
    parser.add_argument("--quick", action="store_true", help=f"a log of {QUICK_GIGABYTES:g} GB")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument(
        "--folder", type=Path, help="empty folder that keeps home and project; by default a temporary one"
    )
    arguments = parser.parse_args()
    gigabytes = QUICK_GIGABYTES if arguments.quick else arguments.gigabytes
    days = max(round(gigabytes / DAY_GB), BEFORE + VALIDATION + HOLDOUT + 4)
    with tempfile.TemporaryDirectory() as temporary, memory_group(arguments.memory) as group:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        free, needed = shutil.disk_usage(folder).free / 1e9, DISK * gigabytes
        if free < needed:
            raise SystemExit(
                f"the disk of {folder} has {free:.0f} GB free, and {needed:.0f} are needed: name another "
                "--folder, or fewer --gigabytes"
            )
        results = demonstrate(project_of(folder, days), folder / "home", days, group)
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
