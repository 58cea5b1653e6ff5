"""Construction of a bundle: from a trained model to the folder that is registered, served and reproduced.

Golden rows, a few raw rows in the bundle, prove at each load that it still predicts as trained. MLflow's files (MLmodel
with a signature, an input example, the environment to serve it in) let `mlflow models serve -m models:/NAME/VERSION`
work in a fresh environment. They are written as text, because importing mlflow takes seconds. This module imports
torch: only the process that evaluates a training loads it. Here: the files of a
bundle, and the proof that its graph predicts like the trained model. Not here: the graph itself (`onnx_graph`), the
store (`bundle_store`), serving (`runtime`), MLflow's call of the bundle (`pyfunc`).
"""

# pyright: reportUnknownMemberType=false
# (torch is typed in part)

import base64
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
import torch
import yaml
from numpy.typing import NDArray
from torch import nn

from ml_assets.data.features import categories
from ml_assets.data.features.encoding import FittedState
from ml_assets.foundation.objective_facts import ObjectiveName
from ml_assets.model.evaluation.comparison.holdout_rows import few_rows
from ml_assets.model.release.bundle_store import (
    BlobDecoder,
    Bundle,
    BundleFacts,
    BundleStore,
    Lineage,
    seal,
    tokens_of,
)
from ml_assets.model.release.onnx_graph import (
    MatrixGraph,
    null_category,
    places_in,
    serving_graph,
    write_weights,
)
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
from ml_assets.model.training.script.graph import frozen
from ml_assets.model.training.step.objectives import objective_of
from resources.environment import installed_version

MOST_ROWS = 64
GOLDEN_ROWS = 48
"""Real rows if they have no blobs."""
GOLDEN_BLOBS = 12
"""Real rows if each has a blob, because blobs may be large."""


def golden_rows(frame: pl.DataFrame, fitted: FittedState, blob: str = "") -> pl.DataFrame:
    """Return at most 64 rows of the columns a model reads, in their raw types; equal frames give equal rows.

    The rows are: up to 48 real rows (12 with blobs), spread evenly over `frame`; one row of nulls; and one row per
    text column with an unseen category. The column `blob` is never null. `frame` needs at least one row.
    """
    names = [state.name for state in (*fitted.numeric, *fitted.categorical)]
    raw = frame.select(*names, *([blob] if blob else []))
    if raw.height == 0:
        raise ValueError("cannot draw golden rows, because the frame has no rows: pass the holdout")
    first = raw.head(1)
    parts = [
        few_rows(raw, GOLDEN_BLOBS if blob else GOLDEN_ROWS),
        first.with_columns(pl.lit(None, raw.schema[name]).alias(name) for name in names),
    ]
    for state in fitted.categorical:
        if raw.schema[state.name] == pl.String:
            unseen = "never seen"
            while unseen in state.vocabulary:
                unseen += "!"
            parts.append(first.with_columns(pl.lit(unseen).alias(state.name)))
    return pl.concat(parts).head(MOST_ROWS)


_SERVING = ("mlflow", "numpy", "onnx", "onnxruntime", "pandas", "polars")
"""Packages that serving a bundle needs."""
_BUILDING = ("pip", "setuptools", "wheel")
_EXAMPLE, _SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"
_EXAMPLE_ROWS = 2


