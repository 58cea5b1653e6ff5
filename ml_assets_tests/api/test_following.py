"""Metrics of a training as server-sent events: live, resumed without a gap, and ended with the run."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import httpx
import pytest
from dagster._core.events import AssetObservationData, DagsterEvent

from ml_assets.context.runs import MetricsPoint, Runs, ShownRun
from ml_assets.extras.api import following
from ml_assets.extras.api.callers import STREAMS_OF_ACCOUNT
from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.api.test_frame import NOBODY, problem

PARTITION = "2024-01-22"
PATIENCE = 60.0


@dataclass
class ToldTraining:
    """A run of the job that trains `store_demand`, in a thread. It tells the steps that a test wants."""

    api: ServedApi
    run_id: str
    wanted: list[int] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)
    fails: bool = False

    def tell(self, *steps: int) -> None:
        """Let the training tell the metrics of these steps."""
        self.wanted += steps


@contextmanager
def training(api: ServedApi, *steps: int, partition: str = PARTITION) -> Iterator[ToldTraining]:
    """Run a training that tells `steps` at once, until its block ends."""
    made = ToldTraining(api, "", list(steps))

    @dg.op
    def train(context: dg.OpExecutionContext) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            while made.wanted:
                step = made.wanted.pop(0)
                loss = float("nan") if step == 13 else 1.0 / step
                facts = {"step": step, "loss": loss}
                key = dg.AssetKey(["store_demand", "checkpoint"])
                context.log_event(dg.AssetObservation(key, partition=partition, metadata=facts))
            if made.ends.wait(0.05) and not made.wanted:
                break
        if made.fails:
            raise dg.Failure("the disk is full")

    @dg.job(name="train_store_demand")
    def job() -> None:
        train()

    instance = api.context.project.instance
    run = instance.create_run_for_job(job, tags={"dagster/partition": partition})
    made.run_id = run.run_id

    def execute() -> None:
        job.execute_in_process(
            instance=instance,
            run_id=f"{run.run_id}",
            tags={"dagster/partition": partition},
            raise_on_error=False,
        )

    instance.delete_run(run.run_id)  # only its id is used
    thread = threading.Thread(target=execute)
    thread.start()
    try:
        while instance.get_run_by_id(made.run_id) is None:
            assert thread.is_alive()
            time.sleep(0.02)
        yield made
    finally:
        made.ends.set()
        thread.join()


@contextmanager
def following_run(
    api: ServedApi, run_id: str, name: str = "viewer", **headers: str
) -> Iterator[Iterator[dict[str, Any]]]:
    """Open the stream of a run; yield its events."""
    proof = {"authorization": f"Bearer {api.tokens[name]}"}
    url = f"{api.address}/api/v1/training-runs/{run_id}/metrics"
    with httpx.stream("GET", url, headers=proof | headers, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            event[name] = json.loads(value) if name == "data" else value
        elif "event" in event:
            yield event
            event = {}


def steps_of(events: Sequence[dict[str, Any]]) -> list[int]:
    return [one["data"]["step"] for one in events if one["event"] == "metrics"]


def test_metrics_come_while_the_training_runs_and_end_with_it(api: ServedApi) -> None:
    with training(api, 1, 2) as made, following_run(api, made.run_id) as events:
        first = [next(events), next(events)]
        assert steps_of(first) == [1, 2]
        assert first[0]["data"]["values"] == {"loss": 1.0}
        assert api.ask("viewer", "GET", f"/training-runs/{made.run_id}").json()["state"] == "running"
        made.tell(3, 13)
        later = [next(events), next(events)]
        assert (steps_of(later), later[1]["data"]["values"]) == ([3, 13], {"loss": None})
        made.ends.set()
        assert next(events) == {"event": "end", "data": {"state": "completed"}}
        assert next(events, None) is None


def test_a_failed_training_ends_its_stream_with_the_reason_to_ask(api: ServedApi) -> None:
    with training(api, 1) as made, following_run(api, made.run_id) as events:
        assert steps_of([next(events)]) == [1]
        made.fails = True
        made.ends.set()
        assert next(events)["data"] == {"state": "failed"}
    told = api.ask("viewer", "GET", f"/training-runs/{made.run_id}").json()
    assert (told["state"], told["model"]) == ("failed", "store_demand")
    assert "the disk is full" in told["why"]


def test_a_client_that_lost_its_connection_misses_and_repeats_nothing(api: ServedApi) -> None:
    with training(api, *range(1, 8)) as made:
        with following_run(api, made.run_id) as events:
            seen = [next(events) for _ in range(4)]
        made.tell(8, 9)
        made.ends.set()
        with following_run(api, made.run_id, **{"last-event-id": seen[-1]["id"]}) as events:
            rest = list(events)
    assert steps_of(seen) + steps_of(rest) == list(range(1, 10))
    assert rest[-1]["event"] == "end"


def test_two_trainings_of_a_partition_have_their_own_metrics(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tells more points than a look returns before the other, which began first, tells its own."""
    monkeypatch.setattr("ml_assets.context.runs.MOST_POINTS", 3)
    instance = api.context.project.instance

    @dg.op
    def train(context: dg.OpExecutionContext) -> None:
        """Step of a job that this test does not execute."""

    @dg.job(name="train_store_demand")
    def job() -> None:
        train()

    second = instance.create_run_for_job(job, tags={"dagster/partition": PARTITION})
    with training(api, *range(1, 11)) as first, following_run(api, first.run_id) as events:
        assert steps_of([next(events) for _ in range(10)]) == list(range(1, 11))
    key, metadata = dg.AssetKey(["store_demand", "checkpoint"]), {"step": 77}
    told = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_OBSERVATION.value,
        job_name=job.name,
        event_specific_data=AssetObservationData(
            dg.AssetObservation(key, partition=PARTITION, metadata=metadata)
        ),
    )
    instance.report_dagster_event(told, second.run_id)
    with following_run(api, second.run_id) as events:
        assert steps_of([next(events)]) == [77]


