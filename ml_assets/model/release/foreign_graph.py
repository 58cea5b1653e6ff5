"""Graph of a model that was trained elsewhere: checked without trust, and turned into a graph of the matrix.

    python -m ml_assets.model.release.foreign_graph    reads a document and facts, writes the graph or the refusal

The check parses bytes of a stranger and runs their arithmetic, so it has a process of its own with bounds of memory and
time. A graph holds no code: only ONNX's own operators without loops, branches, chance, functions or other files are
legal. Numbers reach it unscaled, as float32; a category reaches it as its text if `vocabulary` has it, else as the
empty text. Not here: the document (`foreign_document`), the fit of columns and days (`model.steps.foreign`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (onnx is typed in part)

import base64
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ml_assets.data.features.encoding import CategoricalState, FittedState, LabelState, NumericState
from ml_assets.data.tables.guard import BuildRefused
from ml_assets.model.release.foreign_document import ForeignModel
from ml_assets.model.release.foreign_sizes import sizes_by_value

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_BY_CHANCE = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
_MOST_NODES = 20_000
_TOLERANCE = 1e-4
"""Largest difference from the expected answer: absolute up to 1, relative above. Frameworks sum in another order than
onnxruntime, and some in float64."""
_BATCH_ROWS = 2_048
"""Rows that serving gives a graph at once."""
_SECONDS, _MEMORY = 45, 4 * 2**30
"""Bounds of the check's process: seconds of a processor, and bytes of memory."""
_PATIENCE_SECONDS = 300
"""Longest wait for the check, on a machine that is busy with other work."""

_checks = threading.BoundedSemaphore(2)
"""Checks at once in this process: each may need its whole memory."""


class ForeignModelRefused(BuildRefused):
    """A model that was trained elsewhere is not usable for its pipeline. The message says what is wrong with it."""


def fitted_for(
    document: ForeignModel, classes: Sequence[str], label: LabelState | None = None
) -> FittedState:
    """Return the encoding in front of the graph: numbers as they are, and the declared texts as ids.

    `fill` means nothing here, as the graph itself reads NaN.
    """
    return FittedState(
        numeric=tuple(
            NumericState(name=one.name, fill=0.0, mean=0.0, scale=1.0)
            for one in document.inputs
            if not one.vocabulary
        ),
        categorical=tuple(
            CategoricalState(name=one.name, vocabulary=tuple(sorted(set(one.vocabulary))))
            for one in document.inputs
            if one.vocabulary
        ),
        classes=tuple(classes),
        label=label or LabelState(),
    )


