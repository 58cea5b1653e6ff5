"""Making a bundle: from a trained model to the folder that is registered, served and reproduced.

Here: the files of a bundle and the proof that its graph answers as the model. Not here: the graph
itself (`graph`), where bundles lie (`store`), how they are served (`runtime`).
"""

# pyright: reportUnknownMemberType=false
# (torch is typed in part)

import copy
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.features.encoding import FittedState
from ml_assets.release.facts import BundleFacts, Lineage
from ml_assets.release.golden import golden_rows
from ml_assets.release.graph import null_category, serving_graph
from ml_assets.release.matrix import MatrixGraph
from ml_assets.release.runtime import (
    FACTS,
    GOLDEN,
    GOLDEN_OUTPUT,
    GRAPH,
    GoldenMismatch,
    InputColumn,
    ServingModel,
)
from ml_assets.release.store import WEIGHTS, Bundle, BundleStore

if TYPE_CHECKING:
    from torch import nn

TOLERANCE = 1e-6
"""Largest accepted difference between graph and torch module on the golden rows, absolute for answers up to
1 and relative above."""


class ParityBroken(Exception):
    """The exported graph does not answer as the torch module does."""


@dataclass(frozen=True, kw_only=True)
class BundleContents:
    """What a bundle is made from."""

    module: "nn.Module | MatrixGraph"
    """Trained: (`[B, F]` float32 with NaN where missing, `[B, C]` int64) → `[B]` logits (`binary`) or
    values (`regression`); what is not torch comes as a graph of its own."""
    fitted: FittedState
    objective: Literal["binary", "regression"]
    rows: pl.DataFrame
    """Raw feature rows, for example the holdout: golden rows and types of columns are drawn from it."""
    lineage: Lineage
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


def build_bundle(contents: BundleContents, store: BundleStore) -> Bundle:
    """Export, prove and store a bundle. The same contents give the same digest, stored once.

    Raises `ParityBroken` where the graph differs from the module by more than 1e-6 on a golden row, `GraphRefused`
    where a graph that was given cannot be served.
    """
    fitted = contents.fitted
    golden = golden_rows(contents.rows, fitted)
    inputs = _inputs(golden, fitted)
    output = "prediction"
    while output in golden.columns:
        output += "_"
    facts = BundleFacts(
        objective=contents.objective,
        inputs=inputs,
        output=output,
        null_category=null_category(fitted),
        fitted=fitted,
        lineage=contents.lineage,
        metrics=contents.metrics,
    )
    model = contents.module
    if isinstance(model, MatrixGraph):
        expected = model.predictions(fitted, golden)
    else:
        expected = torch_predictions(model, fitted, contents.objective, golden)
    with store.incoming() as folder:
        (folder / GRAPH).write_bytes(serving_graph(model, fitted, contents.objective, output))
        (folder / WEIGHTS).write_bytes(_weights(model))
        (folder / FACTS).write_text(facts.to_json())
        golden.with_columns(pl.Series(GOLDEN_OUTPUT, expected)).write_parquet(folder / GOLDEN)
        _write_mlflow_files(folder, inputs)
        try:
            ServingModel.load(folder, tolerance=TOLERANCE)
        except GoldenMismatch as mismatch:
            raise ParityBroken(
                f"the graph of {contents.lineage.model} does not answer as its torch module: look for an "
                f"operation of the model function that torch.onnx exports differently. {mismatch}"
            ) from mismatch
        return store.add(folder)


def torch_predictions(
    module: "nn.Module", fitted: FittedState, objective: str, frame: pl.DataFrame
) -> NDArray[np.float64]:
    """`[rows]` predictions of the torch module itself, in evaluation mode on the CPU."""
    import torch

    numeric, category = fitted.encode(frame)
    frozen = copy.deepcopy(module).cpu().eval()
    with torch.inference_mode():
        answer = frozen(torch.from_numpy(numeric), torch.from_numpy(category.astype(np.int64)))
        answer = torch.sigmoid(answer) if objective == "binary" else answer
    return answer.double().numpy()


def _inputs(golden: pl.DataFrame, fitted: FittedState) -> tuple[InputColumn, ...]:
    kinds = [(state.name, "numeric") for state in fitted.numeric]
    kinds += [(state.name, "category") for state in fitted.categorical]
    return tuple(
        InputColumn(name=name, kind=kind, dtype=str(golden.schema[name]).lower()) for name, kind in kinds
    )


def _weights(module: "nn.Module | MatrixGraph") -> bytes:
    """Tensors by name; none of a graph, which holds its own."""
    from safetensors.torch import save

    if isinstance(module, MatrixGraph):
        return save({})

    return save({name: tensor.contiguous() for name, tensor in module.state_dict().items()})


def _write_mlflow_files(folder: Path, inputs: tuple[InputColumn, ...]) -> None:
    import yaml

    here = Path(__file__).parent
    for name in ("pyfunc.py", "runtime.py"):
        (folder / name).write_bytes((here / name).read_bytes())
    (folder / "requirements.txt").write_text("mlflow>=3.17\nnumpy>=2.1\nonnxruntime>=1.23\npolars>=2.1\n")
    # No `signature`: with one MLflow refuses an integer for a double and a pandas category for a string, and
    # takes 30 times as long as the prediction. The runtime checks columns itself and names what is wrong.
    description: dict[str, Any] = {
        "flavors": {
            "python_function": {
                "loader_module": "mlflow.pyfunc.model",
                "model_code_path": "pyfunc.py",
                "artifacts": {"bundle": {"path": ".", "uri": "."}},
                "python_version": ".".join(platform.python_version_tuple()[:2]),
            },
        },
        "metadata": {"inputs": {column.name: column.dtype for column in inputs}},
    }
    (folder / "MLmodel").write_text(yaml.safe_dump(description, sort_keys=True))
