"""A bundle of more than 2 GiB, which is protobuf's limit: built, loaded, served, and refused after one altered bit."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlflow.pyfunc
import onnx
import onnxruntime as ort
import polars as pl
import pytest
import torch
from torch import nn

from ml_assets.model.release.bundle import build_bundle
from ml_assets.model.release.bundle_store import BundleDamaged, BundleStore
from ml_assets.model.release.runtime import GOLDEN, GOLDEN_OUTPUT, GRAPH, WEIGHTS, BundleAltered, ServingModel
from ml_assets_tests.release.conftest import CATEGORY, NUMERIC, contents_of
from ml_assets_tests.serving.conftest import Serve, record_promotion
from resources.artifacts import FolderArtifacts

NUMBERS, WIDTH = 600_000_000, 64
MOST_MIB = 1_024
"""Bound of the memory for writing and for loading, beside the module itself: less than half of the weights."""


STATUS = Path("/proc/self/status")


class Wide(nn.Module):
    """2.4 GB of weights, of which each row reads a few."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.arange(NUMBERS // WIDTH, dtype=torch.float32).remainder_(97).div_(97)
        self.table = nn.Embedding.from_pretrained(table[:, None].repeat(1, WIDTH), freeze=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        far = (category[:, 0] * 1_000_003).remainder(NUMBERS // WIDTH)
        return self.head(self.table(far)).squeeze(-1) + 1e-3 * numeric.nan_to_num().mean(dim=1)


def peak_mib(status: str) -> float:
    """Return the largest memory of a process from its status. Not of getrusage, which counts in the parent's peak."""
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.nightly
def test_a_bundle_beyond_two_gib_is_built_loaded_and_served(
    tmp_path: Path, rows: pl.DataFrame, serve: Serve
) -> None:
    torch.manual_seed(3)
    contents = replace(contents_of(rows, NUMERIC, CATEGORY, "regression"), module=Wide())
    store = BundleStore(FolderArtifacts(tmp_path / "artifacts"))
    before = peak_mib(STATUS.read_text())
    bundle = build_bundle(contents, store)
    assert peak_mib(STATUS.read_text()) - before < MOST_MIB
    del contents
    assert (bundle.folder / WEIGHTS).stat().st_size > 2**31
    assert bundle.bytes < (bundle.folder / WEIGHTS).stat().st_size + 2**20  # weights are there once
    assert _loaded_elsewhere(bundle.folder) < MOST_MIB

    golden = pl.read_parquet(bundle.folder / GOLDEN)
    expected, raw = golden[GOLDEN_OUTPUT].to_list(), golden.drop(GOLDEN_OUTPUT)
    serving = serve(None, store=store)
    record_promotion(serving.ledger, bundle, 1)
    serving.parts.watch.refresh()
    answers = serving.predict(raw.to_dicts()).json()["predictions"]
    assert [one["prediction"] for one in answers] == pytest.approx(expected, rel=1e-5)

    onnx.checker.check_model(bundle.folder / GRAPH)
    ort.InferenceSession(bundle.folder / GRAPH)
    through_mlflow = mlflow.pyfunc.load_model(str(bundle.folder))
    assert through_mlflow.predict(raw.to_pandas()) == pytest.approx(expected, rel=1e-5)

    (bundle.folder / WEIGHTS).chmod(0o644)
    with (bundle.folder / WEIGHTS).open("r+b") as file:
        file.seek(2**31 + 5)
        [byte] = file.read(1)
        file.seek(2**31 + 5)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(BundleAltered, match=r"model\.safetensors differs"):
        ServingModel.load(bundle.folder)
    with pytest.raises(BundleDamaged, match=r"model\.safetensors differs"):
        store.open(bundle.digest)


def _loaded_elsewhere(folder: Path) -> float:
    """Return the largest memory, in MiB, of a process that loads the bundle and predicts its golden rows."""
    program = (
        "from pathlib import Path; from runtime import ServingModel; ServingModel.load(Path.cwd())\n"
        "print(Path('/proc/self/status').read_text())"
    )
    command = [sys.executable, "-B", "-c", program]
    return peak_mib(subprocess.check_output(command, cwd=folder, text=True))
