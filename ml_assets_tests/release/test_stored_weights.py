"""A bundle stores each weight once: the graph reads `model.safetensors`, and so does any ONNX tool."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import polars as pl
import pytest
import torch
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data
from safetensors.numpy import load_file
from torch import nn

from ml_assets.model.release.bundle import TOLERANCE, BundleContents, build_bundle, torch_predictions
from ml_assets.model.release.bundle_store import Bundle, BundleStore, seal
from ml_assets.model.release.runtime import (
    GOLDEN,
    GOLDEN_OUTPUT,
    GRAPH,
    WEIGHTS,
    BundleAltered,
    BundleRefused,
    ServingModel,
)
from ml_assets_tests.release.conftest import CATEGORY, NUMERIC
from resources.artifacts import FolderArtifacts


class Layers(nn.Module):
    """Layers whose weights the exporter transposes, folds into each other, or lists under one of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 64)
        self.tied = nn.Linear(64, 64, bias=False)
        self.tied.weight = self.table.weight
        self.each = nn.Linear(64, 32)  # of three dimensions: a transposed weight
        self.conv = nn.Conv1d(32, 32, 2)
        self.norm = nn.BatchNorm1d(32)  # which can be folded into the convolution
        self.head = nn.Linear(32, 1, bias=False)
        self.halves = nn.Parameter(torch.linspace(0, 1, 96).half())
        self.register_buffer("constant", torch.linspace(1, 2, 64), persistent=False)
        with torch.no_grad():
            self.norm.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        steps = self.each(self.tied(self.table(category.remainder(64)) + self.constant))
        found = self.norm(self.conv(steps.transpose(1, 2))).mean(dim=2)
        return self.head(found).squeeze(-1) + self.halves.float().mean() + numeric.nan_to_num().mean(dim=1)


@pytest.fixture(scope="module", params=["a module", "a module that a script handed in"])
def layered(contents: BundleContents, request: pytest.FixtureRequest) -> BundleContents:
    torch.manual_seed(7)
    module: nn.Module = Layers().eval()
    if request.param != "a module":
        rows = torch.export.Dim("rows")
        examples = torch.zeros(2, len(NUMERIC)), torch.zeros(2, len(CATEGORY), dtype=torch.int64)
        module = torch.export.export(module, examples, dynamic_shapes=({0: rows}, {0: rows})).module()
    return replace(contents, module=module)


@pytest.fixture(scope="module")
def layers(layered: BundleContents, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_bundle(layered, BundleStore(FolderArtifacts(tmp_path_factory.mktemp("layers"))))


def test_no_weight_is_in_the_graph_also_not_transposed_or_folded(layers: Bundle) -> None:
    weights = load_file(layers.folder / WEIGHTS)
    graph = onnx.load(layers.folder / GRAPH, load_external_data=False).graph
    inside = {one.name: one for one in graph.initializer if not uses_external_data(one)}
    outside = {one.name.removeprefix("net/inner.") for one in graph.initializer if uses_external_data(one)}
    assert {"table.weight", "tied.weight"} & outside  # one weight by two names: the graph reads one of them
    assert weights.keys() - outside <= {"norm.num_batches_tracked", "table.weight", "tied.weight"}
    large = {name for name, one in inside.items() if np.prod(one.dims) > len(NUMERIC) + len(CATEGORY)}
    assert large == {"net/inner.constant"}  # no tensor of the state_dict
    assert (layers.folder / GRAPH).stat().st_size < (layers.folder / WEIGHTS).stat().st_size / 2


def test_layers_answer_as_torch_does(layers: Bundle, layered: BundleContents, rows: pl.DataFrame) -> None:
    expected = torch_predictions(layered.module, layered.fitted, layered.objective, rows)  # type: ignore[arg-type]
    found = ServingModel.load(layers.folder).predict(rows)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_other_tools_read_the_graph_by_its_path(layers: Bundle) -> None:
    onnx.checker.check_model(layers.folder / GRAPH, full_check=True)
    weights = load_file(layers.folder / WEIGHTS)
    for one in onnx.load(layers.folder / GRAPH).graph.initializer:
        name = one.name.removeprefix("net/inner.")
        if name in weights:
            np.testing.assert_array_equal(numpy_helper.to_array(one), weights[name])
    golden = pl.read_parquet(layers.folder / GOLDEN)
    session = ort.InferenceSession(layers.folder / GRAPH)
    null = layers.facts.null_category
    feed = {name: golden[name].cast(pl.Float64).fill_null(np.nan).to_numpy()[:, None] for name in NUMERIC}
    feed |= {name: golden[name].cast(pl.String).fill_null(null).to_numpy()[:, None] for name in CATEGORY}
    [answers] = session.run(None, feed)
    np.testing.assert_allclose(np.asarray(answers), golden[GOLDEN_OUTPUT].to_numpy(), rtol=0, atol=TOLERANCE)


def test_one_bit_of_a_weight_is_refused_with_the_file(copied: Path) -> None:
    content = bytearray((copied / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (copied / WEIGHTS).write_bytes(content)
    with pytest.raises(BundleAltered, match=r"was altered: model\.safetensors differs"):
        ServingModel.load(copied)


@pytest.mark.parametrize(
    "place", [lambda _: "../other", lambda folder: str(folder.parent / "other"), lambda _: GOLDEN],
    ids=["above the bundle", "absolute", "another file of the bundle"],
)  # fmt: skip
def test_a_graph_reads_no_other_file(copied: Path, place: Callable[[Path], str]) -> None:
    """Also if the file exists, has the same content, and the bundle was sealed again."""
    (copied.parent / "other").write_bytes((copied / WEIGHTS).read_bytes())
    graph = onnx.load(copied / GRAPH, load_external_data=False)
    weight = next(one for one in graph.graph.initializer if uses_external_data(one))
    next(one for one in weight.external_data if one.key == "location").value = place(copied)
    (copied / GRAPH).write_bytes(graph.SerializeToString())
    seal(copied)
    with pytest.raises(BundleRefused, match=r"reads its weights from model\.safetensors alone"):
        ServingModel.load(copied)


def test_a_place_beyond_the_file_is_refused(copied: Path) -> None:
    graph = onnx.load(copied / GRAPH, load_external_data=False)
    weight = next(one for one in graph.graph.initializer if uses_external_data(one))
    next(one for one in weight.external_data if one.key == "offset").value = str(2**40)
    (copied / GRAPH).write_bytes(graph.SerializeToString())
    seal(copied)
    with pytest.raises(BundleRefused, match=r"model\.onnx cannot be loaded"):
        ServingModel.load(copied)