def write_mlflow_files(
    folder: Path,
    inputs: Sequence[InputColumn],
    columns: Sequence[str],
    golden: pl.DataFrame,
    packages: Iterable[str],
) -> None:
    """Write `bundle_store.MLFLOW_FILES` into `folder`.

    A prediction has `columns`, such as one for each class, or is one number if there are none. The first rows of
    `golden` become the input example. `packages` are top-level names of packages that this bundle imports in
    addition to those of every bundle. The requirements pin the versions that are installed here.
    """
    here = Path(__file__).parent
    for source in (here / "pyfunc.py", here / "runtime.py", Path(categories.__file__)):
        (folder / source.name).write_bytes(source.read_bytes())
    requirements = _requirements(packages)
    python = platform.python_version()
    documents: dict[str, Any] = {
        "MLmodel": {
            "flavors": {
                "python_function": {
                    "loader_module": "mlflow.pyfunc.model",
                    "model_code_path": "pyfunc.py",
                    "artifacts": {"bundle": {"path": ".", "uri": "."}},
                    "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
                    "python_version": python,
                },
            },
            "metadata": {"inputs": {column.name: column.dtype for column in inputs}},
            "mlflow_version": installed_version("mlflow"),
            "saved_input_example_info": {
                "artifact_path": _EXAMPLE,
                "pandas_orient": "split",
                "serving_input_path": _SERVED_EXAMPLE,
                "type": "dataframe",
            },
            "signature": {
                "inputs": json.dumps([_described(column) for column in inputs]),
                "outputs": json.dumps(
                    [
                        {"type": "double", "name": name, "required": True}
                        for name in columns or ("prediction",)
                    ]
                ),
                "params": None,
            },
        },
        "python_env.yaml": {
            "python": python,
            "build_dependencies": list(_BUILDING),
            "dependencies": ["-r requirements.txt"],
        },
        "conda.yaml": {
            "name": "mlflow-env",
            "channels": ["conda-forge"],
            "dependencies": [f"python={python}", "pip", {"pip": requirements}],
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=True))
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements))
    example = _split(golden.head(_EXAMPLE_ROWS).select(column.name for column in inputs))
    (folder / _EXAMPLE).write_text(json.dumps(example, indent=1))
    (folder / _SERVED_EXAMPLE).write_text(json.dumps({"dataframe_split": example}, indent=1))


def _described(column: InputColumn) -> dict[str, Any]:
    """Return the column for MLflow's schema.

    The type is `any`, except for blobs. MLflow would refuse whole numbers for a double and pandas' categories for a
    string, and the runtime checks values itself. No column is required: a missing value is legal, and the runtime names
    a missing column.
    """
    kind = "binary" if column.kind == "blob" else "any"
    return {"type": kind, "name": column.name, "required": False}


def _split(rows: pl.DataFrame) -> dict[str, Any]:
    """Return rows in the form of pandas' `orient="split"`: bytes as base64, times as ISO 8601, NaN as null."""
    return {"columns": rows.columns, "data": [[_plain(value) for value in row] for row in rows.iter_rows()]}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):  # a datetime is a date, too
        return value.isoformat()
    if isinstance(value, float) and value != value:
        return None
    return value


def _requirements(packages: Iterable[str]) -> list[str]:
    more = set(packages) - set(_SERVING)
    brought: Mapping[str, list[str]] = packages_distributions() if more else {}
    names = {brought[package][0] for package in more if package in brought} | set(_SERVING)
    # Without a local part: a package index has no `2.11.0+cpu`.
    return [f"{name}{_pin(name)}" for name in sorted(names)]


def _pin(package: str) -> str:
    """Return the installed version as a pin; nothing for pandas where only those who load the model need it."""
    try:
        return f"=={installed_version(package).partition('+')[0]}"
    except PackageNotFoundError:
        return ""


TOLERANCE = 1e-6
"""Largest accepted difference between graph and torch module on the golden rows; absolute for predictions up to 1,
relative to the prediction, or to the deviation of all, above."""


class ParityBroken(Exception):
    """The exported graph and the torch module give different predictions."""


@dataclass(frozen=True, kw_only=True)
class BundleContents:
    """Contents of a bundle."""

    module: nn.Module | MatrixGraph
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
    module: nn.Module,
    fitted: FittedState,
    objective: str,
    frame: pl.DataFrame,
    blobs: NDArray[Any] | None = None,
) -> NDArray[np.float64]:
    """Return predictions of the torch module in evaluation mode on the CPU, `[rows]` or `[rows, columns]`.

    `blobs` are the decoded blobs `[rows, ...]`, if rows have them.
    """
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


def _inputs(golden: pl.DataFrame, fitted: FittedState, blob: BlobInput | None) -> tuple[InputColumn, ...]:
    kinds = [(state.name, "numeric") for state in fitted.numeric]
    kinds += [(state.name, "category") for state in fitted.categorical]
    kinds += [] if blob is None else [(blob.column, "blob")]
    return tuple(
        InputColumn(name=name, kind=kind, dtype=str(golden.schema[name]).lower()) for name, kind in kinds
    )
