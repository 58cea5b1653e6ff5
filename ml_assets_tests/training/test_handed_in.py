"""A script's model is tried in the moment it is handed in: what is refused, and that a pair of outputs becomes one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.data.preprocess import FullModel
from ml_assets.model.training.script.blend import Blend
from ml_assets.model.training.script.data import Example, example_of
from ml_assets.model.training.script.graph import read_model, run_graph
from ml_assets.model.training.script.script_model import check_model, write_model
from ml_assets_tests.training.small_jobs import small_job
from resources.job.errors import BadConfiguration

FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
WIDTH = 4


@pytest.fixture(scope="module")
def example(snapshot: Snapshot) -> Example:
    return example_of(snapshot, small_job(snapshot, objective="regression"), "validation")


@pytest.fixture(scope="module")
def binary(example: Example) -> Example:
    return replace(example, objective="binary")


def test_a_model_is_tried_on_first_rows_and_one_in_which_all_is_missing(
    snapshot: Snapshot, example: Example
) -> None:
    rows = snapshot.read("validation")
    assert np.array_equal(example.numeric[:-1], rows.numeric, equal_nan=True)
    assert np.array_equal(example.category[:-1], rows.category)
    assert np.isnan(example.numeric[-1]).all()
    assert not example.category[-1].any()


# Torch


class ClassScores(nn.Module):
    """A score for each class."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.layer(numeric)


def test_a_module_answers_a_score_for_each_class(example: Example, tmp_path: Path) -> None:
    inputs = replace(example.inputs, classes=("high", "low", "mid"))
    classes = replace(example, objective="multiclass", inputs=inputs)
    module = nn.Linear(len(inputs.numeric), 3)
    write_model(check_model(ClassScores(module), classes), tmp_path)
    read = read_model(tmp_path / "model.safetensors")
    assert isinstance(read, nn.Module)
    given = torch.from_numpy(classes.numeric[:5]), torch.from_numpy(classes.category[:5])
    assert read(*given).shape == (5, 3)
    said = r"it must be a tensor \(201, 3\), a score for each class of the label: 0 'high', 1 'low', 2 'mid'"
    with pytest.raises(BadConfiguration, match=said):
        check_model(ClassScores(nn.Linear(len(inputs.numeric), 2)), classes)


class Net(nn.Module):
    """An embedding, a batch norm, a number a row."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        numbers = len(example.inputs.numeric)
        self.ids = nn.Embedding(example.inputs.cardinalities[0], 3)
        self.norm = nn.BatchNorm1d(3 + numbers)
        self.out = nn.Linear(3 + numbers, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(torch.cat([numeric, self.ids(category[:, 0])], dim=1))).squeeze(1)


class TwoAnswers(Net):
    """Two numbers a row."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return super().forward(numeric, category)[:, None].repeat(1, 2)


class OneInput(Net):
    """Takes no categories."""

    def forward(self, numeric: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.out(numeric)


class Logarithm(Net):
    """Model whose prediction is NaN for half of the rows."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return torch.log(numeric[:, 0])


class OverRows(Net):
    """Model whose answer for a row depends on the rows beside it."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return numeric[:, 0] - numeric[:, 0].mean()


class Chance(Net):
    """Answers differently at each call."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return numeric[:, 0] + torch.rand(numeric.shape[0])


class Lazy(nn.Module):
    """Knows its width once it has seen rows; two layers share their weights."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.first = nn.LazyLinear(4)
        self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4)
        self.third.weight = self.second.weight

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(numeric))).sum(1)


class Entangled(Net):
    """Holds a tensor that was computed, which deepcopy refuses."""

    def __init__(self, example: Example) -> None:
        super().__init__(example)
        self.twice = 2 * self.out.weight


class Pair(Net):
    """A tuple."""

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return numeric[:, 0], numeric[:, 1]


