"""Application of the proxy: sign-in, the check of each request, and the way to Dagster's webserver and back.

A request reaches the webserver only as the proxy writes it anew, without the browser's cookies and `Authorization`. The
webserver itself must answer nobody else. Launches are recorded in the ledger by the ids of the webserver's answer.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from ml_assets.extras.governance.counted_requests import REFUSED, CountedRequests
from ml_assets.extras.governance.proxy import websockets
from ml_assets.extras.governance.proxy.documents import (
    MOST_BYTES,
    AskedDocument,
    read_json,
    read_request,
)
from ml_assets.extras.governance.proxy.persons import PageVisitor, Persons
from ml_assets.extras.governance.proxy.rules import MUTATIONS, PATHS, may
from ml_assets.extras.governance.proxy.webserver import GuardedWebserver, role_in_words
from ml_assets.extras.governance.sessions import PageRefused, Session, Sessions, read_body, read_form
from ml_assets.foundation.reports.page import rendered
from resources.ledger import IdentityRefused, Ledger, LedgerError
from resources.web.bounded_uvicorn import serve_until_stopped
from resources.web.request_counts import RequestCounts

COOKIE = "ml_assets_proxy"
OWN = "/-"
"""Path below which the proxy answers itself."""
MOST_REPORT_BYTES = 1_000_000
CHUNK = 65_536
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_UPWARDS = ("accept", "accept-language", "content-type", "if-modified-since", "if-none-match", "range")
"""Headers of a request that the webserver gets. None of them names a person."""
_NOT_DOWNWARDS = {
    "connection", "content-length", "date", "keep-alive", "proxy-authenticate", "server", "set-cookie", "trailer",
    "transfer-encoding", "upgrade",
}  # fmt: skip
_CANONICAL = re.compile(r"/|(/(?!\.{1,2}(/|$))[^/\\\x00-\x1f\x7f]+)+/?")
"""Paths with one spelling: no empty part, no `.` or `..`, no backslash or control character."""


@dataclass
class _Here:
    """Person who sent a request, and the way of the proof."""

    visitor: PageVisitor
    session: Session | None
    """Session of the cookie; None for a proof in `Authorization`."""


class DagsterProxy:
    def __init__(self, ledger: Ledger, webserver: str, address: str) -> None:
        """Guard the webserver at `webserver`; browsers reach the proxy at `address`, and only pages of it may write."""
        self._persons = Persons(ledger.accounts)
        self._origin = "{0.scheme}://{0.netloc}".format(urlsplit(address))
        self._sessions = Sessions()
        parts = urlsplit(webserver)
        self._webserver = GuardedWebserver(ledger, webserver)
        self._websocket = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}/graphql"

    def routes(self) -> list[Route | WebSocketRoute]:
        every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        return [
            Route(f"{OWN}/health", _health),
            Route(f"{OWN}/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route(f"{OWN}/sign-out", self._sign_out, methods=["POST"]),
            Route(f"{OWN}/", self._own_page),
            WebSocketRoute("/graphql", self._subscriptions),
            Route("/graphql", self._graphql, methods=["GET", "POST"]),
            Route("/{path:path}", self._other, methods=every),
        ]

    # --- who asks ---

    async def _here(self, of: HTTPConnection, *, at_once: bool = False) -> _Here | None:
        """Return who sent a request; None without a session in force. Raise `IdentityRefused` for a wrong proof."""
        scheme, _, proof = of.headers.get("authorization", "").partition(" ")
        if scheme:
            if scheme.casefold() != "bearer":
                raise IdentityRefused(
                    "the proxy knows only `Authorization: Bearer` with a token or an ID token"
                )
            person, session = await run_in_threadpool(self._persons.of_proof, proof), None
        else:
            session = self._sessions.of(of.cookies.get(COOKIE, ""))
            if session is None:
                return None
            person = session.person
        visitor = await run_in_threadpool(self._persons.visitor, person, at_once=at_once)
        if visitor is None and session is None:
            raise IdentityRefused(
                f"the account of {person.name} was revoked: an administrator can add a new one"
            )
        return _Here(visitor, session) if visitor is not None else None

    async def _required(self, of: HTTPConnection, *, at_once: bool = False) -> _Here:
        try:
            here = await self._here(of, at_once=at_once)
        except IdentityRefused as refused:
            raise PageRefused(401, str(refused)) from None
        if here is None:
            raise PageRefused(401, f"you are not signed in any more: open {self._origin}{OWN}/sign-in")
        return here

    def _require_own_page(self, of: HTTPConnection, here: _Here | None) -> None:
        """Raise `PageRefused` for a request that a page of another site made a browser send.

        A browser names the site with each POST and each websocket. A proof in `Authorization` may come from a program,
        which names none, or from a proxy that adds it to what a browser sends.
        """
        origin, site = of.headers.get("origin"), of.headers.get("sec-fetch-site", "same-origin")
        is_own = origin == self._origin or (origin is None and here is not None and here.session is None)
        if not is_own or site not in ("same-origin", "none"):
            raise PageRefused(403, f"a page of another site sent this: only pages of {self._origin} may")

    # --- own pages ---

    async def _sign_in(self, request: Request) -> Response:
        to = request.query_params.get("to", "")
        if request.method == "GET":
            return _html("sign_in.html.j2", 200, wrong="", to=_own_path(to))
        try:
            if request.headers.get("origin") != self._origin:
                raise PageRefused(403, "a page of another site sent this form")
            form = await read_form(request)
            to = form.get("to", "")
            person = await run_in_threadpool(self._persons.of_proof, form.get("proof", "").strip())
        except (PageRefused, LedgerError) as refused:
            status = 403 if isinstance(refused, IdentityRefused) else _status_of(refused)
            return _html("sign_in.html.j2", status, wrong=str(refused), to=_own_path(to))
        secret, _ = self._sessions.begin(person)
        answer = RedirectResponse(_own_path(to), 303, HEADERS)
        # Lax: a link to a run in a message opens it, but no form of another site has the cookie.
        is_secure = self._origin.startswith("https")
        answer.set_cookie(COOKIE, secret, httponly=True, samesite="lax", secure=is_secure)
        return answer

    async def _sign_out(self, request: Request) -> Response:
        session = self._sessions.of(request.cookies.get(COOKIE, ""))
        try:
            form = await read_form(request)
        except PageRefused as refused:
            return _refusal(request, refused)
        if session is None or not session.fits(form.get("form_token", "")):
            return RedirectResponse(f"{OWN}/", 303, HEADERS)
        self._sessions.end(request.cookies[COOKIE])
        return RedirectResponse(f"{OWN}/sign-in", 303, HEADERS)

    async def _own_page(self, request: Request) -> Response:
        try:
            here = await self._here(request, at_once=True)
        except IdentityRefused as refused:
            return _refusal(request, PageRefused(401, str(refused)))
        except LedgerError as refused:
            return _refusal(request, refused)
        if here is None:
            return _to_sign_in(request)
        known = {name: may(here.visitor.standing.role, rule.role) for name, rule in MUTATIONS.items()}
        return _html(
            "visitor.html.j2",
            200,
            visitor=here.visitor,
            form_token=here.session.form_token if here.session else "",
            allowed=[name for name, is_allowed in known.items() if is_allowed],
            refused=[name for name, is_allowed in known.items() if not is_allowed],
        )

    # --- GraphQL ---

    async def _graphql(self, request: Request) -> Response:
        wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if wants_page and "query" not in request.query_params:
            return await self._other(request)
        try:
            here = await self._required(request)
            document = await self._document(request, here)
            if document.mutations:
                here = await self._required(request, at_once=True)
                try:
                    for one in document.mutations:
                        await run_in_threadpool(self._webserver.require_allowed, one, here.visitor)
                except PageRefused as refused:
                    request.scope[REFUSED] = refused.status
                    return _refused_mutations(document, refused, is_page="origin" in request.headers)
            elif document.kinds != {"query"}:
                raise PageRefused(
                    400, "by POST go queries and mutations; a subscription goes over a websocket"
                )
            return await run_in_threadpool(self._execute, document, here.visitor)
        except (PageRefused, LedgerError) as refused:
            request.scope[REFUSED] = _status_of(refused)
            return _as_graphql(refused)

    async def _document(self, request: Request, here: _Here) -> AskedDocument:
        """Return the document of a request. A GET only reads: a link of another site can make a browser send it."""
        if request.method == "GET":
            document = await run_in_threadpool(read_request, dict(request.query_params))
            if document.kinds != {"query"}:
                raise PageRefused(405, "a GET only reads: send a mutation by POST")
            return document
        self._require_own_page(request, here)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
        body = await read_body(request, MOST_BYTES, "a request of GraphQL")
        if kind == "application/json":
            return await run_in_threadpool(lambda: read_request(read_json(body)))
        if kind == "application/graphql":
            return await run_in_threadpool(read_request, {"query": body.decode(errors="replace")})
        raise PageRefused(415, "GraphQL comes as application/json or application/graphql, without files")

    def _execute(self, document: AskedDocument, visitor: PageVisitor) -> Response:
        """Send a checked document to the webserver; record what it launched under the person."""
        if document.launches:
            status, content = self._webserver.launch(document, visitor)
            return JSONResponse(content, status)
        kind = {"content-type": "application/json"}
        return self._forward("POST", "/graphql", kind, document.as_json(), is_read=not document.mutations)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Wait at the end for launches in flight."""
        yield
        await asyncio.to_thread(self._webserver.wait_for_launches)

    async def _subscriptions(self, browser: WebSocket) -> None:
        try:
            here = await self._required(browser)
            self._require_own_page(browser, here)
        except (PageRefused, LedgerError):
            await browser.close(1008)
            return

        async def is_still_here() -> bool:
            try:
                return await self._here(browser) is not None
            except (IdentityRefused, LedgerError):
                return False

        await websockets.connect(browser, self._websocket, is_still_here)

    # --- other paths ---

    async def _other(self, request: Request) -> Response:
        try:
            here = await self._here(request, at_once=request.method == "POST")
            if here is None:
                if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
                    return _to_sign_in(request)
                raise PageRefused(401, f"sign in: {self._origin}{OWN}/sign-in")
            path = _path(request)
            _require_path(request.method, path, here.visitor)
            body = None
            if request.method == "POST":
                self._require_own_page(request, here)
                body = await read_body(request, MOST_REPORT_BYTES, "a report about an asset")
            sent = {name: request.headers[name] for name in _UPWARDS if name in request.headers}
            query = f"?{request.url.query}" if request.url.query else ""
            is_read = request.method != "POST"
            return await run_in_threadpool(
                self._forward, request.method, quote(path) + query, sent, body, is_read
            )
        except IdentityRefused as refused:
            return _refusal(request, PageRefused(401, str(refused)))
        except (PageRefused, LedgerError) as refused:
            return _refusal(request, refused)

    def _forward(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, is_read: bool
    ) -> Response:
        """Return the webserver's answer, in parts as they come."""
        answer = self._webserver.sent(method, target, headers, body, is_read=is_read)
        sent = {
            name: value for name, value in answer.headers.items() if name.casefold() not in _NOT_DOWNWARDS
        }
        sent.setdefault("X-Frame-Options", "SAMEORIGIN")
        return StreamingResponse(_parts(answer), answer.status, sent)