def matrix_graph(document: ForeignModel, objective: str) -> bytes:
    """Return the graph from the matrix of `fitted_for` to the prediction, after all checks. Takes some seconds.

    `objective` is that of the pipeline, as trainings know it. Raises `ForeignModelRefused`.
    """
    asked = json.dumps({"document": document.model_dump(mode="json"), "objective": objective})
    try:
        with _checks:
            done = subprocess.run(
                [sys.executable, "-m", __name__],
                input=asked.encode(),
                capture_output=True,
                timeout=_PATIENCE_SECONDS,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise ForeignModelRefused(
            f"the ONNX graph took longer than {_PATIENCE_SECONDS} s on {_BATCH_ROWS:,} rows: make the model smaller"
        ) from None
    try:
        answer: dict[str, str] = json.loads(done.stdout)
    except ValueError:
        raise ForeignModelRefused(
            f"the check of the ONNX graph ended with status {done.returncode}: its parser or onnxruntime failed, or "
            f"{_BATCH_ROWS:,} rows needed more than {_MEMORY // 2**30} GiB, or {_SECONDS} s of a processor. Make the "
            "model smaller, and look at it with onnx.checker.check_model"
        ) from None
    if "refused" in answer:
        raise ForeignModelRefused(answer["refused"])
    return base64.b64decode(answer["graph"])


def _checked(document: ForeignModel, objective: str) -> bytes:
    """Do the work of `matrix_graph` in this process. Raises `ForeignModelRefused` and `BadConfiguration`."""
    import numpy as np

    from ml_assets.data.snapshots.split_reader import InputSpec
    from ml_assets.model.training.script.data import Example
    from ml_assets.model.training.script.graph import run_graph
    from ml_assets.model.training.script.matrix_graph import checked_graph

    fitted = fitted_for(document, document.classes)
    numeric, category = _rows(document, fitted)
    example = Example(
        inputs=InputSpec(
            numeric=tuple(one.name for one in fitted.numeric),
            fill=(0.0,) * len(fitted.numeric),
            categorical=tuple(one.name for one in fitted.categorical),
            cardinalities=tuple(one.cardinality for one in fitted.categorical),
            classes=document.classes,
        ),
        objective=objective,
        split="golden",
        numeric=np.vstack([numeric, np.full((1, len(fitted.numeric)), np.nan, np.float32)]),
        category=np.vstack([category, np.zeros((1, len(fitted.categorical)), np.int64)]),
        blobs=None,
    )
    graph = checked_graph(_of_matrix(document, fitted), example)
    found = run_graph(graph, example.matrix[:-1]).astype(np.float64).reshape(len(document.golden), -1)
    expected = np.array([row.numbers for row in document.golden])
    off = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    if not (off <= _TOLERANCE).all():
        row = int(off.max(axis=1).argmax())
        raise ForeignModelRefused(
            f"golden row {row}: the graph answers {', '.join(f'{one:g}' for one in found[row])}, expected is "
            f"{', '.join(f'{one:g}' for one in expected[row])}. Export the model again, or correct the row; numbers "
            "reach the graph as float32, and texts outside of `vocabulary` as the empty text"
        )
    _require_answers_to_a_batch(graph, example, fitted)
    return graph


def _require_answers_to_a_batch(graph: bytes, example: Any, fitted: FittedState) -> None:
    """Raise `ForeignModelRefused` unless a row has one answer at every place, and every text of a vocabulary has one.

    `example` has the golden rows.
    """
    import numpy as np

    from ml_assets.model.training.script.graph import run_graph

    few = len(example.matrix)
    alone = run_graph(graph, example.matrix).astype(np.float64).reshape(few, -1)
    batch = np.resize(example.matrix, (_BATCH_ROWS, example.width))
    beside = run_graph(graph, batch).astype(np.float64).reshape(_BATCH_ROWS, -1)
    off = np.abs(beside - np.resize(alone, beside.shape)) / np.maximum(1.0, np.abs(beside))
    if not (off <= _TOLERANCE).all():
        row = int(off.max(axis=1).argmax())
        raise ForeignModelRefused(
            f"the ONNX graph answers {beside[row][0]:g} to row {row} of {_BATCH_ROWS:,}, and {alone[row % few][0]:g} "
            f"to the same row as row {row % few} of {few}: let the answer to a row depend on that row alone"
        )
    most = max((one.cardinality for one in fitted.categorical), default=0)
    for first in range(0, most, _BATCH_ROWS):
        for at, one in enumerate(fitted.categorical, start=len(fitted.numeric)):
            batch[:, at] = np.arange(first, first + _BATCH_ROWS) % one.cardinality
        wrong = ~np.isfinite(run_graph(graph, batch).reshape(_BATCH_ROWS, -1)).all(axis=1)
        if wrong.any():
            ids = batch[int(wrong.argmax()), len(fitted.numeric) :].astype(int).tolist()
            words = [["", *one.vocabulary][at] for at, one in zip(ids, fitted.categorical, strict=True)]
            raise ForeignModelRefused(
                f"the ONNX graph gives no finite number for the texts {words}, which `vocabulary` has: requests may "
                "have any of them. Answer all, or leave out those that the model does not know"
            )


def _rows(document: ForeignModel, fitted: FittedState) -> tuple[Any, Any]:
    """Return numbers `[rows, F]` float32 and ids `[rows, C]` int64 of the golden rows."""
    import numpy as np

    numeric = np.full((len(document.golden), len(fitted.numeric)), np.nan, np.float64)
    category = np.zeros((len(document.golden), len(fitted.categorical)), np.int64)
    ids = [{word: at for at, word in enumerate(one.vocabulary, start=1)} for one in fitted.categorical]
    for place, row in enumerate(document.golden):
        for at, state in enumerate(fitted.numeric):
            value = row.inputs[state.name]
            if isinstance(value, str):
                raise ForeignModelRefused(
                    f"golden row {place}: {state.name!r} is a text, and the column has no `vocabulary`: send a number, "
                    "or declare the texts that the model knows"
                )
            numeric[place, at] = np.nan if value is None else value
        for at, state in enumerate(fitted.categorical):
            value = row.inputs[state.name]
            if value is not None and not isinstance(value, str):
                raise ForeignModelRefused(
                    f"golden row {place}: {state.name!r} is a number, and the column has a `vocabulary`: send a text"
                )
            category[place, at] = 0 if value is None else ids[at].get(value, 0)
    with np.errstate(over="ignore"):
        single = numeric.astype(np.float32)
    if np.isinf(single).any():
        raise ForeignModelRefused("a golden row has a number that float32 cannot hold: send a smaller one")
    return single, category


def _of_matrix(document: ForeignModel, fitted: FittedState) -> bytes:
    """Return the document's graph behind a matrix `[rows, F + C]` float32: numbers, then ids of categories."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    from ml_assets.model.training.script.graph import inputs_of

    model = _plain_graph(document.content)
    taken = {one.name: one for one in inputs_of(model.graph)}
    names = [one.name for one in (*fitted.numeric, *fitted.categorical)]
    if set(taken) != set(names):
        raise ForeignModelRefused(
            f"the ONNX graph has inputs {sorted(taken)}, `inputs` declares {sorted(names)}: they must be the same names"
        )
    legal = {one.name: (TensorProto.FLOAT, TensorProto.DOUBLE) for one in fitted.numeric}
    legal |= {one.name: (TensorProto.STRING,) for one in fitted.categorical}
    for name, one in taken.items():
        tensor = one.type.tensor_type
        sizes = [size.dim_value for size in tensor.shape.dim]
        if tensor.elem_type not in legal[name] or len(sizes) != 2 or sizes[1] != 1:
            kinds = " or ".join(TensorProto.DataType.Name(kind).lower() for kind in legal[name])
            raise ForeignModelRefused(
                f"the input {name!r} of the ONNX graph must be a tensor [rows, 1] of {kinds}: strings are for columns "
                "with a `vocabulary`, floats for all others"
            )
    own = onnx.compose.add_prefix(model, prefix="foreign/")
    nodes: list[Any] = []
    constants: list[Any] = []
    for at, name in enumerate(names):
        constants.append(helper.make_tensor(f"place {at}", TensorProto.INT64, [1], [at]))
        nodes.append(helper.make_node("Gather", ["matrix", f"place {at}"], [f"column {at}"], axis=1))
        target, kind = f"foreign/{name}", taken[name].type.tensor_type.elem_type
        if kind != TensorProto.STRING:
            nodes.append(helper.make_node("Cast", [f"column {at}"], [target], to=kind))
            continue
        words = ["", *fitted.categorical[at - len(fitted.numeric)].vocabulary]
        encoded = np.array([word.encode() for word in words], dtype=np.object_)
        constants.append(helper.make_tensor(f"words {at}", TensorProto.STRING, [len(words)], encoded))
        nodes.append(helper.make_node("Cast", [f"column {at}"], [f"ids {at}"], to=TensorProto.INT64))
        nodes.append(helper.make_node("Gather", [f"words {at}", f"ids {at}"], [target], axis=0))
    graph = helper.make_graph(
        [*nodes, *own.graph.node],
        "of_matrix",
        [helper.make_tensor_value_info("matrix", TensorProto.FLOAT, ["rows", len(names)])],
        own.graph.output,
        initializer=[*constants, *own.graph.initializer],
    )
    whole = helper.make_model(graph, opset_imports=own.opset_import, ir_version=own.ir_version)
    return whole.SerializeToString(deterministic=True)


def _plain_graph(content: bytes) -> Any:
    """Return the parsed graph. Raises `ForeignModelRefused` for all that is more than arithmetic on its inputs."""
    import onnx

    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf has error types of its own
        raise ForeignModelRefused(
            f"`onnx` is not an ONNX file: {error}. Send the bytes of model.onnx"
        ) from error
    for reason in _too_much(model):
        raise ForeignModelRefused(f"the ONNX graph {reason}")
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # the checker has error types of its own
        raise ForeignModelRefused(f"the ONNX graph is not valid: {error}. Export the model again") from error
    for reason in sizes_by_value(model):
        raise ForeignModelRefused(f"the ONNX graph {reason}")
    if not any(one.domain in ("", "ai.onnx") for one in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid("", 13))  # a graph of trees alone names none
    return model


def _too_much(model: Any) -> Iterator[str]:
    """Yield what a graph may not have, with the remedy."""
    for part in _messages(model):
        if part.DESCRIPTOR.name == "TensorProto" and (part.data_location == 1 or len(part.external_data)):
            yield "reads data from another file: save it as one file (onnx.save_model without external data)"
    if len(model.functions) or len(model.training_info):
        yield "has functions or training steps of its own: export it for inference, with ONNX's own operators"
    for one in model.opset_import:
        if one.domain not in _DOMAINS:
            yield f"uses operators of the domain {one.domain!r}: export it with ONNX's own operators"
    if len(model.graph.node) > _MOST_NODES:
        yield f"has {len(model.graph.node):,} nodes, at most {_MOST_NODES:,} are legal: make the model smaller"
    if len(model.graph.sparse_initializer):
        yield "has sparse initializers: export it with dense ones"
    for node in model.graph.node:
        if node.domain not in _DOMAINS:
            yield f"uses {node.op_type} of the domain {node.domain!r}: export it with ONNX's own operators"
        if any(one.HasField("g") or len(one.graphs) for one in node.attribute):
            yield f"has a branch or a loop ({node.op_type}): export the model without"
        if node.op_type in _BY_CHANCE or (node.op_type == "Dropout" and len(node.input) > 2):
            yield f"draws random numbers ({node.op_type}): export the model for inference"


def _messages(part: Any) -> Iterator[Any]:
    """Yield a message of ONNX and all messages in it."""
    yield part
    for field, value in part.ListFields():
        if field.message_type is not None:
            for one in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _messages(one)


def _main() -> None:
    from resources.job.errors import BadConfiguration

    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked: dict[str, Any] = json.load(sys.stdin)
    try:
        graph = _checked(ForeignModel.model_validate(asked["document"]), asked["objective"])
        answer = {"graph": base64.b64encode(graph).decode()}
    except (ForeignModelRefused, BadConfiguration) as refused:
        answer = {"refused": str(refused)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