def test_a_module_is_read_back_without_the_script_and_takes_raw_numbers(
    tmp_path: Path, example: Example
) -> None:
    net = Net(example)
    written = write_model(check_model(net, example), tmp_path)
    assert net.training  # what was handed in is as it was
    given = torch.from_numpy(example.numeric), torch.from_numpy(example.category)
    module = read_model(written.path)
    assert not isinstance(module, bytes)
    torch.testing.assert_close(module(*given), FullModel(example.inputs, net).eval()(*given))
    assert written.sha256 == write_model(check_model(net, example), tmp_path).sha256


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            TwoAnswers,
            r"shape \(201, 2\) for 201 rows: it must be a tensor \(201,\), one number a row; squeeze",
        ),
        (OneInput, r"called with numbers \[rows, 3\] and category ids \[rows, 1\]"),
        (Logarithm, r"the module handed in answered nan to validation row \d+"),
        (OverRows, "given a single row, answers .*: let the answer to a row depend on that row alone"),
        (Chance, "the same at every call|depend on that row alone"),
        (Entangled, "cannot be served apart from the script: Only Tensors created explicitly"),
        (Pair, "gave an output of tuple for 201 rows"),
    ],
)
def test_a_module_that_cannot_be_served_is_refused_when_it_is_handed_in(
    example: Example, kind: type[Net], said: str
) -> None:
    with pytest.raises(BadConfiguration, match=said):
        check_model(kind(example), example)


def test_an_untrained_module_may_be_lazy_and_share_weights(tmp_path: Path, example: Example) -> None:
    lazy = Lazy(example)
    assert len(check_model(lazy, example).weights) == 7  # fill, and each name
    assert nn.parameter.is_lazy(lazy.first.weight)
    shared = nn.ModuleList(nn.Linear(18_000, 18_000, bias=False, device="meta") for _ in range(2))
    shared[1].weight = shared[0].weight  # 1.2 GiB, by two names
    with pytest.raises(BadConfiguration, match=r"served apart.*:.*of meta"):
        check_model(shared, example)


def test_what_no_graph_can_hold_is_refused_with_the_arithmetic(example: Example) -> None:
    huge = nn.Linear(24_576, 24_576, bias=False, device="meta")
    with pytest.raises(
        BadConfiguration,
        match=r"blend.*603,979,776 numbers.*2\.2 GiB.*2 GiB.*alone",
    ):
        check_model(Blend([huge], [1.0]), example)
    with pytest.raises(
        BadConfiguration,
        match=r"handed in.*2,147,483,648 bytes.*2 GiB",
    ):
        check_model(bytes(2**31), example)


# ONNX graphs


