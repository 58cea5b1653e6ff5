"""Loading the definitions stays light: every run, every tick and every page of the UI pays for it first."""

import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "mlflow", "pandas", "pandera", "kubernetes", "matplotlib", "sklearn", "onnx", "onnxruntime")


def test_definitions_load_without_any_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys, ml_assets.definitions as d; d.defs().get_repository_def(); "
        f"print(sorted(set({HEAVY}) & set(sys.modules)))"
    )
    environment = {"PATH": "/usr/bin:/bin", "ML_ASSETS_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
