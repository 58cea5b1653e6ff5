"""Callers who mean harm, and servers that are away: a refusal with a code, and nothing changed."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ml_assets.context import Context
from ml_assets.context.home import make_home
from ml_assets.extras.api import following, frame
from ml_assets.extras.api.frame import MOST_CHANGES
from ml_assets_tests.api.conftest import ServedApi, serving_api
from ml_assets_tests.api.test_following import following_run, steps_of, training
from ml_assets_tests.api.test_frame import NOBODY, operations, problem
from ml_assets_tests.api.test_launches import TABLE, TRAINING, state
from resources.ledger import Accounts, LedgerUnavailable
from resources.settings import Settings

PATIENCE = 150.0
EVIL = ("' OR 1=1 --", "../../etc/passwd", "a\x00b", "$(id)", "{{7*7}}", "x" * 5000, "\ud800", "café\u202e")


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers; it closes them at the end."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:
        opened: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    opened.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for one in opened:
                one.close()


def test_a_silent_webserver_holds_changes_and_no_reads(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.ask("viewer", "GET", "/plan?model=store_demand").status_code == 200  # loads the declarations
    monkeypatch.setattr(frame, "ANSWER_SECONDS", 10.0)
    before = state(api)
    with silent_server() as webserver, serving_api(api.context, webserver) as address:
        silent = ServedApi(address, "", api.context, api.tokens, api.root)

        def launch(_: int) -> httpx.Response:
            return silent.ask("operator", "POST", "/pipelines/runs", TABLE)

        with ThreadPoolExecutor(MOST_CHANGES) as threads:
            answers: list[httpx.Response] = []
            deadline = time.monotonic() + PATIENCE
            while not any(one.status_code == 503 for one in answers):
                assert time.monotonic() < deadline, {one.text for one in answers}
                answers = list(threads.map(launch, range(MOST_CHANGES)))
        assert {problem(one) for one in answers} <= {(504, "too_slow"), (503, "busy")}
        refused = silent.ask("admin", "POST", "/training-runs", TRAINING)
        assert (problem(refused), refused.headers["retry-after"]) == ((503, "busy"), "5")
        assert silent.ask("viewer", "GET", "/models").status_code == 200
    assert state(api) == before


def test_a_ledger_that_is_away_is_said_so_on_each_route(
    api: ServedApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can be asked who somebody is, so nobody is let in."""
    url = "postgresql://nobody:secret@127.0.0.1:9/ledger"
    settings = Settings(home=tmp_path / "home", ledger_url=url)  # pyright: ignore[reportArgumentType]
    make_home(settings)
    context = Context.open(settings, writes=True, patience_seconds=0.2)
    before = state(api)
    known = operations(api)
    with serving_api(context, api.webserver) as address:
        for method, path, _ in known:
            answer = httpx.request(
                method,
                address + path,
                headers={"authorization": f"Bearer {api.tokens['admin']}"},
                json={"stage": "archived", "reason": "r"} if method == "PUT" else None,
                timeout=60,
            )
            assert problem(answer) == (503, "ledger_unavailable"), (method, path)
            assert answer.headers["retry-after"] == "5"
            assert "secret" not in answer.text
        assert httpx.get(f"{address}/health").status_code == 200
    assert state(api) == before
    assert "Traceback" not in caplog.text


