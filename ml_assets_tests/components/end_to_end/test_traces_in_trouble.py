"""Traces of runs beside a collector, clocks and records in trouble: each run's trace arrives, and delays no other."""

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.usage import UsageRecord, UsedAttempt, UsedLaunch, usage_file
from ml_assets_tests.components.end_to_end.test_traces import Collected, tick
from ml_assets_tests.components.installation import Installation
from ml_assets_tests.resources.launcher.http_server import QuietHandler, serving_in_threads
from resources.job.events import EVENTS, TrainingEvent, folder_of_training
from resources.job.reserved import Reserved
from resources.settings import Settings

FINGERPRINT = "f" * 64


class Trouble(Collected):
    """Collector that can refuse messages which hold a name, or answer slowly."""

    refuses: bytes = b"never sent"
    answers_for: float = 0.0
    """Seconds of an answer that comes byte by byte."""


@pytest.fixture
def collected() -> Iterator[Trouble]:
    found = Trouble()

    class Answers(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = 413 if found.refuses in body else found.status
            if status == 200:
                assert self.path == "/v1/traces?tenant=a"
                found.messages.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(status)
            size = int(found.answers_for * 10)
            self.send_header("Content-Length", str(size))
            self.send_header("Location", "/login")
            self.end_headers()
            for _ in range(size):
                time.sleep(0.1)
                self.wfile.write(b" ")

    with serving_in_threads(Answers) as address:
        found.address = f"{address}?tenant=a"
        yield found


@pytest.fixture
def installation(tmp_path: Path, collected: Trouble) -> Installation:
    settings = Settings.model_validate({"home": tmp_path, "author": "ada", "traces_url": collected.address})
    installation = Installation(tmp_path, settings=settings)
    tick(installation)
    return installation


def ended(installation: Installation, name: str, at: datetime | None = None) -> None:
    """Record a run that ended at `at`, by the clock of its machine."""
    instance = installation.instance
    run = instance.add_run(dg.DagsterRun(job_name=name))
    event = dg.DagsterEvent("PIPELINE_SUCCESS", name)
    instance.run_storage.handle_run_event(run.run_id, event, at)


def names(collected: Collected) -> list[str]:
    """Return the names of the runs that arrived, in order."""
    return [one.name.removeprefix("run of ") for one in collected.named("run of ")]


def test_runs_that_ended_at_one_time_all_arrive_once(installation: Installation, collected: Trouble) -> None:
    """More runs than one message takes end at the same time."""
    at = datetime.now(UTC)
    for number in range(45):
        ended(installation, f"r{number}", at)
    said = [tick(installation) for _ in range(4)]
    assert said[:3] == [
        "sent the traces of 20 runs",
        "sent the traces of 20 runs",
        "sent the traces of 5 runs",
    ]
    assert sorted(names(collected)) == sorted(f"r{number}" for number in range(45))


def test_a_run_whose_clock_is_behind_arrives(installation: Installation, collected: Trouble) -> None:
    """Its machine says that it ended before a run whose trace was sent."""
    ended(installation, "first")
    tick(installation)
    ended(installation, "behind", datetime.now(UTC) - timedelta(seconds=90))
    tick(installation)
    tick(installation)
    assert names(collected) == ["first", "behind"]


def test_a_run_whose_clock_is_ahead_delays_no_other(installation: Installation, collected: Trouble) -> None:
    ended(installation, "ahead", datetime.now(UTC) + timedelta(days=2))
    tick(installation)
    ended(installation, "later")
    tick(installation)
    assert names(collected) == ["ahead", "later"]


def test_a_trace_that_the_collector_refuses_delays_no_other(
    installation: Installation, collected: Trouble
) -> None:
    collected.refuses = b"run of large"
    for name in ("a", "large", "b"):
        ended(installation, name)
    assert tick(installation) == "sent the traces of 2 runs; the collector refused 1 run"
    ended(installation, "c")
    assert tick(installation) == "sent the traces of 1 run"
    assert names(collected) == ["a", "b", "c"]


def test_a_redirect_to_a_sign_in_is_no_delivery(installation: Installation, collected: Trouble) -> None:
    ended(installation, "a")
    collected.status = 302
    assert "answered 302" in tick(installation)
    collected.status = 200
    tick(installation)
    assert names(collected) == ["a"]


def test_an_answer_that_comes_byte_by_byte_holds_up_no_tick(
    installation: Installation, collected: Trouble
) -> None:
    ended(installation, "a")
    collected.answers_for = 20
    began = time.monotonic()
    assert tick(installation) == "sent the traces of 1 run"
    assert time.monotonic() - began < 10


def test_no_log_and_no_tick_shows_the_credentials_of_a_collector(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for number, address in enumerate(
        [
            "http://ada:s3cr3t@127.0.0.1:9",
            "http://127.0.0.1:9?token=s3cr3t",
            "http://ada:s3cr3t#x@127.0.0.1:9",
        ]
    ):
        home = tmp_path / str(number)
        settings = Settings.model_validate({"home": home, "author": "ada", "traces_url": address})
        installation = Installation(home, settings=settings)
        tick(installation)
        ended(installation, "a")
        said = tick(installation)
        assert said.startswith("the traces wait: ")
        assert "s3cr3t" not in said
    assert "s3cr3t" not in caplog.text


def _record(**changes: object) -> UsageRecord:
    reading = Reserved(
        job="j", at=2e9, began=1e9, places=0, place_seconds=1.0, cores=1.0, memory_bytes=0, gpus=None
    )
    facts = {
        "environment": "local",
        "env": "",
        "model": "m",
        "partition": "2024-01-01",
        "fingerprint": FINGERPRINT,
        "attempts": (UsedAttempt(reading=reading, gpus=0, gpu="", state="completed"),),
        "goodput": Goodput(),
    }
    return UsageRecord(**facts | changes)  # pyright: ignore[reportArgumentType]


STARTED = {"kind": "started", "step": 0, "time": 1.5e9, "values": {"world_size": 2}}


@pytest.mark.parametrize(
    "damage",
    [
        {"values": {"world_size": "two"}},
        {"values": {"world_size": float("inf")}},
        {"values": None},
        {"time": "yesterday"},
        {"time": float("nan")},
        {"time": float("inf")},
        {"time": 1e15},
        {"kind": []},
        {"step": 2**70},
        {"step": "first"},
        {"kind": "started\udcff"},
    ],
    ids=str,
)
def test_damaged_events_delay_no_trace(
    damage: dict[str, object], installation: Installation, collected: Trouble
) -> None:
    @dg.op
    def trains(context: dg.OpExecutionContext) -> None:
        context.log_event(
            dg.AssetMaterialization(["m", "training_set"], metadata={"fingerprint": FINGERPRINT})
        )

    @dg.job
    def damaged() -> None:
        trains()

    run = damaged.execute_in_process(instance=installation.instance).run_id
    launch = UsedLaunch(id="l", run_id=run, author="ada", began=1e9, at=2e9, state="completed")
    artifacts = installation.platform.artifacts
    with artifacts.create(*usage_file("m", FINGERPRINT)) as stream:
        stream.write(_record(launches=(launch,)).to_json().encode())
    event = TrainingEvent(**{**STARTED, **damage})  # pyright: ignore[reportArgumentType]
    with artifacts.create(folder_of_training("m", FINGERPRINT), EVENTS) as stream:
        stream.write(event.to_line().encode())
    ended(installation, "other")
    said = tick(installation)
    assert said.startswith("sent the traces of 2 runs"), said
    assert sorted(names(collected)) == ["damaged", "other"]
