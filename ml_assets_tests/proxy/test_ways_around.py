"""Ways around the proxy: other spellings, other senders, other headers, other sites."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ml_assets.extras.governance import sessions
from ml_assets.extras.governance.proxy import webserver, websockets
from ml_assets_tests.proxy.conftest import GuardedDagster, serving_proxy
from ml_assets_tests.proxy.test_roles import launch, message

PAUSE = "mutation { setAutoMaterializePaused(paused: true) }"
PAUSED = "{ autoMaterializePaused }"
REPORT = "/report_asset_materialization/departures"


@pytest.fixture(autouse=True)
def nothing_was_paused(guarded: GuardedDagster) -> Iterator[None]:
    """A way around would pause the automation, or report an asset."""
    before = state(guarded)
    yield
    assert state(guarded) == before


def state(guarded: GuardedDagster) -> object:
    query = '{ instance { autoMaterializePaused } assetNodeOrError(assetKey: {path: "departures"}) { ... on AssetNode '
    query += "{ assetMaterializations(limit: 100) { timestamp } } } }"
    answer = httpx.post(f"{guarded.webserver}/graphql", json={"query": query}, timeout=60).json()
    assert "errors" not in answer, answer
    return answer["data"]


def raw(guarded: GuardedDagster, method: str, target: str, body: str = "", **headers: str) -> tuple[int, str]:
    """Send a request with exactly this target as viewer; return status and text of the answer."""
    connection = http.client.HTTPConnection(urlsplit(guarded.address).netloc, timeout=30)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, target, body.encode() or None, guarded.proof("viewer") | sent)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


@pytest.mark.parametrize(
    "target",
    [
        "/graphql", "//graphql", "/graphql/", "/%67raphql", "/./graphql", "/x/../graphql", "/x/%2e%2e/graphql",
        "/GraphQL", "/graphql;x", "/graphql%00", "/%2fgraphql", "/\\graphql", "/graphql?x=1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "PUT", "GET", "PATCH", "OPTIONS"])
def test_no_spelling_of_a_path_carries_a_mutation(guarded: GuardedDagster, target: str, method: str) -> None:
    body = json.dumps({"query": PAUSE})
    status, text = raw(guarded, method, target, body, Content_Type="application/json")
    answered = status == 200 and '"setAutoMaterializePaused"' in text
    assert not answered, text
    asked = target + ("&" if "?" in target else "?") + f"query={quote(PAUSE)}"
    for accept in ("*/*", "text/html"):
        _, text = raw(guarded, method, asked, "", Content_Type="text/plain", Accept=accept)
        assert '"setAutoMaterializePaused":' not in text


@pytest.mark.parametrize(
    "target",
    [
        REPORT, f"/{REPORT}", f"/.{REPORT}", f"/x/..{REPORT}", REPORT.replace("/r", "/%72"), REPORT.upper(),
        "/report_asset_materialization%2Fdepartures", "/report_asset_materialization", REPORT + "/",
        "/report_asset_materialization/?asset_key=departures", "/graphql/../report_asset_check/departures",
        f"/x%2f..{REPORT}", f"{REPORT}%0d%0a",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_reports_an_asset(guarded: GuardedDagster, target: str) -> None:
    status, text = raw(guarded, "POST", target, '{"partition": "monday"}', Content_Type="application/json")
    assert status in (400, 403, 405), text


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", json.dumps([{"query": PAUSE}])),
        ("application/json", json.dumps([{"query": "{ version }"}, {"query": PAUSE}])),
        ("application/json", f'{{"query": "{{ version }}", "query": "{PAUSE}"}}'),
        ("application/json; charset=utf-7", json.dumps({"query": PAUSE})),
        ("application/graphql", PAUSE),
        ("text/plain", json.dumps({"query": PAUSE})),
        ("text/plain; application/json", json.dumps({"query": PAUSE})),
        ("application/json", json.dumps({"query": "{ version }" + PAUSE, "operationName": ""})),
        ("application/json", json.dumps({"query": f"query A {{ version }} {PAUSE.replace('n {', 'n B {')}",
                                         "operationName": "B"})),
        ("multipart/form-data; boundary=x", '--x\r\nContent-Disposition: form-data; name="operations"\r\n\r\n'
         f'{{"query": "{PAUSE}"}}\r\n--x--'),
        ("application/x-www-form-urlencoded", f"query={quote(PAUSE)}"),
    ],
)  # fmt: skip
def test_no_form_of_a_body_carries_a_mutation(guarded: GuardedDagster, kind: str, body: str) -> None:
    for target in ("/graphql", f"/graphql?query={quote(PAUSE)}"):
        status, text = raw(guarded, "POST", target, body, Content_Type=kind)
        assert "errors" in json.loads(text), (status, text)


def test_bodies_have_bounds(guarded: GuardedDagster) -> None:
    large = json.dumps({"query": "{ version }", "variables": {"x": "y" * 5_000_000}})
    assert raw(guarded, "POST", "/graphql", large, Content_Type="application/json")[0] == 413
    many = json.dumps({"query": "{ version }" * 20_000})
    assert raw(guarded, "POST", "/graphql", many, Content_Type="application/json")[0] == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-User": "admin"},
        {"X-Forwarded-Email": "admin"},
        {"X-Auth-Request-User": "admin"},
        {"X-Forwarded-Access-Token": "admin"},
        {"Remote-User": "admin"},
        {"Dagster-User": "admin"},
        {"Authorization": "Basic YWRtaW46"},
        {"Authorization": "Bearer admin"},
        {"Authorization": "Bearer"},
        {"Authorization": "bearer a.b.c"},
        {"Cookie": "ml_assets_proxy=admin"},
    ],
)
def test_a_header_with_a_name_proves_nobody(guarded: GuardedDagster, headers: dict[str, str]) -> None:
    answer = httpx.post(f"{guarded.address}/graphql", json={"query": "{ version }"}, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["errors"]
    assert httpx.get(f"{guarded.address}/server_info", headers=headers).status_code == 401


def test_a_wrong_proof_is_not_replaced_by_a_session(guarded: GuardedDagster) -> None:
    with guarded.signed_in("admin") as browser:
        answer = browser.post("/graphql", json={"query": PAUSED}, headers={"authorization": "Bearer nobody"})
    assert answer.status_code == 401


class _Echo(BaseHTTPRequestHandler):
    heard: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        self.heard.append((self.path, {k.lower(): v for k, v in self.headers.items()}, self.rfile.read(size)))
        self.send_response(200)
        self.send_header("Set-Cookie", "webserver=1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def echo(guarded: GuardedDagster) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """The proxy in front of a server that keeps what it hears; yields the address and the requests."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _Echo.heard.clear()
    with serving_proxy(guarded.ledger, f"http://127.0.0.1:{server.server_port}") as address:
        yield address, _Echo.heard
    server.shutdown()