def test_a_stream_ends_without_a_word_if_the_ledger_goes_away(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client asks again, and then gets the reason."""
    monkeypatch.setattr(following, "POLL_SECONDS", 0.05)
    with training(api, 1) as made, following_run(api, made.run_id) as events:
        assert steps_of([next(events)]) == [1]

        def away(*_: Any, **__: Any) -> Any:
            raise LedgerUnavailable("the ledger does not answer: start it")

        monkeypatch.setattr(Accounts, "standings", away)
        assert next(events, None) is None
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_no_name_of_a_request_reaches_a_file_or_a_query(api: ServedApi, evil: str) -> None:
    before = state(api)
    words = {"model": evil, "partition": evil, "target": evil, "partitions": evil, "reason": evil}
    bodies = {
        "/pipelines/runs": ("target", "partitions"),
        "/training-runs": ("model", "partition"),
        "/hpo/studies": ("model",),
    }
    for path, names in bodies.items():
        for name in names:
            good = {"target": "datasets/sales", "partitions": "2024-01-01", "model": "store_demand"}
            body = {one: good.get(one, "2024-01-08") for one in names} | {name: words[name]}
            answer = _posted(api, path, body)
            assert answer.status_code in (400, 404, 409, 422), (path, name, answer.text)
            assert problem(answer)[1] != "internal_error"
        config = dict.fromkeys(names, "2024-01-08") | {"config": {evil: evil}}
        assert _posted(api, path, config).status_code in (400, 404, 409, 422)
    stage = {"stage": "production", "reason": "r"}
    for name in ("stage", "reason"):
        answer = _posted(api, "/models/nothing/versions/1/stage", stage | {name: evil}, "PUT", "approver")
        assert answer.status_code in (400, 404, 409, 422), answer.text
    assert state(api) == before


def _posted(
    api: ServedApi, path: str, body: dict[str, Any], method: str = "POST", name: str = "operator"
) -> httpx.Response:
    return httpx.request(
        method,
        f"{api.address}/api/v1{path}",
        content=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {api.tokens[name]}", "content-type": "application/json"},
        timeout=60,
    )


@pytest.mark.parametrize(
    "key", ["", " ", "a b", "é".encode().decode("latin-1"), "k" * 201, "\t", "a\x7f"], ids=range(7)
)
def test_a_key_that_is_no_key_launches_nothing(api: ServedApi, key: str) -> None:
    before = state(api)
    for path, body in (("/pipelines/runs", TABLE), ("/training-runs", TRAINING)):
        try:
            answer = api.ask("operator", "POST", path, body, **{"idempotency-key": key})
        except (httpx.LocalProtocolError, UnicodeEncodeError):
            return
        assert answer.status_code in (400, 422), answer.text
    restore = f"/training-runs/{NOBODY}/checkpoints/1/restore"
    assert api.ask("operator", "POST", restore, **{"idempotency-key": key}).status_code in (400, 422)
    assert state(api) == before


def test_one_key_means_one_request_over_all_routes(api: ServedApi) -> None:
    first = api.ask("operator", "POST", "/training-runs", TRAINING, **{"idempotency-key": "all"})
    assert first.status_code == 202
    before = state(api)
    others: list[tuple[str, Any]] = [
        ("/pipelines/runs", TABLE),
        ("/hpo/studies", {"model": "flight_delay"}),
        (f"/training-runs/{first.json()['id']}/checkpoints/1/restore", None),
    ]
    for path, body in others:
        answer = api.ask("operator", "POST", path, body, **{"idempotency-key": "all"})
        assert problem(answer) == (409, "idempotency_key_reused"), path
    assert state(api) == before


def test_a_token_in_a_wrong_place_proves_nothing(api: ServedApi) -> None:
    token, url = api.tokens["admin"], f"{api.address}/api/v1/models"
    tried: list[dict[str, Any]] = [
        {"params": {"access_token": token}},
        {"cookies": {"authorization": f"Bearer {token}"}},
        {"headers": {"x-forwarded-user": "admin"}},
        {"headers": {"authorization": token}},
        {"headers": {"authorization": f"Bearer {token}x"}},
        {"headers": {"authorization": f"Bearer {token.upper()}"}},
        {"headers": {"authorization": f"Bearer {token[:-1]}"}},
        {"auth": ("admin", token)},
    ]
    for more in tried:
        assert problem(httpx.get(url, **more)) == (401, "identity_refused"), more


def test_another_method_cannot_be_smuggled_in(api: ServedApi) -> None:
    before = state(api)
    answer = api.ask("viewer", "GET", "/pipelines/runs/" + NOBODY, **{"x-http-method-override": "DELETE"})
    assert problem(answer) == (404, "not_found")
    answer = api.ask("viewer", "POST", "/models", TABLE)
    assert problem(answer) == (405, "method_not_allowed")
    assert state(api) == before
