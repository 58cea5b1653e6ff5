"""A bundle of 2.4 GB, more than protobuf's 2 GiB: time and memory to build and to load it.

The model is an embedding of 600 million numbers. The yardstick of a build is the same with hardly any weights, and the
least that stores these weights with their digest: safetensors writes them, hashlib reads them back. The yardstick of a
load is a load with hardly any weights, and that digest. Memory is the largest of a process, less what it had before:
the build has the module itself in memory before. The last rows compare the places of weights as safetensors aligns them
with multiples of a page, which ONNX recommends, in CPU time.
"""

import hashlib
import os
import re
import statistics
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
from safetensors.torch import save_model
from torch import Tensor, nn

from benchmarks._report import Result, emit, parse_args, ratio_of
from ml_assets.data.features.encoding import fit
from ml_assets.foundation.days import Days
from ml_assets.model.release.bundle import BundleContents, build_bundle
from ml_assets.model.release.bundle_store import BundleStore, Lineage
from ml_assets.model.release.runtime import GRAPH, WEIGHTS
from resources.artifacts import FolderArtifacts

WIDTH, PAGE = 64, 4096
ROUNDS = 3
SESSIONS = 9
MOST_TIMES_STORED = 3.0
"""A build reads the weights three times, not once: for their digest, the check of the graph, and the proof."""
MOST_TIMES_DIGEST = 2.0
"""A load maps the weights after it has read them for their digest."""
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
    "before, start = kib('VmRSS'), time.process_time()\n"
    "ort.InferenceSession(sys.argv[1])\n"
    "print(1e3 * (time.process_time() - start), (kib('VmHWM') - before) / 1024)\n"
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
    """Build and load bundles in turn with the yardsticks, then make sessions of its graph with both kinds of places."""
    arguments = parse_args(__doc__)
    numbers = 60_000_000 if arguments.quick else 600_000_000
    random = np.random.default_rng(1)
    rows = pl.DataFrame({"x": random.normal(size=300), "c": [f"word {i % 50}" for i in range(300)]})
    module = Wide(numbers)
    contents, few = _contents(module, rows), _contents(Wide(1000 * WIDTH), rows)
    seconds: dict[str, list[float]] = {name: [] for name in ("build", "least build", "load", "least load")}
    with tempfile.TemporaryDirectory() as name:
        plain, folder, idle = Path(name) / "plain.safetensors", Path(name), _peak_mib()
        build_bundle(few, BundleStore(FolderArtifacts(Path(name) / "first")))  # imports
        for number in range(1 if arguments.quick else ROUNDS):
            took, small = _build(few, Path(name) / f"few-{number}")
            start = time.perf_counter()
            save_model(module, str(plain))
            digest = _digest_seconds(plain)
            seconds["least build"].append(took + time.perf_counter() - start)
            plain.unlink()
            took, folder = _build(contents, Path(name) / str(number))
            seconds["build"].append(took)
            seconds["load"].append(_figures(_LOAD, folder)[0])
            seconds["least load"].append(_figures(_LOAD, small)[0] + digest)
        build_mib, load_mib = _peak_mib() - idle, _figures(_LOAD, folder)[1]
        gigabytes = (folder / WEIGHTS).stat().st_size / 1e9
        aligned = _aligned(folder, Path(name) / "aligned")
        sessions = [[_figures(_SESSION, at, GRAPH) for at in (folder, aligned)] for _ in range(SESSIONS)]
    near, pages = ([each[at] for each in sessions] for at in (0, 1))
    near_ms, pages_ms = ([ms for ms, _ in each] for each in (near, pages))
    near_mib, pages_mib = (max(mib for _, mib in each) for each in (near, pages))
    build, loaded = (
        ratio_of(seconds[name], seconds[least])
        for name, least in (("build", "least build"), ("load", "least load"))
    )
    session = ratio_of(near_ms, pages_ms)
    load = f"load of the machine {os.getloadavg()[0]:.1f}"
    results = [
        Result(
            name=f"build a bundle with {gigabytes:.1f} GB of weights ({build.spread}, {load})",
            value=statistics.median(seconds["build"]), unit="s",
            peers={"without weights, safetensors, hashlib": statistics.median(seconds["least build"])},
            ratio=build.median, bar=f"≤ {MOST_TIMES_STORED:g} × a build without weights, safetensors and hashlib",
            ok=build.median <= MOST_TIMES_STORED,
        ),
        Result(
            name="memory of the build, beside the module",
            value=build_mib, unit="MiB", bar="≤ 512 MiB", ok=build_mib <= 512,
        ),
        Result(
            name=f"load it: SHA-256, golden rows ({loaded.spread})",
            value=statistics.median(seconds["load"]), unit="s",
            peers={"without weights, SHA-256": statistics.median(seconds["least load"])}, ratio=loaded.median,
            bar=f"≤ {MOST_TIMES_DIGEST:g} × a load without weights and SHA-256",
            ok=loaded.median <= MOST_TIMES_DIGEST,
        ),
        Result(name="memory of the load", value=load_mib, unit="MiB", bar="≤ 256 MiB", ok=load_mib <= 256),
        Result(
            name=f"session of its graph by path, CPU time ({session.spread})",
            value=statistics.median(near_ms), unit="ms",
            peers={"weights at multiples of a page": statistics.median(pages_ms)},
            ratio=session.median, bar="≤ 2 × pages", ok=session.median <= 2,
        ),
        Result(
            name="memory of that session",
            value=near_mib, unit="MiB", peers={"weights at multiples of a page": pages_mib},
            bar="≤ 64 MiB more than pages", ok=near_mib <= pages_mib + 64,
        ),
    ]  # fmt: skip
    return emit(results, json=arguments.json)


def _contents(module: Wide, rows: pl.DataFrame) -> BundleContents:
    lineage = Lineage(
        model="bench", fingerprint="f", snapshot_digest="s", label="label", windows={}, seen=Days(),
        schema_hash="h",
        code_version="", weights_sha256="w",
    )  # fmt: skip
    return BundleContents(
        module=module, fitted=fit(rows, ["x"], ["c"]), objective="regression", rows=rows, lineage=lineage
    )


def _build(contents: BundleContents, place: Path) -> tuple[float, Path]:
    """Build a bundle in a store of its own; return the seconds and its folder."""
    start = time.perf_counter()
    folder = build_bundle(contents, BundleStore(FolderArtifacts(place))).folder
    return time.perf_counter() - start, folder


def _digest_seconds(file: Path) -> float:
    start = time.perf_counter()
    with file.open("rb") as content:
        hashlib.file_digest(content, "sha256")
    return time.perf_counter() - start


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