def test_the_webserver_hears_only_what_was_checked(
    guarded: GuardedDagster, echo: tuple[str, list[tuple[str, dict[str, str], bytes]]]
) -> None:
    address, heard = echo
    sent = guarded.proof("viewer") | {
        "cookie": "a=b", "x-forwarded-user": "admin", "x-forwarded-for": "1.2.3.4", "content-type": "application/json",
        "x-http-method-override": "DELETE", "user-agent": "smuggler", "accept-encoding": "gzip",
    }  # fmt: skip
    twice = (
        b'{"query": "mutation { deleteRun }", "query": "{ version }", "extensions": {"persistedQuery": 1}}'
    )
    answer = httpx.post(f"{address}/graphql?query=x", content=twice, headers=sent)
    assert (answer.status_code, answer.headers.get("set-cookie")) == (200, None)
    httpx.get(f"{address}/runs/a%20b?x=1", headers=sent)
    (first, headers, body), (second, others, _) = heard
    assert (first, second) == ("/graphql", "/runs/a%20b?x=1")
    assert json.loads(body) == {"query": "{ version }", "variables": {}, "operationName": None}
    allowed = {"host", "content-length", "content-type", "accept", "accept-encoding", "user-agent"}
    assert (headers.keys() | others.keys()) - allowed == set()
    assert "smuggler" not in str(heard)


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Content-Length: 5\r\nContent-Length: 50\r\n",
    ],
)
def test_a_second_request_in_a_body_is_not_sent_on(
    guarded: GuardedDagster, echo: tuple[str, list[tuple[str, dict[str, str], bytes]]], head: str
) -> None:
    address, heard = echo
    host = urlsplit(address).netloc
    proof = f"Authorization: {guarded.proof('viewer')['authorization']}\r\n"
    inner = f"POST {REPORT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\n{{}}"
    with socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), timeout=10) as connection:
        request = (
            f"POST /graphql HTTP/1.1\r\nHost: {host}\r\n{proof}{head}Content-Type: application/json\r\n\r\n"
        )
        connection.sendall(f"{request}0\r\n\r\n{inner}".encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
    assert [path for path, _, _ in heard if "report" in path] == []


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1"]
)
def test_another_site_cannot_use_a_session(guarded: GuardedDagster, origin: str | None) -> None:
    with guarded.signed_in("admin") as browser:
        del browser.headers["origin"]
        sent = {"origin": origin} if origin else {}
        answer = browser.post("/graphql", json={"query": PAUSE}, headers=sent)
        assert "another site" in message(answer.json())
        assert browser.post(REPORT, json={}, headers=sent).status_code == 403
        signed = browser.post("/-/sign-in", data={"proof": guarded.tokens["admin"]}, headers=sent)
        assert (signed.status_code, "another site" in signed.text) == (403, True)