def test_listeners_of_a_training_share_its_looks(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that comes later, and one that asks for points which the others had long ago."""
    monkeypatch.setattr("ml_assets.extras.api.following.MOST_POINTS", 4)
    looks: list[float] = []
    plain = Runs.metrics

    def noted(runs: Runs, run: ShownRun, after: int = 0) -> Sequence[MetricsPoint]:
        looks.append(time.monotonic())
        return plain(runs, run, after)

    monkeypatch.setattr(Runs, "metrics", noted)
    with training(api, *range(1, 10)) as made, ExitStack() as stack:
        streams = [stack.enter_context(following_run(api, made.run_id)) for _ in range(6)]
        for events in streams:
            assert steps_of([next(events) for _ in range(9)]) == list(range(1, 10))
        streams.append(stack.enter_context(following_run(api, made.run_id, "operator")))
        assert steps_of([next(streams[-1]) for _ in range(9)]) == list(range(1, 10))
        began = time.monotonic()
        time.sleep(4 * following.POLL_SECONDS)
        made.tell(10)
        made.ends.set()
        for events in streams:
            assert steps_of([next(events)]) == [10]
            assert next(events)["event"] == "end"
        took = time.monotonic() - began
    assert sum(one >= began for one in looks) <= took / following.POLL_SECONDS + 2


def test_clients_that_vanish_leave_room_for_others(api: ServedApi) -> None:
    parts = urlsplit(api.address)
    with training(api, 1) as made:
        opened = []
        for _ in range(STREAMS_OF_ACCOUNT):
            one = socket.create_connection((parts.hostname, parts.port), PATIENCE)
            one.sendall(
                f"GET /api/v1/training-runs/{made.run_id}/metrics HTTP/1.1\r\nhost: here\r\n"
                f"authorization: Bearer {api.tokens['operator']}\r\n\r\n".encode()
            )
            assert one.recv(12) == b"HTTP/1.1 200"
            opened.append(one)
        url = f"/training-runs/{made.run_id}/metrics"
        assert problem(api.ask("operator", "GET", url)) == (429, "too_many_streams")
        with following_run(api, made.run_id) as events:
            assert steps_of([next(events)]) == [1]
        for one in opened:
            one.close()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with following_run(api, made.run_id, "operator") as events:
                    assert steps_of([next(events)]) == [1]
                break
            except AssertionError:
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_clients_that_hang_up_at_once_are_not_counted(api: ServedApi) -> None:
    parts = urlsplit(api.address)
    with training(api, 1) as made:
        for _ in range(STREAMS_OF_ACCOUNT * 3):
            with socket.create_connection((parts.hostname, parts.port), PATIENCE) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # end by a reset
                one.sendall(
                    f"GET /api/v1/training-runs/{made.run_id}/metrics HTTP/1.1\r\nhost: here\r\n"
                    f"authorization: Bearer {api.tokens['approver']}\r\n\r\n".encode()
                )
            time.sleep(0.02)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with following_run(api, made.run_id, "approver") as events:
                    assert steps_of([next(events)]) == [1]
                break
            except AssertionError:
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_a_stream_ends_with_the_account_of_its_reader(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ml_assets.extras.governance.proxy.persons.STANDING_SECONDS", 0.1)
    token = api.platform.ledger.accounts.add_by_token("watcher", api.root)
    reader = ServedApi(api.address, "", api.context, {"watcher": token}, api.root)
    with training(api, 1) as made, following_run(reader, made.run_id, "watcher") as events:
        assert steps_of([next(events)]) == [1]
        api.platform.ledger.accounts.revoke("watcher", api.root, reason="left")
        assert next(events, None) is None


def test_a_silent_stream_says_that_it_lives(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "COMMENT_SECONDS", 0.1)
    proof = {"authorization": f"Bearer {api.tokens['viewer']}"}
    with training(api) as made:
        url = f"{api.address}/api/v1/training-runs/{made.run_id}/metrics"
        with httpx.stream("GET", url, headers=proof, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith(":")) == ": waiting"


@pytest.mark.parametrize("last", ["-1", "x", "1e3", "9" * 30])
def test_a_wrong_place_in_a_stream_is_refused(api: ServedApi, last: str) -> None:
    answer = api.ask("viewer", "GET", f"/training-runs/{NOBODY}/metrics", **{"last-event-id": last})
    assert problem(answer) == (422, "invalid_request")
    assert problem(api.ask("viewer", "GET", f"/training-runs/{NOBODY}/metrics")) == (404, "not_found")
