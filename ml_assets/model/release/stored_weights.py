"""Weights of a bundle: stored once, in `model.safetensors`, from which the graph reads them as ONNX external data.

Here: writing that file, and the place of each tensor in it. Not here: the graph that names these places
(`onnx_graph`), loading them (`runtime`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ml_assets.model.release.matrix import MatrixGraph

if TYPE_CHECKING:
    import onnx_ir
    from torch import nn

_ONNX_TYPES = {
    "BOOL": "BOOL", "U8": "UINT8", "I8": "INT8", "U16": "UINT16", "I16": "INT16", "U32": "UINT32", "I32": "INT32",
    "U64": "UINT64", "I64": "INT64", "F16": "FLOAT16", "BF16": "BFLOAT16", "F32": "FLOAT", "F64": "DOUBLE",
}  # fmt: skip
"""safetensors' name of a type → ONNX' name. A tensor of another type stays in the graph."""


def write_weights(module: "nn.Module | MatrixGraph", path: Path) -> None:
    """Write the module's tensors by name, without a copy in memory; none for a `MatrixGraph`, which holds its own.

    A tensor that has two names is written under both: whoever loads the file needs each name.
    """
    from safetensors.torch import save_file

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


def places_in(path: Path) -> "dict[str, onnx_ir.ExternalTensor]":
    """Return name → place, type and shape of each tensor in a safetensors file, as ONNX external data.

    A safetensors file begins with the length of its header (8 bytes, little-endian) and the header, JSON. Offsets in
    the header count from its end: https://huggingface.co/docs/safetensors/index#format
    """
    import onnx_ir

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
