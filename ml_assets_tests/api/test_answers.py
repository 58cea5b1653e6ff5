"""Kept answers: sent again only while nothing changed of what they were made from."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.storage.tags import PARTITION_NAME_TAG
from fastapi import Request, Response

from ml_assets.components.metadata import TRAINS
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets.extras.api.answers import MOST_BYTES, KeptAnswers, PartLook
from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.usage import UsageRecord, UsedAttempt, UsedLaunch, usage_file
from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.serving.released import MODEL
from ml_assets_tests.tables import orders_table
from resources.job.reserved import Reserved
from resources.tracking.mlflow_client import open_client
from resources.tracking.tracker import RunFacts


def publish_orders(api: ServedApi, rows: int) -> str:
    """Publish a day of orders with its first rows; return the commit of main."""
    (key, frame), *_ = orders_table.days(1).items()
    some = [Incoming(key=key, data=frame.head(rows))]
    run = PublishingRun(run_id=f"rows{rows}", url="http://127.0.0.1:3000/runs/rows")
    publish(api.platform.lake, api.platform.ledger, orders_table.spec(), some, run, NOTHING_DECLARED)
    return api.platform.lake.resolve("main")


def test_each_change_is_in_the_next_answer(api: ServedApi) -> None:
    """Verdicts, runs, commits and versions in production: each was asked twice before, so that its answer is kept."""
    platform, instance = api.platform, api.context.project.instance

    def told(path: str) -> Any:
        answers = [api.ask("viewer", "GET", path).json() for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    run = instance.add_run(dg.DagsterRun(job_name="any"))
    assert told(f"/pipelines/runs/{run.run_id}")["state"] == "queued"
    instance.report_run_canceled(run)
    assert told(f"/pipelines/runs/{run.run_id}")["state"] == "killed"
    assert told(f"/pipelines/runs/{run.run_id}")["launched_by"] is None
    platform.ledger.launches.record([run.run_id], api.root, "launchRun")
    assert told(f"/pipelines/runs/{run.run_id}")["launched_by"] == api.root.name
    instance.delete_run(run.run_id)
    assert api.ask("viewer", "GET", f"/pipelines/runs/{run.run_id}").status_code == 404

    for rows in (5, 6):
        commit = publish_orders(api, rows)
        assert told("/datasets/orders/versions?limit=2")["items"][0]["commit"] == commit
        assert told(f"/datasets/orders/partitions/{orders_table.keys(1)[0]}")["rows"] == rows

    promoted = platform.ledger.models.promote(
        MODEL,
        "900",
        "production",
        by=api.root,
        reason="test",
        bundle_digest="b" * 64,
        evaluation_digest="e" * 64,
    )
    held = {one["name"]: one["production"] for one in told("/models")["items"]}
    assert held[MODEL] == "900"
    platform.ledger.models.demote(promoted, by=api.root, reason="test")
    held = {one["name"]: one["production"] for one in told("/models")["items"]}
    assert held[MODEL] is None


def test_each_change_of_mlflow_and_of_costs_is_in_the_next_answer(api: ServedApi) -> None:
    """Also a file that MLflow's database does not know, and the costs of a training that runs."""
    platform, experiment = api.platform, "kept"

    def told(path: str) -> Any:
        answers = [api.ask("viewer", "GET", path).json() for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    facts = RunFacts(experiment=experiment, fingerprint="a" * 64, name="first", author="ada")
    with platform.tracker.start(facts) as run:
        run.log({"loss": 0.5}, step=1)
    (first,) = told(f"/experiments/{experiment}/runs")["items"]
    path = f"/experiments/{experiment}/runs/{first['id']}"
    assert (told(path)["metrics"], told(path)["artifacts"]) == ({"loss": 0.5}, {})
    platform.tracker.record(first["id"], {"holdout": 0.25}, step=2)
    assert told(path)["metrics"] == {"loss": 0.5, "holdout": 0.25}
    open_client(platform.settings.resolved_tracking_uri.reveal()).log_text(first["id"], "figure", "page.txt")
    assert told(path)["artifacts"] == {"page.txt": 6}

    before = told("/costs")["total"]["spent"]["core_hours"]
    for places, core_hours in ((2, 1.0), (2, 2.0), (0, 3.0), (0, 4.0)):
        record = used(places=places, core_hours=core_hours)
        with platform.artifacts.create(*usage_file(record.model, record.fingerprint)) as stream:
            stream.write(record.to_json().encode())
        assert told("/costs")["total"]["spent"]["core_hours"] - before == pytest.approx(core_hours)


def used(*, places: int, core_hours: float) -> UsageRecord:
    """Return the record of a training that holds `places`."""
    seconds = 1800 * core_hours
    reading = Reserved(
        job="job",
        at=seconds,
        began=0.0,
        places=places,
        place_seconds=seconds,
        cores=2.0,
        memory_bytes=0,
        gpus=0,
    )
    launch = UsedLaunch(id="a", run_id="run", author="ada", began=0.0, at=seconds, state="running")
    return UsageRecord(
        environment="local",
        env="",
        model=MODEL,
        partition="2024-01-15",
        fingerprint="9" * 64,
        launches=(launch,),
        attempts=(UsedAttempt(reading=reading, gpus=0, gpu="", state="running"),),
        goodput=Goodput(compute=seconds),
    )


def test_a_damaged_record_spoils_only_answers_that_need_it(api: ServedApi) -> None:
    """The costs of a training do not need the record of another pipeline's."""
    instance, artifacts = api.context.project.instance, api.platform.artifacts
    record = replace(used(places=0, core_hours=2.0), fingerprint="8" * 64)
    run = instance.add_run(
        dg.DagsterRun(job_name=f"{TRAINS}{MODEL}", tags={PARTITION_NAME_TAG: "2024-01-15"})
    )
    frozen = dg.AssetMaterialization(
        dg.AssetKey([MODEL, "training_set"]),
        partition="2024-01-15",
        metadata={"fingerprint": record.fingerprint},
    )
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_MATERIALIZATION.value,
        job_name=run.job_name,
        event_specific_data=StepMaterializationData(frozen),
    )
    instance.report_dagster_event(event, run.run_id)
    with artifacts.create(*usage_file(MODEL, record.fingerprint)) as stream:
        stream.write(record.to_json().encode())
    damaged, file = usage_file("another", "7" * 64)
    with artifacts.create(damaged, file) as stream:
        stream.write(b"{")
    try:
        told = [api.ask("viewer", "GET", f"/training-runs/{run.run_id}/costs") for _ in range(3)]
        assert [one.json()["spent"]["core_hours"] for one in told] == [2.0] * 3
        refused = api.ask("viewer", "GET", "/costs")
        assert (refused.status_code, refused.json()["code"]) == (409, "usage_damaged")
    finally:
        artifacts.remove(damaged)
        instance.delete_run(run.run_id)


