"""The GPU benchmark loads on a machine that has only what its script installs."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOAD = """
import sys

for name in ("dagster", "mlflow", "pandas", "pandera", "polars", "yaml"):
    sys.modules[name] = None
import benchmarks.gpu.cases
import benchmarks.gpu.fed
import ml_assets.model.training.entry
"""


@pytest.mark.nightly
def test_the_benchmark_needs_no_package_that_its_script_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
