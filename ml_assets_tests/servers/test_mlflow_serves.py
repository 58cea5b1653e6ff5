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

from ml_assets.model.release.bundle_store import MLFLOW_FILES, Bundle
from ml_assets.model.release.runtime import GOLDEN, ServingModel
from ml_assets_tests.release.conftest import bundle, contents, rows, store

__all__ = ["bundle", "contents", "rows", "store"]  # fixtures


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the environments that MLflow makes."""
    return tmp_path_factory.mktemp("envs")


@pytest.fixture(scope="module")
def served(bundle: Bundle, environments: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the model, once it answers."""
    tmp_path = tmp_path_factory.mktemp("served")
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
                "MLFLOW_ENV_ROOT": str(environments),
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


_STRANGER = """
import importlib.util, json, sys
import mlflow, pandas as pd
assert not any(importlib.util.find_spec(name) for name in ("ml_assets", "resources", "torch"))
model = mlflow.pyfunc.load_model(sys.argv[1])
example = model.input_example
signature = model.metadata.signature
assert set(signature.inputs.input_names()) == set(example.columns), signature
print(json.dumps([float(value) for value in model.predict(example)]))
"""


@pytest.mark.timeout(1200)
def test_pyfunc_loads_a_model_in_an_environment_of_its_requirements(
    bundle: Bundle, served: str, environments: Path, tmp_path: Path
) -> None:
    """It has the pinned packages and neither this project nor torch. The input example fits the signature."""
    (python,) = environments.glob("*/bin/python")
    done = subprocess.run(
        [str(python), "-I", "-c", _STRANGER, str(bundle.folder)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    golden = pl.read_parquet(bundle.folder / GOLDEN)
    expected = ServingModel.load(bundle.folder).predict(golden.head(2)).tolist()
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(expected, abs=1e-6)
    listed = subprocess.check_output(
        [
            str(python),
            "-I",
            "-c",
            "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))",
        ],
        text=True,
    )
    assert set((bundle.folder / "requirements.txt").read_text().split()) <= set(listed.split())


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
