"""Making a bundle: from a trained model to the folder that is registered, served and reproduced.

Here: the files of a bundle and the proof that its graph answers as the model. Not here: the graph
itself (`graph`), what MLflow reads (`mlflow_files`), where bundles lie (`store`), how they are served (`runtime`).
"""

# pyright: reportUnknownMemberType=false
# (torch is typed in part)

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.features.encoding import FittedState
from ml_assets.release.bundle_store import WEIGHTS, Bundle, BundleStore
from ml_assets.release.facts import BundleFacts, Lineage
from ml_assets.release.golden import golden_rows
from ml_assets.release.matrix import MatrixGraph
from ml_assets.release.mlflow_files import write_mlflow_files
from ml_assets.release.onnx_graph import null_category, serving_graph
from ml_assets.release.runtime import (
    DECODE,
    FACTS,
    GOLDEN,
    GOLDEN_OUTPUT,
    GRAPH,
    GoldenMismatch,
    InputColumn,
    SampleInput,
    SampleReader,
    ServingModel,
)

if TYPE_CHECKING:
    from torch import nn

TOLERANCE = 1e-6
"""Largest accepted difference between graph and torch module on the golden rows, absolute for answers up to
1 and relative above."""


class ParityBroken(Exception):
    """The exported graph does not answer as the torch module does."""


@dataclass(frozen=True, kw_only=True)
class SampleDecoder:
    """Decoder of a column's samples, for places where nothing of the project is installed."""

    column: str
    function: str
    """Name in `source`: `(content: bytes) -> array`."""
    source: str
    """Text of a module of its own."""
    packages: tuple[str, ...] = ()
    """Imported packages that Python does not bring, by top-level name."""


@dataclass(frozen=True, kw_only=True)
class BundleContents:
    """Contents of a bundle."""

    module: "nn.Module | MatrixGraph"
    """Trained: (`[B, F]` float32 with NaN where missing, `[B, C]` int64) → `[B]` logits (`binary`) or
    values (`regression`); what is not torch comes as a graph of its own."""
    fitted: FittedState
    objective: Literal["binary", "regression"]
    rows: pl.DataFrame
    """Raw feature rows, for example the holdout: golden rows and types of columns are drawn from it. Of rows with
    samples a few are enough."""
    lineage: Lineage
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    decode: SampleDecoder | None = None
    """Decoder of the rows' samples, where they have any; the module then takes them, `[B, ...]`, as third."""


def build_bundle(contents: BundleContents, store: BundleStore) -> Bundle:
    """Export, prove and store a bundle. The same contents give the same digest, stored once.

    Raises `ParityBroken` where the graph differs from the module by more than 1e-6 on a golden row.
    """
    fitted, model = contents.fitted, contents.module
    decode = (
        None if isinstance(model, MatrixGraph) else contents.decode
    )  # a graph of one matrix reads no samples
    golden = golden_rows(contents.rows, fitted, "" if decode is None else decode.column)
    with store.incoming() as folder:
        sample, samples = (None, None) if decode is None else _take_along(decode, golden, folder)
        inputs = _inputs(golden, fitted, sample)
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
            sample=sample,
        )
        if isinstance(model, MatrixGraph):
            expected = model.predictions(fitted, golden)
        else:
            expected = torch_predictions(model, fitted, contents.objective, golden, samples)
        (folder / GRAPH).write_bytes(serving_graph(model, fitted, contents.objective, output, sample))
        (folder / WEIGHTS).write_bytes(_weights(model))
        (folder / FACTS).write_text(facts.to_json())
        golden.with_columns(pl.Series(GOLDEN_OUTPUT, expected)).write_parquet(folder / GOLDEN)
        write_mlflow_files(folder, inputs, golden, () if decode is None else decode.packages)
        try:
            ServingModel.load(folder, tolerance=TOLERANCE)
        except GoldenMismatch as mismatch:
            raise ParityBroken(
                f"the graph of {contents.lineage.model} does not answer as its torch module: look for an "
                f"operation of the model function that torch.onnx exports differently. {mismatch}"
            ) from mismatch
        return store.add(folder)


def torch_predictions(
    module: "nn.Module",
    fitted: FittedState,
    objective: str,
    frame: pl.DataFrame,
    samples: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """`[rows]` predictions of the torch module itself, in evaluation mode on the CPU; `samples` `[rows, ...]` as they
    were read, where rows have them."""
    import torch

    numeric, category = fitted.encode(frame)
    arrays = (numeric, category.astype(np.int64), *(() if samples is None else (samples,)))
    frozen = copy.deepcopy(module).cpu().eval()
    with torch.inference_mode():
        answer = frozen(*[torch.from_numpy(array) for array in arrays])
        answer = torch.sigmoid(answer) if objective == "binary" else answer
    return answer.double().numpy()


def _take_along(
    decode: SampleDecoder, golden: pl.DataFrame, folder: Path
) -> tuple[SampleInput, NDArray[Any]]:
    """Return the sample's description and the golden rows' samples, read as they will be where the bundle is served."""
    (folder / DECODE).write_text(decode.source)
    reader = SampleReader.of_bundle(folder, decode.column, decode.function)
    names = [f"golden row {i}" for i in range(golden.height)]
    samples = reader.read(golden[decode.column].to_list(), names)
    sample = SampleInput(
        column=decode.column,
        function=decode.function,
        dtype=samples.dtype.name,
        shape=samples.shape[1:],
    )
    return sample, samples


def _inputs(golden: pl.DataFrame, fitted: FittedState, sample: SampleInput | None) -> tuple[InputColumn, ...]:
    kinds = [(state.name, "numeric") for state in fitted.numeric]
    kinds += [(state.name, "category") for state in fitted.categorical]
    kinds += [] if sample is None else [(sample.column, "sample")]
    return tuple(
        InputColumn(name=name, kind=kind, dtype=str(golden.schema[name]).lower()) for name, kind in kinds
    )


def _weights(module: "nn.Module | MatrixGraph") -> bytes:
    """Tensors by name; none of a graph, which holds its own."""
    from safetensors.torch import save

    if isinstance(module, MatrixGraph):
        return save({})

    return save({name: tensor.contiguous() for name, tensor in module.state_dict().items()})