class ToldState:
    """Part of a platform that a test changes, and the answers made from it."""

    def __init__(self) -> None:
        self.state: Hashable = 0
        self.status = 200
        self.made = self.seen = self.seen_more = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.answers = KeptAnswers()

    def see(self) -> Hashable:
        self.seen += 1
        state = self.state
        assert self.goes_on.wait(10)
        return state

    def see_more(self) -> Hashable:
        self.seen_more += 1
        return 0

    async def ask(self, path: str = "/x", parameters: bytes = b"") -> bytes:
        request = Request({"type": "http", "path": path, "query_string": parameters, "headers": []})
        looks = [PartLook("place", "name", self.see), PartLook("place", "more", self.see_more)]

        async def make() -> Response:
            await self.answers.before([lambda _, one=one: one for one in looks], {})
            self.made += 1
            await asyncio.sleep(0.01)
            return Response(f"{self.state}", self.status)

        return bytes((await self.answers.of(request, make)).body)


def asked(work: Callable[[ToldState], Coroutine[Any, Any, None]]) -> None:
    told = ToldState()

    async def run() -> None:
        await work(told)

    try:
        asyncio.run(run())
    finally:
        told.answers.close()


def test_requests_for_one_answer_make_it_once() -> None:
    async def work(told: ToldState) -> None:
        assert await asyncio.gather(*(told.ask() for _ in range(50))) == [b"0"] * 50
        assert told.made == 1
        told.state = 1
        assert await asyncio.gather(*(told.ask() for _ in range(50))) == [b"1"] * 50
        assert told.made == 2
        assert told.seen < 20, "requests that wait share a look"

    asked(work)


def test_a_request_waits_for_a_look_that_began_after_it() -> None:
    """A look that is on its way already may have seen the state from before a change that the client made."""

    async def work(told: ToldState) -> None:
        await told.ask()
        told.goes_on.clear()
        seen = told.seen
        early = asyncio.create_task(told.ask())
        while told.seen == seen:
            await asyncio.sleep(0.001)
        told.state = 1
        late = [asyncio.create_task(told.ask()) for _ in range(3)]
        await asyncio.sleep(0.01)
        told.goes_on.set()
        assert await early == b"0"
        assert [await one for one in late] == [b"1"] * 3

    asked(work)


def test_refusals_and_unknown_states_are_not_kept() -> None:
    async def work(told: ToldState) -> None:
        told.state = None
        await told.ask()
        await told.ask()
        assert told.made == 2
        assert told.seen_more == 0, "a look at a server for an answer that is not kept anyway"
        told.state, told.status = 0, 404
        await told.ask()
        told.status = 200
        await told.ask()
        await told.ask()
        assert told.made == 4

    asked(work)


def test_a_look_without_a_thread_is_an_error_not_a_hang() -> None:
    """As while the server stops, or on a machine whose threads are used up: the place had been silent ever after."""

    async def work(told: ToldState) -> None:
        await told.ask()
        told.answers.close()
        for _ in range(2):
            async with asyncio.timeout(5):
                with pytest.raises(RuntimeError, match="after shutdown"):
                    await told.ask()

    asked(work)


def test_long_parameters_count_as_memory() -> None:
    """A client may write `limit=9` a thousand times, in thousands of ways."""

    async def work(told: ToldState) -> None:
        most = MOST_BYTES // 2**16
        for one in range(most + 1):
            await told.ask(parameters=b"%d" % one + b"x" * 2**16)
        for one in (most, 0):
            await told.ask(parameters=b"%d" % one + b"x" * 2**16)
        assert told.made == most + 2, "the newest is kept, the oldest is not"

    asked(work)


def test_a_request_that_leaves_takes_no_other_along() -> None:
    async def work(told: ToldState) -> None:
        await told.ask()
        told.goes_on.clear()
        leaves, stays = (asyncio.create_task(told.ask()) for _ in range(2))
        await asyncio.sleep(0.01)
        leaves.cancel()
        told.goes_on.set()
        assert await stays == b"0"
        assert told.made == 1

    asked(work)
