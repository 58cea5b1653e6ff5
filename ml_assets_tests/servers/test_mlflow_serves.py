"""A registered model serves with MLflow's own command, in an environment that MLflow makes for it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from ml_assets.release.bundle_store import Bundle
from ml_assets.release.mlflow_files import MLFLOW_FILES
from ml_assets.release.runtime import GOLDEN, ServingModel
from ml_assets_tests.release.conftest import bundle, contents, rows, store

__all__ = ["bundle", "contents", "rows", "store"]  # fixtures


@pytest.fixture
def served(bundle: Bundle, tmp_path: Path) -> Iterator[str]:
    """Address of the model, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(bundle.folder)]
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, "--env-manager", "uv", "--port", str(port)],
            env={
                **os.environ,
                "MLFLOW_ENV_ROOT": str(tmp_path / "envs"),
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        while not _answers(f"{address}/ping"):
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, 15)
        server.wait()


@pytest.mark.timeout(1200)
def test_a_model_serves_with_mlflows_own_command_in_a_fresh_environment(bundle: Bundle, served: str) -> None:
    example = (bundle.folder / "serving_input_example.json").read_bytes()
    model = ServingModel.load(bundle.folder)
    golden = pl.read_parquet(bundle.folder / GOLDEN)

    answer = json.loads(_post(f"{served}/invocations", example))

    assert answer["predictions"] == pytest.approx(model.predict(golden.head(2)).tolist(), abs=1e-6)
    assert {"MLmodel", "conda.yaml", "python_env.yaml"} <= set(MLFLOW_FILES)
    with pytest.raises(urllib.error.HTTPError) as refused:
        _post(f"{served}/invocations", json.dumps({"dataframe_records": [{"hour": 1}]}).encode())
    assert "are missing" in refused.value.read().decode()


def _post(address: str, body: bytes) -> bytes:
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False