def graph_of(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    *,
    width: int = WIDTH,
    kind: int = FLOAT,
    inputs: int = 1,
    rows: str | int = "rows",
) -> onnx.ModelProto:
    """Return a graph of `x`, `[rows, width]`, that counts what is missing as 0, then does `nodes` to `known`."""
    zero = helper.make_tensor("zero", kind, [], [0.0])
    weights = helper.make_tensor("weights", kind, [width, 1], [0.1 * (i + 1) for i in range(width)])
    graph = helper.make_graph(
        [
            helper.make_node("IsNaN", ["x"], ["missing"]),
            helper.make_node("Where", ["missing", "zero", "x"], ["known"]),
            helper.make_node("MatMul", ["known", "weights"], ["sum"]),
            helper.make_node("Sigmoid", ["sum"], ["chance"]),
            *nodes,
        ],
        "test",
        [helper.make_tensor_value_info(name, kind, [rows, width]) for name in ("x", "z")[:inputs]],
        outputs,
        initializer=[zero, weights],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def value(name: str, *shape: str | int, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, ["rows", *shape])


SUM = value("sum", 1)
BOTH = [
    helper.make_node("Sub", ["one", "chance"], ["other"]),
    helper.make_node("Concat", ["other", "chance"], ["both"], axis=1),
    helper.make_node("ArgMax", ["both"], ["label"], axis=1, keepdims=0),
]
ONE = helper.make_node("Constant", [], ["one"], value=helper.make_tensor("", FLOAT, [], [1.0]))
ZIP = helper.make_node("ZipMap", ["both"], ["zipped"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
ZIPPED = helper.make_value_info(
    "zipped",
    helper.make_sequence_type_proto(
        helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, None))
    ),
)
LABEL = value("label", kind=INT64)


@pytest.mark.parametrize(
    "graph",
    [
        graph_of([], [value("chance", 1)]),
        graph_of([], [value("chance", 1)], rows=1),
        graph_of([ONE, *BOTH], [LABEL, value("both", 2)]),
        graph_of([ONE, *BOTH, ZIP], [LABEL, ZIPPED]),
    ],
    ids=["one output", "a fixed number of rows", "label and probabilities", "ZipMap"],
)
def test_the_second_class_is_found_in_the_output_of_any_converter(
    binary: Example, graph: onnx.ModelProto, tmp_path: Path
) -> None:
    """Converters differ in the outputs that they make; the handed-in graph keeps one."""
    content = read_model(write_model(check_model(graph, binary), tmp_path).path)
    assert isinstance(content, bytes)
    known = np.nan_to_num(binary.matrix.astype(np.float64))
    expected = 1 / (1 + np.exp(-known @ [0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(run_graph(content, binary.matrix).reshape(-1), expected, rtol=1e-5)
    model = onnx.load_model_from_string(content)
    assert len(model.graph.output) == 1
    assert "ArgMax" not in {node.op_type for node in model.graph.node}  # nothing is left that nobody reads
    again = check_model(content, binary).weights["onnx"].numpy().tobytes()
    assert again == content  # in one form already


def _sized(*sizes: int) -> Callable[[], onnx.ModelProto]:
    shape = helper.make_tensor("shape", INT64, [len(sizes)], sizes)
    node = helper.make_node("Constant", [], ["shape"], value=shape)
    return lambda: graph_of([node, helper.make_node("Reshape", ["sum", "shape"], ["y"])], [value("y", 1)])


@pytest.mark.parametrize(
    ("make", "objective", "said"),
    [
        (lambda: b"a pickled estimator", "regression", "is not a valid ONNX graph.*models of LightGBM, XGBoost and"),
        (
            lambda: graph_of([], [SUM], width=5),
            "regression",
            r"input 'x' of the ONNX graph is \[rows, 5\] float: it must be the matrix \[rows, 4\] float32: 3 numbers",
        ),
        (lambda: graph_of([], [SUM], kind=DOUBLE), "regression", r"input 'x' .* is \[rows, 4\] double"),
        (
            lambda: graph_of([], [SUM], inputs=2),
            "regression",
            r"inputs \['x', 'z'\]: it must have one input, the matrix.*FloatTensorType\(\[None, 4\]\)",
        ),
        (
            lambda: graph_of([], [SUM, value("known", 4)]),
            "regression",
            r"outputs 'sum' \[rows, 1\] float, 'known' \[rows, 4\] float: it must have one, a number for each row",
        ),
        (
            lambda: graph_of([ONE, *BOTH], [LABEL, value("both", 2)]),
            "regression",
            "a label 'label' and probabilities 'both', as a classifier does, but the objective is regression",
        ),
        (
            lambda: graph_of([ONE, *BOTH], [LABEL]),
            "binary",
            r"output 'label' .* is \[rows\] int64: it must be one float a row, the probability of the label 1",
        ),
        (lambda: graph_of([ONE, *BOTH], [value("both", 2)]), "regression", r"shape \(201, 2\) for 201 rows"),
        (
            lambda: graph_of([], [SUM]),
            "binary",
            r"answered -?[\d.]+ to .*with objective binary it must answer the probability .*Apply the sigmoid",
        ),
        (_sized(201, 1), "regression", "onnxruntime, which serves the model, cannot run the ONNX graph on the first"),
        (
            lambda: graph_of([helper.make_node("Log", ["sum"], ["y"])], [value("y", 1)]),
            "regression",
            "the ONNX graph answered nan to validation row .*fill them first",
        ),
        (
            lambda: graph_of([helper.make_node("Reciprocal", ["sum"], ["y"])], [value("y", 1)]),
            "regression",
            "answered inf to a row in which every value is missing",
        ),
        (
            lambda: graph_of([helper.make_node("ReduceMean", ["sum"], ["y"], axes=[0])], [value("y", 1)]),
            "regression",
            r"shape \(1, 1\) for 201 rows",
        ),
        (lambda: [1, 2, 3], "regression", "a list cannot be handed in: give a torch module, a model of LightGBM"),
    ],
)  # fmt: skip
def test_a_graph_that_cannot_be_served_is_refused_when_it_is_handed_in(
    example: Example, make: Callable[[], object], objective: str, said: str
) -> None:
    with pytest.raises(BadConfiguration, match=said):
        check_model(make(), replace(example, objective=objective))


def test_a_graph_of_classes_answers_probabilities_that_add_up_to_1(example: Example) -> None:
    words = tuple(f"class {number}" for number in range(WIDTH))
    classes = replace(example, objective="multiclass", inputs=replace(example.inputs, classes=words))
    softmax = helper.make_node("Softmax", ["known"], ["probabilities"], axis=1)
    outputs = [
        helper.make_tensor_value_info(name, FLOAT, ["rows", WIDTH]) for name in ("probabilities", "known")
    ]
    checked = check_model(graph_of([softmax], outputs[:1]), classes).weights["onnx"].numpy().tobytes()
    np.testing.assert_allclose(run_graph(checked, classes.matrix).sum(axis=1), 1, rtol=1e-6)
    with pytest.raises(BadConfiguration, match=r"each class,.*0 to 1\..*softmax"):
        check_model(graph_of([], outputs[1:]), classes)
    with pytest.raises(BadConfiguration, match=r"\(201, 4\),.*each class.*'class 3'"):
        check_model(graph_of([], [helper.make_tensor_value_info("sum", FLOAT, ["rows", 1])]), classes)


# Blends


def test_a_blend_answers_the_weighted_mean_of_its_members(binary: Example, tmp_path: Path) -> None:
    """A logit of torch and a probability of a graph, made for another version of ONNX, become one probability."""
    net, graph = Net(binary), graph_of([], [value("chance", 1)])
    written = write_model(check_model(Blend([net, graph], [0.25, 0.75]), binary), tmp_path)
    assert net.training  # what was handed in is as it was
    content = read_model(written.path)
    assert isinstance(content, bytes)
    given = torch.from_numpy(binary.numeric), torch.from_numpy(binary.category)
    of_net = torch.sigmoid(FullModel(binary.inputs, net).eval()(*given)).detach().numpy()
    of_graph = run_graph(graph.SerializeToString(), binary.matrix)[:, 0]
    np.testing.assert_allclose(run_graph(content, binary.matrix), 0.25 * of_net + 0.75 * of_graph, rtol=1e-5)


def test_a_blend_of_classes_answers_a_probability_for_each(example: Example, tmp_path: Path) -> None:
    inputs = replace(example.inputs, classes=("high", "low", "mid"))
    classes = replace(example, objective="multiclass", inputs=inputs)
    net = ClassScores(nn.Linear(len(inputs.numeric), 3))
    content = read_model(write_model(check_model(Blend([net], [1.0]), classes), tmp_path).path)
    assert isinstance(content, bytes)
    given = torch.from_numpy(classes.numeric), torch.from_numpy(classes.category)
    expected = FullModel(inputs, net)(*given).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(run_graph(content, classes.matrix), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("members", "weights", "said"),
    [
        (0, [], "a blend of 0 models has 0 weights: give each model one"),
        (2, [1.0], "a blend of 2 models has 1 weights"),
        (2, [1.5, -0.5], "weights of a blend are 1.5, -0.5: none may be negative"),
        (2, [0.5, 0.4], "their sum must be 1"),
        (2, [float("nan"), 1.0], "weights of a blend are nan, 1"),
    ],
)
def test_a_blend_without_a_share_for_each_model_is_refused(
    example: Example, members: int, weights: list[float], said: str
) -> None:
    with pytest.raises(BadConfiguration, match=said):
        Blend([Net(example)] * members, weights)


def test_a_blend_of_other_things_than_lists_is_refused(example: Example) -> None:
    for weights in (["half", 0.5], 1.0):
        with pytest.raises(BadConfiguration, match=r"blend takes a list.*numbers"):
            Blend([Net(example)] * 2, weights)  # type: ignore[arg-type]
    assert len(Blend((Net(example) for _ in range(2)), [0.5, 0.5]).models) == 2  # type: ignore[arg-type]


def test_a_model_of_weight_0_is_not_in_the_graph_of_a_blend(binary: Example, tmp_path: Path) -> None:
    net = Net(binary)
    blends = Blend([net], [1.0]), Blend(["unused", net], [0, 1])
    one, other = (read_model(write_model(check_model(blend, binary), tmp_path).path) for blend in blends)
    assert isinstance(one, bytes)
    assert one == other


def test_a_member_that_cannot_be_served_is_refused_as_if_alone(example: Example) -> None:
    for member, said in ((TwoAnswers(example), r"shape \(201, 2\)"), ("trees", "a str cannot be handed in")):
        with pytest.raises(BadConfiguration, match=said):
            check_model(Blend([member, Net(example)], [0.5, 0.5]), example)
    pictures = replace(example, blobs=torch.zeros(len(example.numeric), 3))
    with pytest.raises(BadConfiguration, match="blobs: hand in one"):
        check_model(Blend([Net(example)], [1.0]), pictures)
