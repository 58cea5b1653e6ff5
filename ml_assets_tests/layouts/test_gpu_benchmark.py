"""The GPU benchmark runs where there is no GPU, so that it works on the day that one is lent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "collectives": 2,
    "flights": 3,
    "decoder": 3,
    "bitwise": 3,
    "checkpoints": 1,
    "large": 9,
}
"""Part → results on a CPU, where fp16 and the compiler are left out."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "benchmarks" / "gpu" / "run.sh", *arguments],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_part_of_the_gpu_benchmark_runs_on_a_cpu(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--out", str(tmp_path), "--json")

    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads((tmp_path / "gpu.json").read_text())
    assert len(document["results"]) == sum(PARTS.values())
    assert [result["name"] for result in document["results"] if not result["ok"]] == []
    assert json.loads(done.stdout.splitlines()[-1]) == document["results"]
    assert "card" not in document["machine"]  # no figure of a GPU from a machine without one
    killed = next(result for result in document["results"] if "rank killed" in result["name"])
    assert killed["value"] > 0  # seconds from the kill to the next step


def test_an_unknown_part_is_named_with_those_there_are() -> None:
    done = run("speed", "--device", "cpu")

    assert done.returncode == 2
    assert "no part speed" in done.stderr
    assert "collectives" in done.stderr
