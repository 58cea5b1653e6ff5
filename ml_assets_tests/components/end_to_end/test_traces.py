"""Traces of runs, sent by the sensor to a receiver of OTLP's messages; a real collector is in the tests of servers."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from ml_assets.components.metadata import REQUESTED, TRACE_PARENT
from ml_assets_tests.components.installation import STAGES, Installation, failure_of
from ml_assets_tests.components.readings_pipeline import FIRST, MODEL, READINGS, WINDOW, days
from ml_assets_tests.resources.launcher.http_server import QuietHandler, serving_in_threads
from resources.settings import Settings

DAY = days(WINDOW, start=1)[-1]


@dataclass
class Collected:
    """Messages that arrived, and the status that answers."""

    address: str = ""
    messages: list[ExportTraceServiceRequest] = field(default_factory=list)
    status: int = 200

    @property
    def spans(self) -> list[SentSpan]:
        """All spans, in the order of the messages."""
        return [
            span
            for message in self.messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, begin: str) -> list[SentSpan]:
        """Return the spans whose name begins so."""
        return [one for one in self.spans if one.name.startswith(begin)]


@pytest.fixture(scope="module")
def collected() -> Iterator[Collected]:
    found = Collected()

    class Answers(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if found.status == 200:
                assert self.path == "/v1/traces"
                found.messages.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving_in_threads(Answers) as address:
        found.address = address
        yield found


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, collected: Collected) -> Installation:
    home = tmp_path_factory.mktemp("traces")
    settings = Settings.model_validate({"home": home, "author": "ada", "traces_url": collected.address})
    installation = Installation(home, settings=settings)
    assert tick(installation) == "no run ended"
    return installation


def tick(installation: Installation) -> str:
    """Let the sensor look; return what it says."""
    sensor = installation.defs.get_repository_def().get_sensor_def("send_traces")
    context = dg.build_sensor_context(
        instance=installation.instance,
        resources={"platform": installation.platform},
        cursor=installation.cursors.get("send_traces"),
    )
    answer: Any = sensor(context)
    installation.cursors["send_traces"] = answer.cursor
    return answer.skip_reason.skip_message


def within(inner: SentSpan, outer: SentSpan) -> bool:
    return (
        outer.start_time_unix_nano - 10**8
        <= inner.start_time_unix_nano
        <= inner.end_time_unix_nano
        <= outer.end_time_unix_nano + 10**8
    )


def test_a_trace_leads_from_the_run_to_its_workers(installation: Installation, collected: Collected) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    tags = {TRACE_PARENT: parent, REQUESTED: f"{time.time():.3f}"}
    built = installation.with_tables(1).run(*STAGES, partition=DAY, **tags)
    assert built.success, failure_of(built)
    assert tick(installation) == "sent the traces of 3 runs"
    (root,) = collected.named(f"run of {MODEL} {DAY}")
    own = [one for one in collected.spans if one.trace_id == root.trace_id]
    assert root.trace_id.hex() == parent.split("-")[1]
    (request,) = collected.named("request to the API")
    assert request.parent_span_id.hex() == parent.split("-")[2]
    assert root.parent_span_id == request.span_id
    assert request.end_time_unix_nano == root.start_time_unix_nano
    assert root.status.code == Status.STATUS_CODE_OK
    by_id = {one.span_id: one for one in own}
    assert len(by_id) == len(own)
    path = [next(one for one in own if one.name.startswith("checkpoint"))]
    while (above := by_id.get(path[-1].parent_span_id)) is not None:
        assert above is request or within(path[-1], above), (path[-1].name, above.name)
        path.append(above)
    assert [one.name.split(" ")[0] for one in path] == [
        "checkpoint",
        "workers",
        "attempt",
        "launch",
        "step",
        "run",
        "request",
    ]
    ranks = [one for one in own if one.name.startswith("rank")]
    assert [one.name for one in ranks] == ["rank 0", "rank 1"]
    assert all(by_id[one.parent_span_id].name == "attempt 1" for one in ranks)
    (launch,) = collected.named("launch")
    facts = {one.key: one.value.string_value for one in launch.attributes}
    assert (facts["ml_assets.model"], facts["ml_assets.partition"]) == (MODEL, DAY)
    assert tick(installation) == "no run ended"
    assert tick(installation).startswith("nothing moved")


def test_a_run_that_failed_is_an_error_of_its_own_trace(
    installation: Installation, collected: Collected
) -> None:
    refused = installation.train(days(WINDOW + 5)[-1])
    assert not refused.success
    tick(installation)
    span = collected.spans[-1]
    own = [one for one in collected.spans if one.trace_id == uuid.UUID(refused.run_id).bytes]
    assert span in own
    assert {one.name.split(" ")[0]: one.status.code for one in own} == {
        "run": Status.STATUS_CODE_ERROR,
        "queued": Status.STATUS_CODE_OK,
        "step": Status.STATUS_CODE_ERROR,
    }


def test_a_collector_that_is_away_gets_the_traces_later(
    installation: Installation, collected: Collected
) -> None:
    known = len(collected.messages)
    collected.status = 400
    assert installation.run(READINGS, partition=str(FIRST)).success
    assert tick(installation).startswith("the traces wait: the collector at http://127.0.0.1")
    assert tick(installation).startswith("the traces wait")
    collected.status = 200
    assert tick(installation) == "sent the traces of 1 run"
    assert len(collected.messages) == known + 1


def test_without_a_collector_nothing_is_looked_up(tmp_path: Path) -> None:
    repository = Installation(tmp_path).defs.get_repository_def()
    assert "send_traces" not in {one.name for one in repository.sensor_defs}