def _parts(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    try:
        yield from answer.stream(CHUNK, decode_content=False)
    finally:
        answer.close()  # after the last part, the connection is back in the pool already


def proxy_app(ledger: Ledger, webserver: str, address: str) -> Starlette:
    """Return the application. Requests to another host than that of `address` get nothing but the counts."""
    host, proxy = urlsplit(address).hostname or "", DagsterProxy(ledger, webserver, address)
    routes = proxy.routes()
    counts = RequestCounts(
        requests="ml_assets_proxy_requests_total", seconds="ml_assets_proxy_request_seconds"
    )
    return Starlette(
        routes=routes,
        lifespan=proxy.lifespan,
        middleware=[
            Middleware(CountedRequests, counts, f"{OWN}/metrics", routes, ledger.accounts),
            Middleware(TrustedHostMiddleware, allowed_hosts=[host], www_redirect=False),
        ],
    )


def serve(app: Starlette, host: str, port: int) -> None:
    """Serve `app` until Ctrl-C or SIGTERM. Requests that then last are cut off, but launches are recorded."""
    serve_until_stopped(app, host, port, ws_max_size=MOST_BYTES)


def _path(request: Request) -> str:
    """Return the path of a request, decoded once. Raise `PageRefused` for a path with another spelling.

    What the webserver gets is this text, encoded again: both sides see the same path.
    """
    path: str = request.scope["path"]
    if not _CANONICAL.fullmatch(path):
        raise PageRefused(400, "a path has no empty part, no `.` or `..`, and no backslash")
    return path


def _require_path(method: str, path: str, visitor: PageVisitor) -> None:
    """Raise `PageRefused` if the person may not send a request to a path beside GraphQL."""
    first = path.split("/")[1].casefold()
    rule, standing = PATHS.get(first), visitor.standing
    if rule is None:
        if method not in ("GET", "HEAD"):
            raise PageRefused(405, f"the proxy knows no path /{first} to which a {method} may go")
        return
    if method != rule.method and not (method == "HEAD" and rule.method == "GET"):
        raise PageRefused(405, f"/{first} takes a {rule.method}")
    if not may(standing.role, rule.role):
        raise PageRefused(
            403,
            f"/{first} needs the role {rule.role}, and {role_in_words(visitor)}",
        )
    if standing.groups:
        raise PageRefused(403, f"/{first} is not for a role that is limited to groups of assets")


def _as_graphql(refused: Exception) -> Response:
    """Return a refusal as an error of GraphQL, which Dagster's pages show in their own way."""
    status = _status_of(refused)
    return JSONResponse(
        {"data": None, "errors": [{"message": str(refused)}]}, 200 if status == 403 else status
    )


def _refused_mutations(document: AskedDocument, refused: PageRefused, *, is_page: bool) -> Response:
    """Return the refusal of mutations. A page gets it as the webserver's own error of each mutation.

    Dagster's pages show that in a dialog at once. An error of GraphQL is to them a fault to be reported to Dagster.
    """
    if not is_page or not all(one.may_fail for one in document.mutations):
        return _as_graphql(refused)
    error: Any = {
        "__typename": "PythonError",
        "message": str(refused),
        "stack": [],
        "errorChain": [],
        "causes": [],
        "className": None,
        "cause": None,
    }
    return JSONResponse({"data": {one.key: error for one in document.mutations}})


def _status_of(refused: Exception) -> int:
    return refused.status if isinstance(refused, PageRefused) else 503


def _refusal(request: Request, refused: Exception) -> Response:
    status = _status_of(refused)
    if "text/html" in request.headers.get("accept", ""):
        return _html("refused.html.j2", status, text=str(refused))
    return JSONResponse({"error": str(refused)}, status, HEADERS)


def _to_sign_in(request: Request) -> Response:
    """Lead to the sign-in, and from there back to the page that was asked for."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{OWN}/sign-in?to={quote(request.url.path + query, safe='')}", 303, HEADERS)


def _own_path(to: str) -> str:
    """Return `to` if it is a path of this server, otherwise that of the first page."""
    path, separator, query = to.partition("?")
    return quote(path) + separator + quote(query, safe="=&%+") if _CANONICAL.fullmatch(path) else "/"


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok")


def _html(template: str, status: int, **facts: Any) -> HTMLResponse:
    return HTMLResponse(rendered("ml_assets.extras.governance.proxy", template, {}, **facts), status, HEADERS)
