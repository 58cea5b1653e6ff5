"""ONNX graph from raw columns to predictions: standardised numbers, categories' ids, torch module, sigmoid.

If a model is not torch, its own graph of one matrix takes the place of the torch module (`MatrixGraph`). Weights of a
torch module are stored once, in `model.safetensors`; the graph reads them as ONNX external data. Here: export and
composition of the graph, with deterministic bytes, and the file of weights. Not here: the other files of a bundle
(`bundle`), running the graph (`runtime`), checking the graph that a script returns (training.script.matrix_graph).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (onnx and onnxruntime are typed in part)
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)
# pyright: reportUnknownMemberType=false
# (torch and onnx are typed in part)

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import polars as pl
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from safetensors.torch import save_file
from torch import Tensor, nn

from ml_assets.data.features.encoding import UNKNOWN, FittedState
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.release.runtime import BLOB, CATEGORY, INSIDE, NUMERIC, TOKENS, BlobInput
from ml_assets.model.training.script.graph import clear_notes, inputs_of, module_graph, run_graph
from ml_assets.model.training.step.objectives import objective_of, token_nats

_OWN = "own/"
"""Prefix of every name in the original graph."""


@dataclass(frozen=True)
class MatrixGraph:
    """ONNX graph with one input, `[rows, F + C]` float32, and one output, `[rows]`, `[rows, 1]` or `[rows, classes]`.

    The input holds standardised numbers, NaN where missing, then category ids. The output is a probability, a value, or
    a probability for each class.
    """

    content: bytes
    """The `onnx.ModelProto`, serialized."""

    def predictions(self, fitted: FittedState, frame: pl.DataFrame) -> NDArray[np.float64]:
        """Return the original graph's `[rows]` or `[rows, classes]` predictions for raw rows, float64."""
        numeric, category = fitted.encode(frame)
        matrix = np.hstack([numeric, category.astype(np.float32)])
        return run_graph(self.content, matrix).astype(np.float64).reshape(-1, *_classes(fitted))

    def core(self, fitted: FittedState) -> onnx.ModelProto:
        """Return the graph with inputs `numeric` `[rows, F]` float32 and `category` `[rows, C]` int64.

        An input without columns is left out. The output is `[rows]` float32, or `[rows, classes]`.
        """
        model = onnx.compose.add_prefix(onnx.load_model_from_string(self.content), prefix=_OWN)
        matrix, answer = inputs_of(model.graph)[0].name, model.graph.output[0].name
        parts: list[str] = []
        nodes: list[Any] = []
        inputs: list[Any] = []
        if fitted.numeric:
            parts.append("numeric")
            inputs.append(
                helper.make_tensor_value_info("numeric", TensorProto.FLOAT, ["rows", len(fitted.numeric)])
            )
        if fitted.categorical:
            parts.append("ids")
            nodes.append(helper.make_node("Cast", ["category"], ["ids"], to=TensorProto.FLOAT))
            inputs.append(
                helper.make_tensor_value_info(
                    "category", TensorProto.INT64, ["rows", len(fitted.categorical)]
                )
            )
        nodes.append(helper.make_node("Concat", parts, [matrix], axis=1))
        nodes.extend(model.graph.node)
        nodes.append(helper.make_node("Cast", [answer], ["number"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Reshape", ["number", "shape"], ["answer"]))
        shape = [-1, *_classes(fitted)]
        graph = helper.make_graph(
            nodes,
            "matrix_to_prediction",
            inputs,
            [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["rows", *_classes(fitted)])],
            initializer=[
                *model.graph.initializer,
                helper.make_tensor("shape", TensorProto.INT64, [len(shape)], shape),
            ],
        )
        core = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        core.functions.extend(model.functions)
        return core


def _classes(fitted: FittedState) -> list[int]:
    """Return the size of a prediction beyond its rows: the number of classes, or nothing."""
    return [len(fitted.classes)] if fitted.classes else []


_ONNX_TYPES = {
    "BOOL": "BOOL", "U8": "UINT8", "I8": "INT8", "U16": "UINT16", "I16": "INT16", "U32": "UINT32", "I32": "INT32",
    "U64": "UINT64", "I64": "INT64", "F16": "FLOAT16", "BF16": "BFLOAT16", "F32": "FLOAT", "F64": "DOUBLE",
}  # fmt: skip
"""safetensors' name of a type → ONNX' name. A tensor of another type stays in the graph."""


def write_weights(module: nn.Module | MatrixGraph, path: Path) -> None:
    """Write the module's tensors by name, without a copy in memory; none for a `MatrixGraph`, which holds its own.

    A tensor that has two names is written under both: whoever loads the file needs each name.
    """
    if isinstance(module, MatrixGraph):
        save_file({}, path)
        return
    seen: set[int] = set()
    tensors = {name: tensor.detach().contiguous() for name, tensor in module.state_dict().items()}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen:
            tensors[name] = tensor.clone()  # safetensors refuses tensors that share memory
        seen.add(memory)
    save_file(tensors, path)


def places_in(path: Path) -> dict[str, onnx_ir.ExternalTensor]:
    """Return name → place, type and shape of each tensor in a safetensors file, as ONNX external data.

    A safetensors file begins with the length of its header (8 bytes, little-endian) and the header, JSON. Offsets in
    the header count from its end: https://huggingface.co/docs/safetensors/index#format
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    places: dict[str, onnx_ir.ExternalTensor] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _ONNX_TYPES:
            continue
        start, end = entry["data_offsets"]
        places[name] = onnx_ir.ExternalTensor(
            path.name,
            8 + length + start,
            end - start,
            onnx_ir.DataType[_ONNX_TYPES[entry["dtype"]]],
            shape=onnx_ir.Shape(entry["shape"]),
            name=name,
            base_dir=path.parent,
        )
    return places


_ML_OPSET = 3
"""Version of domain `ai.onnx.ml`, for LabelEncoder from text to int64."""
_MEAN, _SCALE = (f"{INSIDE}{what} of the numbers" for what in ("mean", "scale"))
"""With spaces, as all names that this module adds: a name that torch writes has none."""


def null_category(fitted: FittedState) -> str:
    """Return the text for null in the graph: empty, unless the empty text is a category."""
    words = {word for state in fitted.categorical for word in state.vocabulary}
    null = ""
    while null in words:
        null += "∅"
    return null


def serving_graph(
    module: nn.Module | MatrixGraph,
    fitted: FittedState,
    objective: str,
    output: str,
    blob: BlobInput | None = None,
    *,
    stored: Mapping[str, onnx_ir.ExternalTensor],
) -> bytes:
    """Return the bytes of an ONNX graph from raw columns to the predictions of `module`.

    The graph has one input `[rows, 1]` per raw column, float64 or text for a category, and one input `[rows, ...]` for
    decoded blobs. `module` takes (`[B, F]` float32, standardised, with NaN where missing, `[B, C]` int64, blobs if
    there are any). It returns the output of `objective`, whose prediction (the sigmoid of logits) is part of the
    graph. A `MatrixGraph` returns predictions. `output` names the result, float32, `[rows]` or `[rows, columns]`. For
    texts there is a second one, the nats of each token, `[rows, T - 1]`. The graph refers to tensors of the module's
    `state_dict` by their places in `stored`; everything else is in the graph. The same weights give the same bytes,
    because paths, stack traces and versions that the exporter writes are removed.
    """
    columns = fitted.classes or facts_of(objective).columns
    shapes = {output: ["rows", *([len(columns)] if columns else [])]}
    if blob is not None and facts_of(objective).has_tokens:
        shapes[output + TOKENS] = ["rows", blob.shape[0] - 1]
    is_graph = isinstance(module, MatrixGraph)
    inner = module.core(fitted) if is_graph else _export(module, fitted, objective, blob, stored)
    core = onnx.compose.add_prefix(inner, prefix=INSIDE)
    nodes = [*_gather_columns(fitted), *core.graph.node]
    if blob is not None:
        nodes.insert(0, helper.make_node("Identity", [blob.column], [BLOB]))
    graph = helper.make_graph(
        nodes,
        "",  # clear_notes names it
        [
            *(_column(state.name, TensorProto.DOUBLE) for state in fitted.numeric),
            *(_column(state.name, TensorProto.STRING) for state in fitted.categorical),
            *([] if blob is None else [_tensor(blob)]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        initializer=[*core.graph.initializer, *_scales(fitted)],
        value_info=core.graph.input,  # where the runtime cuts off the part for raw columns
    )
    for found, name in zip(core.graph.output, shapes, strict=True):
        graph.node.append(helper.make_node("Identity", [found.name], [name]))
    versions = {opset.domain: opset.version for opset in core.opset_import}
    versions["ai.onnx.ml"] = max(_ML_OPSET, versions.get("ai.onnx.ml", 0))
    whole = helper.make_model(
        graph,
        producer_name="ml-assets",
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in versions.items()],
        ir_version=core.ir_version,
    )
    whole.functions.extend(core.functions)
    clear_notes(whole)
    return whole.SerializeToString(deterministic=True)


def _export(
    module: nn.Module,
    fitted: FittedState,
    objective: str,
    blob: BlobInput | None,
    stored: Mapping[str, onnx_ir.ExternalTensor],
) -> onnx.ModelProto:
    made_for, has_tokens = objective_of(objective), facts_of(objective).has_tokens

    class Served(nn.Module):
        """Takes only the inputs that have columns: ONNX has no way to feed a tensor of none."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            given = list(inputs)
            rows = given[0].shape[0]
            numeric = given.pop(0) if fitted.numeric else torch.zeros(rows, 0)
            category = given.pop(0) if fitted.categorical else torch.zeros(rows, 0, dtype=torch.int64)
            answer = self.inner(numeric, category, *given)
            prediction = made_for.predicted(answer, *given)
            return (prediction, token_nats(answer, given[0])) if has_tokens else prediction

    names: list[str] = []
    examples: list[Tensor] = []
    if fitted.numeric:
        names.append("numeric")
        examples.append(torch.zeros(2, len(fitted.numeric)))
    if fitted.categorical:
        names.append("category")
        examples.append(torch.zeros(2, len(fitted.categorical), dtype=torch.int64))
    if blob is not None:
        names.append("blob")
        examples.append(torch.zeros(2, *blob.shape, dtype=getattr(torch, blob.dtype)))
    outputs = ("answer", "tokens") if has_tokens else ("answer",)
    places = {f"inner.{name}": place for name, place in stored.items()}
    return module_graph(Served(module), dict(zip(names, examples, strict=True)), outputs, places)


def _gather_columns(fitted: FittedState) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that join raw columns into the two tensors that the module takes."""
    if fitted.numeric:
        raw, centred, scaled = (f"{INSIDE}{step} numbers" for step in ("raw", "centred", "scaled"))
        yield helper.make_node("Concat", [state.name for state in fitted.numeric], [raw], axis=1)
        # The same operations as in `NumericState.standardised`, so that the bits are the same.
        yield helper.make_node("Sub", [raw, _MEAN], [centred])
        yield helper.make_node("Div", [centred, _SCALE], [scaled])
        yield helper.make_node("Cast", [scaled], [NUMERIC], to=TensorProto.FLOAT)
    null = null_category(fitted)
    ids: list[str] = []
    for i, state in enumerate(fitted.categorical):
        # List null with the id of unknown: ONNX refuses a table without keys.
        words = [null, *state.vocabulary]
        ids.append(f"{INSIDE}ids of column {i}")
        yield helper.make_node(
            "LabelEncoder",
            [state.name],
            [ids[-1]],
            domain="ai.onnx.ml",
            keys_strings=words,
            values_int64s=[UNKNOWN, *range(1, len(words))],
            default_int64=UNKNOWN,
        )
    if ids:
        yield helper.make_node("Concat", ids, [CATEGORY], axis=1)


def _scales(fitted: FittedState) -> Iterator[onnx.TensorProto]:
    if fitted.numeric:
        width = [len(fitted.numeric)]
        for name, field in ((_MEAN, "mean"), (_SCALE, "scale")):
            values = [getattr(state, field) for state in fitted.numeric]
            yield helper.make_tensor(name, TensorProto.DOUBLE, width, values)


def _column(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, ["rows", 1])


def _tensor(blob: BlobInput) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(blob.dtype))
    return helper.make_tensor_value_info(blob.column, kind, ["rows", *blob.shape])
