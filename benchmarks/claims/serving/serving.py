"""Cost of a prediction from raw columns: the bundle's runtime beside torch and beside MLflow's pyfunc.

78 numeric columns and 6 categories, as many as the flights model has, into a 256-128 network. Torch gets its rows from
the fitted encoding, as in training; a second measurement gives it ready tensors. A bundle is made beside the plain
export of its module by `torch.onnx`, and a model is explained beside the predictions that this needs, both in CPU time.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from benchmarks._report import Result, Timing, emit, interleave, parse_args, ratio_of
from ml_assets.data.features.encoding import FittedState, fit
from ml_assets.foundation.days import Days
from ml_assets.model.evaluation.comparison.explanations import DRAWN, POINTS, explain
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import BundleStore, Lineage
from ml_assets.model.release.runtime import ServingModel
from resources.artifacts import FolderArtifacts
from resources.tracking.mlflow_client import reaching

NUMERIC, CATEGORY, MANY = 78, 6, 10_000
MOST_TIMES_EXPORT = 1.5
"""Most time to make a bundle. After the export, its graph is composed and proved on golden rows: 1.06 to 1.12 times."""
MOST_TIMES_PREDICTIONS = 1.5
"""Most time to explain, with an interval of the loss for each column: 1.03 to 1.12 times the predictions."""
EXPLAINED = EvaluationSpec.model_validate(
    {"objective": "binary", "gates": [{"name": "ranks", "metric": "auc", "at_least": 0.5}]}
)


class Net(nn.Module):
    """Imputation, embeddings, two hidden layers."""

    fill: Tensor

    def __init__(self, fitted: FittedState) -> None:
        super().__init__()
        values = [state.standardised_fill for state in fitted.numeric]
        self.register_buffer("fill", torch.tensor(values, dtype=torch.float32))
        self.embed = nn.ModuleList(nn.Embedding(state.cardinality, 8) for state in fitted.categorical)
        layers = [nn.Linear(NUMERIC + 8 * CATEGORY, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(128, 1))

    def forward(self, numeric: Tensor, category: Tensor) -> Tensor:
        """Return logits `[B]`."""
        filled = torch.where(torch.isnan(numeric), self.fill, numeric)
        embedded = [embed(category[:, i]) for i, embed in enumerate(self.embed)]
        return self.net(torch.cat([filled, *embedded], dim=1)).squeeze(1)


def main() -> int:
    """Make a bundle, time the export, then one row and many rows."""
    arguments = parse_args(__doc__)
    calls, rounds = (50, 3) if arguments.quick else (300, 9)
    torch.set_num_threads(1)
    contents = flights_shaped()
    rows, fitted, module = contents.rows, contents.fitted, contents.module
    assert isinstance(module, Net)
    with tempfile.TemporaryDirectory() as folder, reaching("bench"):
        store = BundleStore(FolderArtifacts(Path(folder)))
        first = _seconds(lambda: build_bundle(contents, store))
        bundle = build_bundle(contents, store)
        served = ServingModel.load(bundle.folder)
        import mlflow.pyfunc

        pyfunc = mlflow.pyfunc.load_model(str(bundle.folder))

        one, one_pandas, many_pandas = rows[:1], rows[:1].to_pandas(), rows.to_pandas()
        row = one.row(0, named=True)
        numeric, category = (torch.from_numpy(part) for part in fitted.encode(one))

        def eager(numeric: Tensor, category: Tensor) -> object:
            with torch.inference_mode():
                return torch.sigmoid(module(numeric, category.long()))

        def encoded(frame: pl.DataFrame) -> object:
            return eager(*(torch.from_numpy(part) for part in fitted.encode(frame)))

        inputs = {column.name: column.kind for column in served.inputs}
        labelled = rows.head(2_000).with_columns(
            label=pl.int_range(2_000) % 2, date=pl.int_range(2_000) // 33
        )
        explaining = interleave(
            {
                "ours": lambda: explain(
                    labelled, served.predict, inputs, EXPLAINED, label="label", shown=list(inputs)
                ),
                "plain": _repeat(lambda: served.predict(labelled), 1 + len(inputs) + DRAWN * POINTS),
            },
            3,
            time.process_time,
        )
        making = interleave(
            {
                "ours": lambda: build_bundle(contents, store),
                "plain": lambda: _export(module, numeric, category, Path(folder) / "plain.onnx"),
            },
            3 if arguments.quick else 5,
            time.process_time,
        )

        single = interleave(
            {
                "bundle": _repeat(lambda: served.predict_row(row), calls),
                "torch, ready tensors": _repeat(lambda: eager(numeric, category), calls),
                "torch, from raw columns": _repeat(lambda: encoded(one), max(1, calls // 10)),
                "mlflow pyfunc": _repeat(lambda: pyfunc.predict(one_pandas), max(1, calls // 10)),
            },
            rounds,
        )
        batch = interleave(
            {
                "bundle": lambda: served.predict(rows),
                "torch, from raw columns": lambda: encoded(rows),
                "mlflow pyfunc": lambda: pyfunc.predict(many_pandas),
            },
            rounds,
        )
    counts = {"bundle": calls, "torch, ready tensors": calls}
    row_us = {
        name: taken.best / counts.get(name, max(1, calls // 10)) * 1e6 for name, taken in single.items()
    }
    many_us = {name: taken.best / MANY * 1e6 for name, taken in batch.items()}
    results = [
        _result(
            "one raw row", row_us, "≤ 0.5 × torch from raw columns and ≤ 0.25 × mlflow pyfunc", 0.5, 0.25
        ),
        _result(
            "each of 10,000 raw rows", many_us, "≤ 1 × torch from raw columns and ≤ mlflow pyfunc", 1.0, 1.0
        ),
        _beside(
            f"make a bundle (export, proof, store; the first with all imports {first:.1f} s)",
            making,
            "torch.onnx.export",
            MOST_TIMES_EXPORT,
        ),
        _beside(
            f"explain {NUMERIC + CATEGORY} columns on 2,000 rows (importance, dependence of the top five)",
            explaining,
            "its predictions alone",
            MOST_TIMES_PREDICTIONS,
        ),
    ]
    return emit(results, json=arguments.json)


def flights_shaped(model: str = "bench", fingerprint: str = "f") -> BundleContents:
    """Return an untrained model over as many columns as the flights model has."""
    rows = _rows()
    fitted = fit(rows, rows.columns[:NUMERIC], rows.columns[NUMERIC:])
    lineage = Lineage(
        model=model,
        fingerprint=fingerprint,
        snapshot_digest="s",
        label="label",
        windows={},
        seen=Days(),
        schema_hash="h",
        code_version="",
        weights_sha256="w",
    )
    module = Net(fitted).eval()
    return BundleContents(module=module, fitted=fitted, objective="binary", rows=rows, lineage=lineage)


def _result(name: str, taken: dict[str, float], bar: str, of_torch: float, of_pyfunc: float) -> Result:
    ours, torchs, pyfuncs = taken["bundle"], taken["torch, from raw columns"], taken["mlflow pyfunc"]
    return Result(
        name=name,
        value=ours,
        unit="µs",
        peers={peer: value for peer, value in taken.items() if peer != "bundle"},
        ratio=ours / torchs,
        bar=bar,
        ok=ours <= of_torch * torchs and ours <= of_pyfunc * pyfuncs,
    )


def _beside(name: str, timings: dict[str, Timing], peer: str, most: float) -> Result:
    """Return the claim that `ours` takes at most `most` times as long as `plain`, which is called `peer`."""
    times = ratio_of(timings["ours"].seconds, timings["plain"].seconds)
    return Result(
        name=f"{name}; {times.spread}",
        value=timings["ours"].median,
        unit="CPU s",
        peers={peer: timings["plain"].median},
        ratio=times.median,
        bar=f"≤ {most:g} × {peer}",
        ok=times.median <= most,
    )


def _export(module: nn.Module, numeric: Tensor, category: Tensor, file: Path) -> None:
    """Export the module as its user does by hand, for any number of rows, with its weights in the file."""
    rows = torch.export.Dim("rows")
    torch.onnx.export(
        module,
        (numeric.repeat(2, 1), category.long().repeat(2, 1)),
        file,
        dynamo=True,
        dynamic_shapes=({0: rows}, {0: rows}),
        verbose=False,
    )


def _rows() -> pl.DataFrame:
    random = np.random.default_rng(0)
    columns: dict[str, object] = {f"n{i}": random.normal(i, 3, MANY) for i in range(NUMERIC)}
    words = np.array([f"word {i}" for i in range(100)])
    columns.update({f"c{i}": words[random.integers(0, 100, MANY)] for i in range(CATEGORY)})
    return pl.DataFrame(columns)


def _repeat(call: Callable[[], object], times: int) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(times):
            call()

    return repeat


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
