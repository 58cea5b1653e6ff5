"""`ml-assets api` as a process: it answers, and Ctrl-C ends it beside an open stream."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from deployment.testbed.processes import free_port
from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.api.test_following import following_run, steps_of, training

READY_SECONDS = 180
END_SECONDS = 30


def test_ctrl_c_ends_the_api_beside_an_open_stream(api: ServedApi, tmp_path: Path) -> None:
    port = free_port()
    with (tmp_path / "api.log").open("wb") as log:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("ml-assets"),
                *("api", "--webserver", api.webserver, "--port", str(port)),
            ],
            env=os.environ | {"ML_ASSETS_HOME": str(api.platform.settings.home)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    served = ServedApi(f"http://127.0.0.1:{port}", api.webserver, api.context, api.tokens, api.root)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(served.address):
            assert process.poll() is None, (tmp_path / "api.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with training(api, 1) as made, following_run(served, made.run_id) as events:
            assert steps_of([next(events)]) == [1]
            process.send_signal(signal.SIGINT)
            assert process.wait(END_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    said = (tmp_path / "api.log").read_text()
    assert said.startswith(f"API on http://127.0.0.1:{port}/api/v1, launching at {api.webserver}")
    assert "Traceback" not in said


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
