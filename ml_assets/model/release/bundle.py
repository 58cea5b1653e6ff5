"""Construction of a bundle: from a trained model to the folder that is registered, served and reproduced.

Here: the files of a bundle, and the proof that its graph predicts like the trained model. Not here: the graph itself
(`onnx_graph`), MLflow's files (`mlflow_files`), the store (`bundle_store`), serving (`runtime`).
"""

# pyright: reportUnknownMemberType=false
# (torch is typed in part)

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.tables.standalone import version_of
from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.release.bundle_store import Bundle, BundleStore, seal
from ml_assets.model.release.facts import BundleFacts, Lineage
from ml_assets.model.release.golden import golden_rows
from ml_assets.model.release.matrix import MatrixGraph
from ml_assets.model.release.mlflow_files import write_mlflow_files
from ml_assets.model.release.onnx_graph import null_category, serving_graph
from ml_assets.model.release.runtime import (
    DECODE,
    FACTS,
    GOLDEN,
    GOLDEN_OUTPUT,
    GRAPH,
    WEIGHTS,
    BlobInput,
    BlobReader,
    GoldenMismatch,
    InputColumn,
    ServingModel,
)
from ml_assets.model.release.stored_weights import places_in, write_weights
from ml_assets.model.training.script.graph import frozen

if TYPE_CHECKING:
    from torch import nn

TOLERANCE = 1e-6
"""Largest accepted difference between graph and torch module on the golden rows; absolute for predictions up to 1,
relative above."""


class ParityBroken(Exception):
    """The exported graph and the torch module give different predictions."""


@dataclass(frozen=True, kw_only=True)
class BlobDecoder:
    """Decoder of a column's blobs that works without this project installed."""

    column: str
    function: str
    """Name in `source`: `(content: bytes) -> array`."""
    source: str
    """Text of a self-contained module."""
    packages: tuple[str, ...] = ()
    """Top-level names of imported packages outside the standard library."""


@dataclass(frozen=True, kw_only=True)
class BundleContents:
    """Contents of a bundle."""

    module: "nn.Module | MatrixGraph"
    """Trained module: (`[B, F]` float32 with NaN where missing, `[B, C]` int64) → the output of its
    objective: logits or values `[B]`, scores of classes or of tokens. A model that is not torch comes as a
    `MatrixGraph`."""
    fitted: FittedState
    objective: ObjectiveName
    rows: pl.DataFrame
    """Raw feature rows, for example the holdout: the source of golden rows and column types. If rows have blobs, a
    few rows are enough."""
    lineage: Lineage
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    decode: BlobDecoder | None = None
    """Decoder of the rows' blobs, if they have any. The module then takes the blobs, `[B, ...]`, as third input."""
    vocabulary: int = 0
    """Number of token ids that `decode` may return, if rows are texts."""


def build_bundle(contents: BundleContents, store: BundleStore) -> Bundle:
    """Export, verify and store a bundle. Equal contents give the same digest and are stored once.

    Raises `ParityBroken` if the graph differs from the module by more than 1e-6 on a golden row.
    """
    import onnx

    fitted, model = contents.fitted, contents.module
    decode = (
        None if isinstance(model, MatrixGraph) else contents.decode
    )  # a graph of one matrix reads no blobs
    golden = golden_rows(contents.rows, fitted, "" if decode is None else decode.column)
    with store.incoming() as folder:
        blob, blobs = (None, None) if decode is None else _take_along(decode, golden, folder)
        inputs = _inputs(golden, fitted, blob)
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
            blob=blob,
            tokens=tokens_of(contents.objective, contents.decode, contents.vocabulary),
        )
        if isinstance(model, MatrixGraph):
            expected = model.predictions(fitted, golden)
        else:
            expected = torch_predictions(model, fitted, contents.objective, golden, blobs)
        write_weights(model, folder / WEIGHTS)
        places = places_in(folder / WEIGHTS)
        graph = serving_graph(model, fitted, contents.objective, output, blob, stored=places)
        (folder / GRAPH).write_bytes(graph)
        onnx.checker.check_model(folder / GRAPH)  # by its path, as external data are beside the graph
        (folder / FACTS).write_text(facts.to_json())
        golden.with_columns(pl.Series(GOLDEN_OUTPUT, expected)).write_parquet(folder / GOLDEN)
        packages = () if decode is None else decode.packages
        write_mlflow_files(folder, inputs, facts.columns, golden, packages)
        seal(folder)
        try:
            ServingModel.load(folder, tolerance=TOLERANCE)
        except GoldenMismatch as mismatch:
            raise ParityBroken(
                f"the graph of {contents.lineage.model} predicts other values than its torch module: look for "
                f"an operation of the model function that torch.onnx exports differently. {mismatch}"
            ) from mismatch
        return store.add(folder)


def torch_predictions(
    module: "nn.Module",
    fitted: FittedState,
    objective: str,
    frame: pl.DataFrame,
    blobs: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """Return predictions of the torch module in evaluation mode on the CPU, `[rows]` or `[rows, columns]`.

    `blobs` are the decoded blobs `[rows, ...]`, if rows have them.
    """
    import torch

    from ml_assets.model.training.step.objectives import objective_of

    numeric, category = fitted.encode(frame)
    arrays = (numeric, category.astype(np.int64), *(() if blobs is None else (blobs,)))
    served = frozen(module)
    inputs = [torch.from_numpy(array) for array in arrays]
    with torch.inference_mode():
        answer = objective_of(objective).predicted(served(*inputs), *inputs[2:])
    return answer.double().numpy()


def _take_along(decode: BlobDecoder, golden: pl.DataFrame, folder: Path) -> tuple[BlobInput, NDArray[Any]]:
    """Write `decode.py` into the bundle; return the blob's description and the golden rows' blobs.

    Reads the blobs with the code that also reads them when the bundle is served.
    """
    (folder / DECODE).write_text(decode.source)
    reader = BlobReader.of_bundle(folder, decode.column, decode.function)
    names = [f"golden row {i}" for i in range(golden.height)]
    blobs = reader.read(golden[decode.column].to_list(), names)
    blob = BlobInput(
        column=decode.column,
        function=decode.function,
        dtype=blobs.dtype.name,
        shape=blobs.shape[1:],
    )
    return blob, blobs


def tokens_of(objective: str, decode: BlobDecoder | None, vocabulary: int) -> str:
    """Return an identity of the tokens that a text is read as; empty if rows are not texts."""
    if decode is None or not facts_of(objective).has_tokens:
        return ""
    return f"{vocabulary} ids, {decode.function} {version_of(decode.source)}"


def _inputs(golden: pl.DataFrame, fitted: FittedState, blob: BlobInput | None) -> tuple[InputColumn, ...]:
    kinds = [(state.name, "numeric") for state in fitted.numeric]
    kinds += [(state.name, "category") for state in fitted.categorical]
    kinds += [] if blob is None else [(blob.column, "blob")]
    return tuple(
        InputColumn(name=name, kind=kind, dtype=str(golden.schema[name]).lower()) for name, kind in kinds
    )
