"""Documents of models that were trained elsewhere, for `store_demand`: a good one, a bad one, and their damage."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import polars as pl
from onnx import TensorProto, helper

from ml_assets.context import Context

MODEL, PARTITION = "store_demand", "2024-01-08"
NUMBERS = ("units_mean_4w", "units_1w", "price", "promotion", "season_sin", "season_cos")
LAST_DAY = "2023-11-05"
"""Before the holdout of `PARTITION`, which begins on 2023-11-20."""


def fitted_document(context: Context) -> dict[str, Any]:
    """Return a linear model with an offset for each product, fitted on weeks before the holdout."""
    reader = context.project.reader()
    keys = [key for key in sorted(reader.digests("features/sales_features")) if key <= LAST_DAY]
    rows = reader.scan("features/sales_features", keys).collect().drop_nulls([*NUMBERS, "units"])
    products = rows["product"].unique().sort().to_list()
    columns = [rows[name].to_numpy() for name in NUMBERS]
    columns += [(rows["product"] == product).to_numpy() for product in products]
    weights, *_ = np.linalg.lstsq(
        np.stack(columns, axis=1).astype(np.float64), rows["units"].to_numpy(), rcond=None
    )
    offsets = dict(zip(products, weights[len(NUMBERS) :].tolist(), strict=True))
    return document(rows.head(8), dict(zip(NUMBERS, weights[: len(NUMBERS)].tolist(), strict=True)), offsets)


def document(
    rows: pl.DataFrame, weights: Mapping[str, float], offsets: Mapping[str, float]
) -> dict[str, Any]:
    """Return the document of a linear model with golden rows from `rows`, whose answers are computed here."""
    golden = [
        {
            "inputs": {name: row[name] for name in (*weights, "product")},
            "expected": sum(weights[name] * row[name] for name in weights) + offsets[row["product"]],
        }
        for row in rows.select(*weights, "product").to_dicts()
    ]
    return {
        "model": MODEL,
        "partition": PARTITION,
        "origin": "least squares of numpy",
        "trained_on": {"first": "2023-02-06", "last": LAST_DAY},
        "inputs": [
            *({"name": name, "dtype": "float32"} for name in weights),
            {"name": "product", "dtype": "string", "vocabulary": sorted(offsets)},
        ],
        "golden": golden,
        "onnx": encoded(linear(weights, offsets)),
    }


def linear(weights: Mapping[str, float], offsets: Mapping[str, float]) -> onnx.ModelProto:
    """Return the graph of the sum of weighted numbers, 0 where unknown, and the offset of the product."""
    nodes = [
        helper.make_node(
            "LabelEncoder",
            ["product"],
            ["offset"],
            domain="ai.onnx.ml",
            keys_strings=list(offsets),
            values_floats=list(offsets.values()),
            default_float=0.0,
        )
    ]
    constants = [helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])]
    for name, weight in weights.items():
        constants.append(helper.make_tensor(f"weight of {name}", TensorProto.FLOAT, [1], [weight]))
        nodes += [
            helper.make_node("IsNaN", [name], [f"no {name}"]),
            helper.make_node("Where", [f"no {name}", "zero", name], [f"known {name}"]),
            helper.make_node("Mul", [f"known {name}", f"weight of {name}"], [f"part of {name}"]),
        ]
    nodes.append(helper.make_node("Sum", ["offset", *(f"part of {name}" for name in weights)], ["answer"]))
    return graph_of(nodes, constants, weights)


def graph_of(
    nodes: Sequence[onnx.NodeProto], constants: Sequence[onnx.TensorProto], numbers: Mapping[str, float]
) -> onnx.ModelProto:
    """Return a graph from `numbers` and the product to `answer`."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in numbers]
    inputs.append(helper.make_tensor_value_info("product", TensorProto.STRING, [None, 1]))
    return helper.make_model(
        helper.make_graph(
            nodes,
            "foreign",
            inputs,
            [helper.make_tensor_value_info("answer", TensorProto.FLOAT, [None, 1])],
            initializer=constants,
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)],
        ir_version=8,
    )


def encoded(model: onnx.ModelProto) -> str:
    return base64.b64encode(model.SerializeToString()).decode()


def decoded(text: str) -> onnx.ModelProto:
    return onnx.load_model_from_string(base64.b64decode(text))


def with_external_data(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../../../etc/passwd"


def with_hidden_external_data(model: onnx.ModelProto) -> None:
    """Hide the tensor in an attribute of a node, where a look at the initializers does not find it."""
    tensor = helper.make_tensor("hidden", TensorProto.FLOAT, [1], [0.0])
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    model.graph.node.append(helper.make_node("Constant", [], ["unused"], value=tensor))


def with_own_operator(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    model.graph.node[0].domain = "com.example"


def with_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    model.functions.append(
        helper.make_function("com.example", "f", ["a"], ["b"], [node], [helper.make_opsetid("", 17)])
    )


def with_loop(model: onnx.ModelProto) -> None:
    """Add a loop that never ends."""
    true = helper.make_node(
        "Constant", [], ["go"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True])
    )
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, [])],
    )
    model.graph.node.extend([true, helper.make_node("Loop", ["", "go"], [], body=body)])


def with_chance(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("RandomNormal", [], ["noise"], shape=[1]))


def with_memory_bomb(model: onnx.ModelProto) -> None:
    """Let the answer need a tensor of 4 TiB."""
    size = helper.make_tensor("size", TensorProto.INT64, [1], [2**40])
    model.graph.initializer.append(size)
    model.graph.node[-1].output[0] = "small"
    model.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["size"], ["huge"]),
            helper.make_node("ReduceMax", ["huge"], ["most"], keepdims=0),
            helper.make_node("Add", ["small", "most"], ["answer"]),
        ]
    )


def with_sum_over_rows(model: onnx.ModelProto) -> None:
    """Let the answer to a row depend on the rows beside it."""
    model.graph.node[-1].output[0] = "alone"
    model.graph.node.extend(
        [
            helper.make_node("ReduceMean", ["alone"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Add", ["alone", "mean"], ["answer"]),
        ]
    )


def with_other_inputs(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2


def without_an_answer_to_nulls(model: onnx.ModelProto) -> None:
    """Take the replacement of unknown numbers out."""
    for node in model.graph.node:
        if node.op_type == "Where":
            node.input[1] = node.input[2]


DAMAGE = (
    with_external_data,
    with_hidden_external_data,
    with_own_operator,
    with_function,
    with_loop,
    with_chance,
    with_memory_bomb,
    with_sum_over_rows,
    with_other_inputs,
    without_an_answer_to_nulls,
)
"""Changes of a graph, each of which makes it one that is refused."""