def test_another_site_cannot_use_a_proxy_that_proves(guarded: GuardedDagster) -> None:
    """An OIDC proxy adds `Authorization` to whatever a browser sends."""
    headers = guarded.proof("admin") | {"origin": "http://evil.example"}
    answer = httpx.post(f"{guarded.address}/graphql", json={"query": PAUSE}, headers=headers)
    assert "another site" in message(answer.json())
    headers = guarded.proof("admin") | {"sec-fetch-site": "cross-site"}
    assert "another site" in message(
        httpx.post(f"{guarded.address}/graphql", json={"query": PAUSE}, headers=headers).json()
    )


def test_another_name_does_not_lead_here(guarded: GuardedDagster) -> None:
    """A name that an attacker points to this address would be of the attacker's site."""
    answer = httpx.get(f"{guarded.address}/-/sign-in", headers={"host": "evil.example"})
    assert answer.status_code == 400


def test_the_cookie_of_a_session_is_for_the_browser_alone(guarded: GuardedDagster) -> None:
    answer = httpx.post(
        f"{guarded.address}/-/sign-in",
        data={"proof": guarded.tokens["viewer"], "to": "//evil.example"},
        headers={"origin": guarded.address},
    )
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert answer.headers["location"] == "/"


def test_a_session_ends_by_itself_and_by_hand(
    guarded: GuardedDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded.signed_in("viewer") as browser:
        assert browser.post("/graphql", json={"query": "{ version }"}).status_code == 200
        monkeypatch.setattr(sessions, "SESSION_SECONDS", 0)
        assert browser.post("/graphql", json={"query": "{ version }"}).status_code == 401
        page = browser.get("/runs/x?y=1", headers={"accept": "text/html"})
        assert page.headers["location"] == "/-/sign-in?to=%2Fruns%2Fx%3Fy%3D1"
        monkeypatch.undo()
        form = browser.get("/-/").text.partition('name="form_token" value="')[2].partition('"')[0]
        assert browser.post("/-/sign-out", data={"form_token": "x"}).headers["location"] == "/-/"
        assert browser.post("/-/sign-out", content="x" * 100_000).status_code == 413
        assert browser.post("/-/sign-out", content=b"\xff").status_code == 400
        assert browser.post("/-/sign-out", data={"form_token": form}).headers["location"] == "/-/sign-in"
        assert browser.post("/graphql", json={"query": "{ version }"}).status_code == 401


def test_a_role_and_a_revoked_account_count_at_once(guarded: GuardedDagster) -> None:
    accounts = guarded.ledger.accounts
    asked = launch(["none-such"])
    with guarded.signed_in("leaver") as browser:
        assert "needs the role operator" in message(guarded.post("leaver", *asked))
        accounts.set_role("leaver", "operator", guarded.root, reason="test")
        assert "errors" not in guarded.post("leaver", *asked)
        accounts.revoke("leaver", guarded.root, reason="left")
        assert "revoked" in message(guarded.post("leaver", *asked))
        body = {"query": asked[0], "variables": asked[1]}
        assert browser.post("/graphql", json=body).status_code == 401


# --- websockets ---

SUBSCRIPTION = (
    'subscription { pipelineRunLogs(runId: "RUN") { __typename ... on PipelineRunLogsSubscriptionSuccess '
)
SUBSCRIPTION += "{ messages { __typename } } } }"


def socket_of(guarded: GuardedDagster, name: str = "viewer", **headers: str) -> ClientConnection:
    sent = (guarded.proof(name) if name else {}) | headers
    address = guarded.address.replace("http", "ws") + "/graphql"
    return connect(address, additional_headers=sent, subprotocols=["graphql-ws"], proxy=None)  # pyright: ignore[reportArgumentType]


def test_live_logs_reach_a_viewer(guarded: GuardedDagster) -> None:
    run = guarded.post("operator", *launch(["departures"]))["data"]["launchRun"]["run"]["runId"]
    with socket_of(guarded) as opened:
        opened.send('{"type": "connection_init", "payload": {}}')
        assert json.loads(opened.recv(30)) == {"type": "connection_ack"}
        start = {"type": "start", "id": "7", "payload": {"query": SUBSCRIPTION.replace("RUN", run)}}
        opened.send(json.dumps(start))
        heard = json.loads(opened.recv(60))
        assert (heard["type"], heard["id"]) == ("data", "7")
        assert (
            heard["payload"]["data"]["pipelineRunLogs"]["__typename"] == "PipelineRunLogsSubscriptionSuccess"
        )


@pytest.mark.parametrize(
    "query",
    [PAUSE, f"{SUBSCRIPTION} {PAUSE}", "{ version }", "nonsense", PAUSE.replace("mutation", "subscription")],
)
def test_a_mutation_over_a_websocket_is_refused(guarded: GuardedDagster, query: str) -> None:
    with socket_of(guarded, "admin") as opened:
        opened.send('{"type": "connection_init"}')
        opened.recv(30)
        opened.send(json.dumps({"type": "start", "id": "1", "payload": {"query": query}}))
        assert json.loads(opened.recv(30))["type"] == "error"


@pytest.mark.parametrize("text", ["[]", "nonsense", "1", '{"type": "subscribe"}', '{"type": "start"}', "{}",
                                  '{"type": "start", "payload": []}', '{"type": ["start"], "id": {}}'])  # fmt: skip
def test_other_messages_of_a_websocket_are_refused(guarded: GuardedDagster, text: str) -> None:
    with socket_of(guarded) as opened:
        opened.send(text)
        assert json.loads(opened.recv(30))["type"] == "error"


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_another_site_cannot_open_a_websocket(guarded: GuardedDagster, origin: str) -> None:
    with guarded.signed_in("viewer") as browser:
        cookie = f"ml_assets_proxy={browser.cookies['ml_assets_proxy']}"
    for headers in ({"cookie": cookie, "origin": origin}, {"cookie": cookie}, {}):
        with pytest.raises(InvalidStatus):
            socket_of(guarded, "", **headers)
    with socket_of(guarded, "", cookie=cookie, origin=guarded.address) as opened:
        opened.send('{"type": "connection_init"}')
        assert json.loads(opened.recv(30)) == {"type": "connection_ack"}


def test_an_open_websocket_ends_with_the_account(
    guarded: GuardedDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets, "CHECK_SECONDS", 0.1)
    token = guarded.ledger.accounts.add_by_token("goer", guarded.root)
    with socket_of(guarded, "", Authorization=f"Bearer {token}") as opened:
        opened.send('{"type": "connection_init"}')
        opened.recv(30)
        guarded.ledger.accounts.revoke("goer", guarded.root, reason="left")
        with pytest.raises(ConnectionClosed):
            opened.recv(30)


def test_a_webserver_that_is_away_is_said_so(
    guarded: GuardedDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webserver, "CONNECT_SECONDS", 0.5)
    with serving_proxy(guarded.ledger, "http://127.0.0.1:9") as address:
        answer = httpx.post(
            f"{address}/graphql", json={"query": "{ version }"}, headers=guarded.proof("viewer")
        )
        assert answer.status_code == 502
        assert "is it running" in message(answer.json())
        page = httpx.get(f"{address}/runs", headers=guarded.proof("viewer") | {"accept": "text/html"})
        assert (page.status_code, "is it running" in page.text) == (502, True)


class _Forgetful(BaseHTTPRequestHandler):
    """Keeps connections alive, and closes each without an answer at its second request."""

    protocol_version = "HTTP/1.1"
    heard: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.heard.append(self.rfile.read(int(self.headers["content-length"])))
        if getattr(self, "is_known", False):
            self.close_connection = True
            return
        self.is_known = True
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_closed_connection_fails_no_read_and_repeats_no_mutation(guarded: GuardedDagster) -> None:
    """Pages showed a 502 when the webserver closed an idle connection just as a request came."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Forgetful)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _Forgetful.heard.clear()
    with serving_proxy(guarded.ledger, f"http://127.0.0.1:{server.server_port}") as address:

        def send(query: str) -> int:
            return httpx.post(
                f"{address}/graphql", json={"query": query}, headers=guarded.proof("admin"), timeout=60
            ).status_code

        assert [send("{ version }") for _ in range(4)] == [200] * 4
        assert [send("mutation { setNuxSeen }") for _ in range(3)] == [200] * 3
    server.shutdown()
    assert sum(b"setNuxSeen" in one for one in _Forgetful.heard) == 3
