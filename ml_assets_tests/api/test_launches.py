"""Launch and stop over HTTP: what they do to Dagster and the ledger. No daemon runs, so a launched run stays queued."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest

from ml_assets.components.metadata import REQUESTED, TRACE_PARENT
from ml_assets.extras.api.launches import KEY_TAG, REQUEST_TAG
from ml_assets.extras.governance.proxy import webserver
from ml_assets_tests.api.conftest import ServedApi, serving_api
from ml_assets_tests.api.test_frame import NOBODY, problem

TRAINING = {"model": "store_demand", "partition": "2024-01-08"}
TABLE = {"target": "datasets/sales", "partitions": "2024-01-01..2024-01-08"}


def run_of(api: ServedApi, run_id: str) -> dg.DagsterRun:
    found = api.context.project.instance.get_run_by_id(run_id)
    assert found is not None
    return found


def state(api: ServedApi) -> tuple[int, int]:
    """Return the numbers of rows of the ledger and of runs of Dagster."""
    return api.rows(), api.context.project.instance.get_runs_count()


def test_a_training_is_a_run_of_dagster_under_its_person(api: ServedApi) -> None:
    body = TRAINING | {"config": {"memory": "3Gi"}}
    answer = api.ask("operator", "POST", "/training-runs", body)
    told = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/api/v1/training-runs/{told['id']}")
    assert (told["state"], told["model"], told["launched_by"]) == ("queued", "store_demand", "operator")
    run = run_of(api, told["id"])
    assert run.status == dg.DagsterRunStatus.QUEUED
    assert sorted(key.to_user_string() for key in run.asset_selection or ()) == told["assets"]
    assert told["assets"] == [
        f"store_demand/{one}" for one in ("checkpoint", "evaluation", "registered_model", "training_set")
    ]
    assert run.tags["dagster/partition"] == "2024-01-08"
    assert run.tags["ml_assets/resources"] == '{"memory": "3Gi"}'
    row = api.platform.ledger.launches.of(told["id"])
    assert row is not None
    assert (row.by.name, row.by.checked_by, row.by_mutation) == ("operator", "token", "launchRun")
    assert api.ask("viewer", "GET", f"/training-runs/{told['id']}").json() == told


def test_a_range_of_a_table_is_one_run(api: ServedApi) -> None:
    told = api.ask("operator", "POST", "/pipelines/runs", TABLE).json()
    run = run_of(api, told["id"])
    assert (told["assets"], told["partitions"], told["model"]) == (
        ["datasets/sales"],
        TABLE["partitions"],
        "",
    )
    assert run.tags["dagster/asset_partition_range_start"] == "2024-01-01"
    assert run.tags["dagster/asset_partition_range_end"] == "2024-01-08"
    assert api.ask("viewer", "GET", f"/pipelines/runs/{told['id']}").json() == told
    assert problem(api.ask("viewer", "GET", f"/training-runs/{told['id']}")) == (404, "not_found")


def test_requests_with_one_key_launch_one_run(api: ServedApi) -> None:
    before = state(api)

    def launch(_: int) -> Any:
        return api.ask("operator", "POST", "/training-runs", TRAINING, **{"idempotency-key": "once"})

    with ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(launch, range(8)), launch(8)]
    assert {one.status_code for one in answers} == {202}
    assert len({one.json()["id"] for one in answers}) == 1
    assert state(api) == (before[0] + 1, before[1] + 1)
    other = api.ask(
        "operator",
        "POST",
        "/training-runs",
        TRAINING | {"partition": "2024-01-15"},
        **{"idempotency-key": "once"},
    )
    assert problem(other) == (409, "idempotency_key_reused")
    assert state(api) == (before[0] + 1, before[1] + 1)
    of_admin = api.ask("admin", "POST", "/training-runs", TRAINING, **{"idempotency-key": "once"})
    assert of_admin.json()["launched_by"] == "admin"
    assert of_admin.json()["id"] != answers[0].json()["id"]


def test_a_launch_without_a_record_is_recorded_by_its_replay(api: ServedApi) -> None:
    """The process died between the two. If the run was stopped since, the key launches again."""
    first = api.ask("operator", "POST", "/pipelines/runs", TABLE, **{"idempotency-key": "lost"}).json()
    tags = run_of(api, first["id"]).tags
    instance = api.context.project.instance
    instance.delete_run(first["id"])
    unrecorded = instance.create_run_for_job(
        dg.Definitions(jobs=[_nothing]).resolve_job_def("nothing"),
        tags={KEY_TAG: tags[KEY_TAG], REQUEST_TAG: tags[REQUEST_TAG]},
    )
    replayed = api.ask("operator", "POST", "/pipelines/runs", TABLE, **{"idempotency-key": "lost"}).json()
    assert (replayed["id"], replayed["launched_by"]) == (unrecorded.run_id, "operator")
    instance.delete_run(unrecorded.run_id)
    stopped = instance.create_run_for_job(
        dg.Definitions(jobs=[_nothing]).resolve_job_def("nothing"),
        tags={KEY_TAG: tags[KEY_TAG], REQUEST_TAG: tags[REQUEST_TAG]},
    )
    instance.report_run_canceled(stopped)
    again = api.ask("operator", "POST", "/pipelines/runs", TABLE, **{"idempotency-key": "lost"}).json()
    assert (again["state"], again["launched_by"]) == ("queued", "operator")


@dg.op
def _do_nothing() -> None:
    """Op of a job."""


@dg.job(name="nothing")
def _nothing() -> None:
    _do_nothing()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"target": "store_deman", "partitions": "2024-01-08"}, 404, "not_found"),
        ({"target": "store_demand", "partitions": "2024-01-09"}, 422, "launch_refused"),
        ({"target": "store_demand", "partitions": "2024-01-01..2024-01-08"}, 422, "launch_refused"),
        ({"target": "store_demand"}, 422, "launch_refused"),
        ({"target": "datasets/sales", "partitions": "2024-01-08..2024-01-01"}, 422, "launch_refused"),
        (
            {"target": "datasets/sales", "partitions": "2024-01-08", "config": {"memory": "1Gi"}},
            422,
            "launch_refused",
        ),
        (
            {"target": "store_demand", "partitions": "2024-01-08", "config": {"memry": "1Gi"}},
            422,
            "profile_refused",
        ),
        ({"target": "store_demand/checkpoint", "partitions": "2024-01-08"}, 422, "launch_refused"),
        ({"target": "../../etc/passwd", "partitions": "2024-01-08"}, 422, "invalid_request"),
        (
            {"target": "store_demand", "partitions": "2024-01-08", "tags": {"user": "root"}},
            422,
            "invalid_request",
        ),
        ({"target": "store_demand", "partitions": 20240108}, 422, "invalid_request"),
        ({"target": "flight_delay", "partitions": "2013-12-30"}, 409, "not_loaded"),
        ([TABLE], 422, "invalid_request"),
        ("x", 422, "invalid_request"),
    ],
)
def test_a_wrong_launch_is_refused_and_changes_nothing(
    api: ServedApi, body: Any, status: int, code: str
) -> None:
    before = state(api)
    assert problem(api.ask("operator", "POST", "/pipelines/runs", body)) == (status, code)
    assert state(api) == before


def test_a_limited_role_launches_and_stops_only_its_groups(api: ServedApi) -> None:
    run = api.ask("operator", "POST", "/pipelines/runs", TABLE).json()
    before = state(api)
    for method, path, body in (
        ("POST", "/pipelines/runs", TABLE),
        ("POST", "/training-runs", TRAINING),
        ("DELETE", f"/pipelines/runs/{run['id']}", None),
    ):
        answer = api.ask("florist", method, path, body)
        assert problem(answer) == (403, "role_needed")
        assert "flowers" in answer.json()["detail"]
    assert state(api) == before


def test_a_stopped_run_names_who_stopped_it(api: ServedApi) -> None:
    run = api.ask("operator", "POST", "/training-runs", TRAINING).json()
    answer = api.ask("admin", "DELETE", f"/training-runs/{run['id']}")
    told = answer.json()
    assert (answer.status_code, told["state"]) == (202, "killed"), told
    assert (told["launched_by"], told["stopped_by"]) == ("operator", "admin")
    assert run_of(api, run["id"]).status == dg.DagsterRunStatus.CANCELED
    row = api.platform.ledger.launches.stop_of(run["id"])
    assert row is not None
    assert row.by.name == "admin"
    before = state(api)
    assert problem(api.ask("admin", "DELETE", f"/training-runs/{run['id']}")) == (409, "run_ended")
    assert problem(api.ask("admin", "DELETE", f"/training-runs/{NOBODY}")) == (404, "not_found")
    assert state(api) == before


def test_an_account_that_ends_launches_nothing_from_then_on(api: ServedApi) -> None:
    token = api.platform.ledger.accounts.add_by_token("goer", api.root)
    api.platform.ledger.accounts.set_role("goer", "operator", api.root, reason="test")
    asked = {"authorization": f"Bearer {token}"}
    assert api.ask(None, "POST", "/pipelines/runs", TABLE, **asked).status_code == 202
    api.platform.ledger.accounts.set_role("goer", "viewer", api.root, reason="test")
    before = state(api)
    assert problem(api.ask(None, "POST", "/pipelines/runs", TABLE, **asked)) == (403, "role_needed")
    assert state(api) == before
    api.platform.ledger.accounts.revoke("goer", api.root, reason="left")
    assert problem(api.ask(None, "POST", "/pipelines/runs", TABLE, **asked)) == (401, "identity_refused")


def test_a_webserver_that_is_away_is_said_so(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webserver, "CONNECT_SECONDS", 0.5)
    with serving_api(api.context, "http://127.0.0.1:9") as address:
        away = ServedApi(address, "", api.context, api.tokens, api.root)
        before = state(api)
        assert problem(away.ask("operator", "POST", "/pipelines/runs", TABLE)) == (502, "dagster_unavailable")
        assert away.ask("viewer", "GET", "/models").status_code == 200
        assert state(api) == before


def test_a_run_carries_the_span_of_its_caller(api: ServedApi) -> None:
    def tags(**headers: str) -> Mapping[str, str]:
        body = TRAINING | {"partition": "2024-01-15"}
        told = api.ask("operator", "POST", "/training-runs", body, **headers).json()
        return run_of(api, told["id"]).tags

    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    before = time.time()
    launched = tags(traceparent=parent)
    assert launched[TRACE_PARENT] == parent
    assert before - 0.001 <= float(launched[REQUESTED]) <= time.time()
    assert TRACE_PARENT not in tags()
    zeros = f"00-{'0' * 32}-b7ad6b7169203331-01"
    for wrong in ("mine", parent.upper(), f"{parent}-more", f"ff{parent[2:]}", zeros):
        assert TRACE_PARENT not in tags(traceparent=wrong), wrong
    first = tags(traceparent=parent, **{"idempotency-key": "traced"})
    other = parent.replace("b7ad", "c8be")
    again = tags(traceparent=other, **{"idempotency-key": "traced"})
    assert first == again, "a second request with a key launches nothing, whoever traces it"
