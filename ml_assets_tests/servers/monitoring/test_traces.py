"""The trace of a run in a real collector: Jaeger, which takes OTLP and answers which spans it has."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest

from deployment.testbed.build import build
from deployment.testbed.processes import free_port
from ml_assets.components.metadata import REQUESTED
from ml_assets_tests.components.installation import STAGES, Installation, failure_of
from ml_assets_tests.components.readings_pipeline import MODEL, WINDOW, days
from ml_assets_tests.servers.monitoring.test_prometheus import wait_for
from resources.settings import Settings

DAY = days(WINDOW, start=1)[-1]


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a Jaeger: where it takes traces, and where it answers."""
    program = build("jaeger") / "all-in-one"
    takes, answers = free_port(), free_port()
    used = {
        "collector.otlp.http.host-port": takes,
        "collector.otlp.grpc.host-port": free_port(),
        "collector.http-server.host-port": free_port(),
        "collector.grpc-server.host-port": free_port(),
        "query.http-server.host-port": answers,
        "query.grpc-server.host-port": free_port(),
        "admin.http.host-port": free_port(),
    }
    command = [program, *(f"--{name}=127.0.0.1:{port}" for name, port in used.items())]
    with (tmp_path / "jaeger.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: _services(answers) is not None, "Jaeger answers")
        yield f"http://127.0.0.1:{takes}", f"http://127.0.0.1:{answers}"
    finally:
        process.terminate()
        process.wait(60)


def _services(port: int) -> list[str] | None:
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/api/services", timeout=5).json()["data"] or []
    return None


@pytest.mark.nightly
def test_a_real_collector_has_the_whole_trace_of_a_training(jaeger: tuple[str, str], tmp_path: Path) -> None:
    takes, answers = jaeger
    settings = Settings.model_validate({"home": tmp_path / "home", "author": "ada", "traces_url": takes})
    installation = Installation(tmp_path / "home", settings=settings)
    sensor: Any = installation.defs.get_repository_def().get_sensor_def("send_traces")

    def tick(cursor: str | None) -> str | None:
        resources = {"platform": installation.platform}
        with dg.build_sensor_context(
            instance=installation.instance, resources=resources, cursor=cursor
        ) as context:
            return sensor(context).cursor

    cursor = tick(None)
    requested = {REQUESTED: f"{time.time():.3f}"}
    built = installation.with_tables(1).run(*STAGES, partition=DAY, **requested)
    assert built.success, failure_of(built)
    tick(cursor)

    def spans() -> list[dict[str, Any]]:
        found = httpx.get(f"{answers}/api/traces/{built.run_id.replace('-', '')}", timeout=10)
        return found.json()["data"][0]["spans"] if found.status_code == 200 else []

    sent = wait_for(spans, "the trace is at Jaeger")
    names = {one["spanID"]: one["operationName"] for one in sent}
    parents = {
        one["operationName"]: names[one["references"][0]["spanID"]] for one in sent if one["references"]
    }
    assert not [one for one in sent if one["warnings"]], (
        "Jaeger finds a parent for each span, and a true order"
    )
    (root,) = [one["operationName"] for one in sent if not one["references"]]
    assert root == "request to the API"
    run = f"run of {MODEL} {DAY}"
    assert parents[run] == root
    (workers,) = [one for one in parents if one.startswith("workers")]
    assert (parents[workers], parents["attempt 1"]) == ("attempt 1", "launch")
    assert parents[parents["launch"]] == run
    assert parents["checkpoint"] == workers
    assert (parents["rank 0"], parents["rank 1"]) == ("attempt 1", "attempt 1")
