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


def with_answers_by_place(model: onnx.ModelProto) -> None:
    """Add 1,000 to each answer after the 64th row, where no golden row is."""
    _add(
        model,
        {"zero place": 0, "next": 1, "many": 64, "columns": [1]},
        helper.make_node("Shape", ["alone"], ["shape"], end=1),
        helper.make_node("Reshape", ["shape", "scalar"], ["rows"]),
        helper.make_node("Range", ["zero place", "rows", "next"], ["place"]),
        helper.make_node("GreaterOrEqual", ["place", "many"], ["is late"]),
        helper.make_node("Cast", ["is late"], ["late"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["late", "thousand"], ["off"]),
        helper.make_node("Unsqueeze", ["off", "columns"], ["extra"]),
    )


def with_size_by_value(model: onnx.ModelProto) -> None:
    """Let a price of 2,000 need 4 TB; golden rows have prices below 1,000."""
    _add(
        model,
        {"one": [1]},
        helper.make_node("ReduceMax", ["known price"], ["highest"], keepdims=0),
        helper.make_node("Sub", ["highest", "thousand"], ["above"]),
        helper.make_node("Relu", ["above"], ["excess"]),
        helper.make_node("Mul", ["excess", "billion"], ["floats"]),
        helper.make_node("Cast", ["floats"], ["count"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["count", "one"], ["none or many"]),
        helper.make_node("Add", ["none or many", "one"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["huge"]),
        helper.make_node("ReduceMax", ["huge"], ["extra"], keepdims=0),
    )


def with_size_by_shape_by_value(model: onnx.ModelProto) -> None:
    """Let the number of prices above 1,000 decide a size, by way of a shape."""
    _add(
        model,
        {"one": [1], "many": [2**40]},
        helper.make_node("Greater", ["known price", "thousand"], ["is dear"]),
        helper.make_node("NonZero", ["is dear"], ["dear"]),
        helper.make_node("Shape", ["dear"], ["found"], start=1),
        helper.make_node("Mul", ["found", "many"], ["product of them"]),
        helper.make_node("Add", ["product of them", "one"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["huge"]),
        helper.make_node("ReduceMax", ["huge"], ["extra"], keepdims=0),
    )


def with_dropout_in_training(model: onnx.ModelProto) -> None:
    """Draw random numbers too small for the comparison with golden rows."""
    is_training = helper.make_tensor("is training", TensorProto.BOOL, [], [True])
    model.graph.initializer.append(is_training)
    _add(
        model,
        {},
        helper.make_node("Dropout", ["alone", "half", "is training"], ["some"], seed=7),
        helper.make_node("Mul", ["some", "billionth"], ["extra"]),
    )


def with_joined_texts(model: onnx.ModelProto) -> None:
    """Double a text 40 times, which is empty in golden rows."""
    model.opset_import[0].version, model.ir_version = 20, 9
    texts = {"rare": np.array([b"rare"], np.object_), "no text": np.array([b""], np.object_)}
    model.graph.initializer.extend(
        helper.make_tensor(name, TensorProto.STRING, [1], text) for name, text in texts.items()
    )
    doubled = [
        helper.make_node("StringConcat", [f"text {at}", f"text {at}"], [f"text {at + 1}"]) for at in range(40)
    ]
    _add(
        model,
        {},
        helper.make_node("Equal", ["product", "rare"], ["is rare"]),
        helper.make_node("Where", ["is rare", "rare", "no text"], ["text 0"]),
        *doubled,
        helper.make_node("Equal", ["text 40", "rare"], ["is the same"]),
        helper.make_node("Cast", ["is the same"], ["extra"], to=TensorProto.FLOAT),
    )


def without_an_answer_to(model: onnx.ModelProto, product: str) -> None:
    """Answer NaN to a product."""
    named = {one.name: one for one in model.graph.node[0].attribute}
    named["keys_strings"].strings.append(product.encode())
    named["values_floats"].floats.append(float("nan"))


def _add(model: onnx.ModelProto, numbers: Mapping[str, int | list[int]], *nodes: onnx.NodeProto) -> None:
    """Add the output `extra` of `nodes` to the answer, which they know as `alone`. `numbers` are int64."""
    floats = {"thousand": 1e3, "billion": 1e9, "billionth": 1e-9, "half": 0.5}
    model.graph.initializer.extend(
        helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in floats.items()
    )
    for name, value in {"scalar": [], **numbers}.items():
        entries, shape = (value, [len(value)]) if isinstance(value, list) else ([value], [])
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, shape, entries))
    model.graph.node[-1].output[0] = "alone"
    model.graph.node.extend([*nodes, helper.make_node("Add", ["alone", "extra"], ["answer"])])


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
    with_answers_by_place,
    with_size_by_value,
    with_size_by_shape_by_value,
    with_dropout_in_training,
    with_joined_texts,
    with_other_inputs,
    without_an_answer_to_nulls,
)
"""Changes of a graph, each of which makes it one that is refused."""
