"""A table of 10 GB, three years of days, in one backfill: ingest, validate, derive features, train from the features.

The features sum up the raw rows of a day, so the training set is far smaller than the table: its size is printed. Each
step is one run of Dagster over the whole range, in a process of its own, whose peak memory is measured.
`--quick` takes 40 days.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import _backfill_tables as tables

from benchmarks._report import Result, emit, parse_args
from ml_assets.foundation.checkout import ROOT

DAYS, QUICK_DAYS = 1_096, 40
MOST_GIB = 3.0
STEPS = ("ingest and validate", "derive and validate features", "training set, training, evaluation")


def step(home: Path, days: int, number: int) -> dict[str, Any]:
    """Run one step in this process; return its seconds and its peak memory in GiB."""
    import dagster as dg

    from ml_assets.assembly import build_defs
    from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
    from ml_assets.components.metadata import RANGE_END, RANGE_START
    from resources.settings import Settings

    declared = tables.components(days)
    kinds = {"dataset": Dataset, "features": FeatureTable, "pipeline": TrainingPipeline}
    components = [kinds[name](kinds[name].spec_type.model_validate(declared[name])) for name in declared]
    defs = build_defs(Settings.model_validate({"home": home}), components=components)
    first, last = tables.FIRST.isoformat(), (tables.FIRST + timedelta(days - 1)).isoformat()
    over_range = {RANGE_START: first, RANGE_END: last}
    stages = [
        f"{tables.MODEL}/{one}" for one in ("training_set", "checkpoint", "evaluation", "registered_model")
    ]
    assets, partition, tags = (
        ([tables.READINGS], None, over_range),
        ([tables.DAILY], None, over_range),
        (stages, last, {}),
    )[number]
    began = time.perf_counter()
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        instance=dg.DagsterInstance.local_temp(str(home)),
        asset_selection=[dg.AssetKey(asset.split("/")) for asset in assets],
        partition_key=partition,
        tags=tags,
    )
    if not result.success:
        raise SystemExit(f"{assets[0]} failed")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": time.perf_counter() - began, "gib": peak, "training_set_mb": training_set_mb(home)}


def training_set_mb(home: Path) -> float:
    """Return the size of the shards and index files of the training sets below `home`."""
    folders = [manifest.parent for manifest in home.rglob("snapshot.json")]
    return sum(file.stat().st_size for one in folders for file in one.rglob("*") if file.is_file()) / 1e6


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    if sys.argv[1:2] == ["step"]:
        print(json.dumps(step(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
        return 0
    arguments = parse_args(__doc__)
    days = QUICK_DAYS if arguments.quick else DAYS
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as home:
        for number, name in enumerate(STEPS):
            command = [sys.executable, __file__, "step", home, str(days), str(number)]
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found[name] = json.loads(done.stdout.splitlines()[-1])
            if not arguments.json:
                print(f"{name}: {found[name]['seconds']:.0f} s, peak {found[name]['gib']:.2f} GiB")
    rows = days * tables.DEVICES * tables.PER_DEVICE
    results = [
        Result(
            name=f"{name}, {days:,} days, {_size(name, rows, one)}, in one run of {one['seconds']:.0f} s: peak memory",
            value=one["gib"],
            unit="GiB",
            bar=f"≤ {MOST_GIB:g} GiB",
            ok=one["gib"] <= MOST_GIB,
        )
        for name, one in found.items()
    ]
    return emit(results, json=arguments.json)


def _size(step: str, rows: int, found: dict[str, float]) -> str:
    if step == STEPS[-1]:
        return f"a training set of {found['training_set_mb']:.0f} MB"
    each_second = rows / found["seconds"] / 1e6
    return f"{rows * tables.ROW_BYTES / 1e9:.1f} GB of raw rows, {each_second:.2f} million a second"


if __name__ == "__main__":
    raise SystemExit(main())
