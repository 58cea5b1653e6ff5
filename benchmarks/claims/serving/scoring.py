"""Scoring by a bundle's runtime: one raw row, and many rows on two threads, beside MLflow's pyfunc of the same bundle.

The model of `flight_delay`: 77 numbers in float32, a tenth of them null, 7 categories, layers of 128 and 64. The rows
are drawn at random. Peak memory is that of the process, less what it had before.
"""

import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._report import Result, emit, interleave, parse_args
from ml_assets.data.features.encoding import fit
from ml_assets.data.snapshots.builder import input_spec
from ml_assets.defs.flights.model import build
from ml_assets.foundation.days import Days
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import BundleStore, Lineage
from ml_assets.model.release.runtime import ServingModel
from ml_assets.model.training.data.preprocess import FullModel
from resources.artifacts import FolderArtifacts
from resources.tracking.mlflow_client import reaching

NUMERIC, CATEGORY = 77, (15, 3, 92, 12, 4, 7, 19)
THREADS = 2
_KIB = 1024


def main() -> int:
    """Make a bundle, time rows one by one, then a million rows."""
    arguments = parse_args(__doc__)
    calls, rounds, many = (200, 5, 200_000) if arguments.quick else (1_000, 25, 1_000_000)
    rows = _rows(20_000)
    names = rows.columns
    fitted = fit(rows, names[:NUMERIC], names[NUMERIC:])
    inputs = input_spec(fitted)
    lineage = Lineage(
        model="bench",
        fingerprint="f",
        snapshot_digest="s",
        label="label",
        windows={},
        seen=Days(),
        schema_hash="h",
        code_version="",
        weights_sha256="w",
    )
    contents = BundleContents(
        module=FullModel(inputs, build(inputs)), fitted=fitted, objective="binary", rows=rows, lineage=lineage
    )
    with tempfile.TemporaryDirectory() as folder, reaching("bench"):
        bundle = build_bundle(contents, BundleStore(FolderArtifacts(Path(folder))))
        import mlflow.pyfunc

        pyfunc = mlflow.pyfunc.load_model(str(bundle.folder))
        served = ServingModel.load(bundle.folder, threads=THREADS)
        row, one_pandas = rows.row(0, named=True), rows[:1].to_pandas()
        few = max(5, calls // 50)
        single = interleave(
            {
                "bundle": _repeat(lambda: served.predict_row(row), calls),
                "mlflow pyfunc": _repeat(lambda: pyfunc.predict(one_pandas), few),
            },
            rounds,
        )
        row_us = {
            "bundle": single["bundle"].median / calls * 1e6,
            "best round": single["bundle"].best / calls * 1e6,
            "mlflow pyfunc": single["mlflow pyfunc"].median / few * 1e6,
        }
        frame = rows.sample(many, with_replacement=True, seed=1)
        served.predict(frame)
        before = _peak_mib()
        batch = interleave(
            {
                "bundle": lambda: served.predict(frame),
                "row by row": _repeat(lambda: served.predict_row(row), calls),
            },
            max(3, rounds // 5),
        )
        grown = _peak_mib() - before
    rate, one_by_one = many / batch["bundle"].median, calls / batch["row by row"].median
    load = os.getloadavg()[0]
    ratio = row_us["bundle"] / row_us["mlflow pyfunc"]
    results = [
        Result(
            name=f"one raw row, median of {rounds} rounds (load of the machine {load:.1f})",
            value=row_us["bundle"],
            unit="µs",
            peers={"its best round": row_us["best round"], "mlflow pyfunc": row_us["mlflow pyfunc"]},
            ratio=ratio,
            bar="≤ 1/200 × mlflow pyfunc",
            ok=200 * ratio <= 1,
        ),
        Result(
            name=f"{many:,} raw rows on {THREADS} threads, rows a second",
            value=rate,
            unit="rows/s",
            peers={"best round": many / batch["bundle"].best, "row by row": one_by_one},
            ratio=rate / one_by_one,
            bar="≥ 20 × row by row",
            ok=rate >= 20 * one_by_one,
        ),
        Result(
            name="peak memory that later rounds added",
            value=grown,
            unit="MiB",
            bar="≤ 64 MiB",
            ok=grown <= 64,
        ),
    ]
    return emit(results, json=arguments.json)


def _rows(count: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    columns: dict[str, pl.Series] = {}
    for i in range(NUMERIC):
        values = pl.Series(random.normal(i, 3, count).astype(np.float32))
        columns[f"n{i}"] = values.set(pl.Series(random.random(count) < 0.1), None)
    for i, size in enumerate(CATEGORY):
        words = np.array([f"word {word}" for word in range(size)])
        columns[f"c{i}"] = pl.Series(words[random.integers(0, size, count)])
    return pl.DataFrame(columns)


def _repeat(call: Callable[[], object], times: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(times):
            call()

    return repeat


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KIB


if __name__ == "__main__":
    raise SystemExit(main())
