"""Frame of all routes: who may call them, what is refused before a route sees it, problems, the OpenAPI document."""

import http.client
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from ml_assets.extras.api import frame
from ml_assets.extras.api.app import OPEN_PATHS, api_app
from ml_assets.extras.api.callers import OF_ACCOUNT
from ml_assets.extras.api.frame import MOST_BYTES, ROLE
from ml_assets.extras.api.problems import MEDIA_TYPE
from ml_assets.extras.governance.proxy.rules import ROLES
from ml_assets.foundation.checkout import ROOT
from ml_assets_tests.api.conftest import ServedApi, serving_api

NOBODY = "0d3c5d9e-4f7e-4c0e-9d0a-3f1f5a1c2b3d"
"""Id of no run."""
PARTS = {
    "name": "nothing",
    "table": "nothing",
    "key": "2024-01-01",
    "experiment": "nothing",
    "run": "0" * 32,
    "id": NOBODY,
}


@pytest.fixture(autouse=True)
def nothing_was_changed(api: ServedApi) -> Iterator[None]:
    """No request of these tests may write a row or a run."""
    before = (api.rows(), api.context.project.instance.get_runs_count())
    yield
    assert (api.rows(), api.context.project.instance.get_runs_count()) == before


def operations(api: ServedApi) -> list[tuple[str, str, str]]:
    """Return method, path without a real name, and lowest role of each operation of the OpenAPI document."""
    document = httpx.get(f"{api.address}/openapi.json").json()
    return [
        (method.upper(), re.sub(r"{(\w+)}", lambda part: PARTS.get(part[1], "99"), path), operation[ROLE])
        for path, methods in document["paths"].items()
        if path not in OPEN_PATHS
        for method, operation in methods.items()
    ]


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Return status and code of a refusal, whose form is that of all."""
    assert answer.headers["content-type"] == MEDIA_TYPE
    said = answer.json()
    assert (said["status"], said["request_id"]) == (answer.status_code, answer.headers["x-request-id"])
    assert said["detail"]
    return answer.status_code, said["code"]


def test_every_route_but_two_needs_a_token(api: ServedApi) -> None:
    known = operations(api)
    assert len(known) > 15
    for method, path, _ in known:
        for proof in (
            {},
            {"authorization": "Bearer nothing"},
            {"authorization": "Basic YTpi"},
            {"authorization": f"Bearer {api.tokens['leaver']}"},
        ):
            answer = httpx.request(method, api.address + path, headers=proof)
            assert problem(answer) == (401, "identity_refused"), (method, path, proof)
            assert answer.headers["www-authenticate"] == "Bearer"
    for path in OPEN_PATHS:
        assert httpx.get(api.address + path).status_code == 200


def test_the_document_has_every_route(api: ServedApi) -> None:
    app = api_app(api.context, api.webserver)
    served = {
        (method, route.path) for route in app.routes for method in getattr(route, "methods", None) or ()
    }
    described = {
        (method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods
    }
    assert served - described == {("GET", "/openapi.json"), ("HEAD", "/openapi.json")}


@pytest.mark.parametrize("role", ROLES)
def test_each_role_reaches_the_routes_from_its_own_down(api: ServedApi, role: str) -> None:
    for method, path, lowest in operations(api):
        answer = api.ask(role, method, path.removeprefix("/api/v1"))
        if ROLES.index(role) < ROLES.index(lowest):  # pyright: ignore[reportArgumentType]
            assert problem(answer) == (403, "role_needed"), (method, path)
            assert f"accounts role {role} {lowest}" in answer.json()["detail"]
        else:
            assert answer.status_code in (200, 404, 422), (method, path, answer.text)


def test_errors_of_http_are_problems_too(api: ServedApi) -> None:
    assert problem(api.ask("admin", "GET", "/nothing")) == (404, "not_found")
    wrong = api.ask("admin", "PATCH", "/models")
    assert (problem(wrong), wrong.headers["allow"]) == ((405, "method_not_allowed"), "GET")
    assert problem(api.ask("operator", "POST", "/training-runs", {"model": 1})) == (422, "invalid_request")
    broken = httpx.post(
        f"{api.address}/api/v1/training-runs",
        content=b"{",
        headers={"authorization": f"Bearer {api.tokens['operator']}", "content-type": "application/json"},
    )
    assert problem(broken) == (422, "invalid_request")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":' + b"[" * 30_000,
        b'{"model": "store_demand", "partition": "\\ud800"}',
        b'{"model": "store_demand", "partition": "2024-01-08", "config": {"memory": NaN}}',
        b'{"model": "store_demand", "partition": "2024-01-08", "config": {"\\ud800": 1}}',
        b'{"model": "store_demand", "partition": "2024-01-08", "config": {"nodes": 1e999}}',
        b'{"model": "store_demand", "model": "tiny_text", "partition": "2024-01-08", "x": 1}',
        b"\xff\xfe",
        b"",
    ],
    ids=["deep", "surrogate", "nan", "surrogate-key", "infinity", "another-key", "bytes", "empty"],
)
def test_a_body_that_is_no_launch_is_refused(api: ServedApi, body: bytes) -> None:
    answer = httpx.post(
        f"{api.address}/api/v1/training-runs",
        content=body,
        headers={"authorization": f"Bearer {api.tokens['operator']}", "content-type": "application/json"},
        timeout=60,
    )
    status, code = problem(answer)
    assert status in (400, 422), answer.text
    assert code != "internal_error"


@pytest.mark.parametrize(
    "path",
    [
        "/models/..%2f..%2fledger.db/versions",
        "/models/%2e%2e/versions",
        "/models/a%00b/versions",
        "/models/a'%20or%20'1'='1/versions",
        "/models/" + "a" * 200 + "/versions",
        "/models/store_demand/versions/0",
        "/models/store_demand/versions/1_0",
        "/models/store_demand/versions/99999999999999999999",
        "/datasets/..%5c..%5cetc/partitions/2024-01-01",
        "/datasets/sales/partitions/..%2f",
        "/datasets/orders/versions?cursor=Li4vLi4",
        "/datasets/orders/versions?cursor=%F0%9F%92%A5",
        "/datasets/orders/versions?limit=1000000",
        "/experiments/store_demand/runs?filter=" + "(" * 400,
        "/experiments/store_demand/runs?filter=tags.`a'",
        "/experiments/store_demand/runs?cursor=Inh4Ig",
        "/experiments/store_demand/runs/..%2f..",
        "/training-runs/%27%20or%201/metrics",
        "/plan?model=../../etc&partition=../../passwd",
        "/plan?model=store_demand&partition=1999-01-01",
    ],
)
def test_wrong_names_are_refused_and_reach_nothing(api: ServedApi, path: str) -> None:
    status, code = problem(api.ask("admin", "GET", path))
    assert status in (404, 422), path
    assert code != "internal_error"


def test_a_large_body_is_refused_before_a_route_reads_it(api: ServedApi) -> None:
    body = {"model": "store_demand", "partition": "2024-01-08", "config": {"memory": "8" * MOST_BYTES}}
    assert problem(api.ask("operator", "POST", "/training-runs", body)) == (413, "too_large")
    connection = http.client.HTTPConnection(urlsplit(api.address).netloc, timeout=30)
    connection.request(
        "POST",
        "/api/v1/training-runs",
        iter([b"a" * 1000] * 100),
        {"authorization": f"Bearer {api.tokens['operator']}"},
        encode_chunked=True,
    )
    assert connection.getresponse().status == 413


def test_an_account_that_asks_too_often_waits_and_no_other_does(api: ServedApi) -> None:
    with serving_api(api.context, api.webserver) as address:
        head = {name: {"authorization": f"Bearer {api.tokens[name]}"} for name in ("viewer", "admin")}
        with httpx.Client() as client:
            statuses = [
                client.get(f"{address}/api/v1/models?limit=0", headers=head["viewer"]).status_code
                for _ in range(OF_ACCOUNT[1] * 2)
            ]
            assert set(statuses) == {422, 429}
            assert statuses[:50] == [422] * 50
            refused = client.get(f"{address}/api/v1/models?limit=0", headers=head["viewer"])
            if refused.status_code == 429:
                assert problem(refused) == (429, "too_many_requests")
                assert refused.headers["retry-after"] == "1"
            assert client.get(f"{address}/api/v1/models?limit=0", headers=head["admin"]).status_code == 422


def test_an_answer_that_takes_too_long_is_given_up(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "ANSWER_SECONDS", 0.0001)
    assert problem(api.ask("viewer", "GET", "/plan?model=store_demand")) == (504, "too_slow")


def test_the_openapi_document_has_examples_and_problems(api: ServedApi) -> None:
    document = httpx.get(f"{api.address}/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path in OPEN_PATHS:
                continue
            assert operation["security"] == [{"token": []}]
            assert MEDIA_TYPE in operation["responses"]["422"]["content"], (method, path)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    assert parameter["schema"]["examples"], (method, path)
    for name in ("LaunchRequest", "TrainingRequest", "StageRequest"):
        assert document["components"]["schemas"][name]["examples"]


def test_the_page_lists_each_route_with_its_role(api: ServedApi) -> None:
    """docs/how-to/api.md has the table for people."""
    rows = re.findall(
        r"^\| (viewer|operator|approver) \| (.*) \|$", (ROOT / "docs/how-to/api.md").read_text(), re.MULTILINE
    )
    told = {(role, route) for role, routes in rows for route in re.findall(r"`([A-Z]+ /\S+)`", routes)}
    document = httpx.get(f"{api.address}/openapi.json").json()
    assert told == {
        (operation[ROLE], f"{method.upper()} {path.removeprefix('/api/v1')}")
        for path, methods in document["paths"].items()
        if path not in OPEN_PATHS
        for method, operation in methods.items()
    }
