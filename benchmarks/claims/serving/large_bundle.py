"""A bundle of 2.4 GB, more than protobuf's 2 GiB: time and memory to build and to load it.

The model is an embedding of 600 million numbers. Memory is the largest of a process, less what it had before: the
build has the module itself in memory before. The last rows compare the places of weights as safetensors aligns them
with multiples of a page, which ONNX recommends.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import torch
from onnx.external_data_helper import ExternalDataInfo, set_external_data, uses_external_data
from torch import Tensor, nn

from benchmarks._report import Result, emit, parse_args
from ml_assets.data.features.encoding import fit
from ml_assets.foundation.days import Days
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import BundleStore
from ml_assets.model.release.facts import Lineage
from ml_assets.model.release.runtime import GRAPH, WEIGHTS
from resources.artifacts import FolderArtifacts

WIDTH, PAGE = 64, 4096
_LOAD = (
    "import time; from pathlib import Path; import polars as pl; from runtime import ServingModel\n"
    "kib = lambda of: next(int(x.split()[1]) for x in open('/proc/self/status') if x.startswith(of))\n"
    "before, start = kib('VmRSS'), time.perf_counter()\n"
    "ServingModel.load(Path('.'))\n"
    "print(time.perf_counter() - start, (kib('VmHWM') - before) / 1024)\n"
)
_SESSION = (
    "import sys, time, onnxruntime as ort\n"
    "kib = lambda of: next(int(x.split()[1]) for x in open('/proc/self/status') if x.startswith(of))\n"
    "before, start = kib('VmRSS'), time.perf_counter()\n"
    "ort.InferenceSession(sys.argv[1])\n"
    "print(1e3 * (time.perf_counter() - start), (kib('VmHWM') - before) / 1024)\n"
)


class Wide(nn.Module):
    """An embedding of which each row reads a few numbers."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.ones(numbers // WIDTH, WIDTH), freeze=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, numeric: Tensor, category: Tensor) -> Tensor:
        """Return values `[B]`."""
        far = (category[:, 0] * 1_000_003).remainder(self.table.num_embeddings)
        return self.head(self.table(far)).squeeze(-1) + numeric.nan_to_num().mean(dim=1)


def main() -> int:
    """Build and load one bundle, then make sessions of its graph with both kinds of places."""
    arguments = parse_args(__doc__)
    numbers = 60_000_000 if arguments.quick else 600_000_000
    random = np.random.default_rng(1)
    rows = pl.DataFrame({"x": random.normal(size=300), "c": [f"word {i % 50}" for i in range(300)]})
    lineage = Lineage(
        model="bench", fingerprint="f", snapshot_digest="s", label="label", windows={}, seen=Days(),
        schema_hash="h",
        code_version="", weights_sha256="w",
    )  # fmt: skip
    contents = BundleContents(
        module=Wide(numbers),
        fitted=fit(rows, ["x"], ["c"]),
        objective="regression",
        rows=rows,
        lineage=lineage,
    )
    with tempfile.TemporaryDirectory() as name:
        before, start = _peak_mib(), time.perf_counter()
        folder = build_bundle(contents, BundleStore(FolderArtifacts(Path(name)))).folder
        build_s, build_mib = time.perf_counter() - start, _peak_mib() - before
        gigabytes = (folder / WEIGHTS).stat().st_size / 1e9
        load_s, load_mib = _figures(_LOAD, folder)
        aligned = _aligned(folder, Path(name) / "aligned")
        rounds = [[_figures(_SESSION, at, GRAPH) for at in (folder, aligned)] for _ in range(5)]
        (near_ms, near_mib), (aligned_ms, aligned_mib) = map(min, zip(*rounds, strict=True))
    load = f"load of the machine {os.getloadavg()[0]:.1f}"
    results = [
        Result(
            name=f"build a bundle with {gigabytes:.1f} GB of weights ({load})",
            value=build_s, unit="s", bar="≤ 300 s", ok=build_s <= 300,
        ),
        Result(
            name="memory of the build, beside the module",
            value=build_mib, unit="MiB", bar="≤ 512 MiB", ok=build_mib <= 512,
        ),
        Result(name="load it: SHA-256, golden rows", value=load_s, unit="s", bar="≤ 60 s", ok=load_s <= 60),
        Result(name="memory of the load", value=load_mib, unit="MiB", bar="≤ 256 MiB", ok=load_mib <= 256),
        Result(
            name="session of its graph by path",
            value=near_ms, unit="ms", peers={"weights at multiples of a page": aligned_ms},
            ratio=near_ms / aligned_ms, bar="≤ 2 × pages", ok=near_ms <= 2 * aligned_ms,
        ),
        Result(
            name="memory of that session",
            value=near_mib, unit="MiB", peers={"weights at multiples of a page": aligned_mib},
            bar="≤ 64 MiB more than pages", ok=near_mib <= aligned_mib + 64,
        ),
    ]  # fmt: skip
    return emit(results, json=arguments.json)


def _peak_mib() -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _figures(program: str, folder: Path, *arguments: str) -> tuple[float, float]:
    """Return the two figures that `program` prints in a process of its own."""
    command = [sys.executable, "-B", "-c", program, *arguments]
    first, second = subprocess.check_output(command, cwd=folder, text=True).split()
    return float(first), float(second)


def _aligned(folder: Path, to: Path) -> Path:
    """Write the graph again with its weights at multiples of a page."""
    to.mkdir()
    graph = onnx.load(folder / GRAPH, load_external_data=False)
    with (folder / WEIGHTS).open("rb") as source, (to / WEIGHTS).open("wb") as target:
        for tensor in filter(uses_external_data, graph.graph.initializer):
            place = ExternalDataInfo(tensor)
            assert place.offset is not None
            assert place.length is not None
            source.seek(place.offset)
            target.seek(-target.tell() % PAGE, os.SEEK_CUR)
            tensor.raw_data = b""  # set_external_data refuses a tensor without data of its own
            set_external_data(tensor, WEIGHTS, target.tell(), place.length)
            tensor.ClearField("raw_data")
            for at in range(0, place.length, 2**24):
                target.write(source.read(min(2**24, place.length - at)))
    (to / GRAPH).write_bytes(graph.SerializeToString())
    return to


if __name__ == "__main__":
    sys.exit(main())
