"""Counts of the requests to a server of pages, and their page for Prometheus.

Not here: the numbers (`resources.web.request_counts`), and the metrics of the API, whose routes count themselves.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resources.acting import proved_person
from resources.ledger import Account, Accounts, IdentityRefused, LedgerError
from resources.web.request_counts import MEDIA_TYPE, OTHER, RequestCounts

log = logging.getLogger(__name__)

REFUSED = "ml_assets.refused"
"""Key of a request's scope: status of a refusal that a page gets with status 200."""

KEPT_SECONDS = 5.0
"""Time for which the accounts, or the failure to read them, are kept: whoever asks, the ledger is read this often."""
_WAIT_SECONDS = 2.0
"""Wait for a ledger whose accounts were read before. A Prometheus waits ten seconds for the counts."""


class RecentAccounts(Accounts):
    """Accounts as read moments ago. If the ledger does not answer, those read last: then the counts matter most."""

    def __init__(self, accounts: Accounts, kept_seconds: float = KEPT_SECONDS) -> None:
        self._accounts, self._kept_seconds = accounts, kept_seconds
        self._lock, self._pool = threading.Lock(), ThreadPoolExecutor(1)
        self._reading: Future[list[Account]] | None = None
        self._due = 0.0
        self._known: list[Account] | None = None

    def all(self) -> list[Account]:
        """Return all accounts. Raise `LedgerError` if they were never read."""
        with self._lock:
            now = time.monotonic()
            if self._reading is None or (self._reading.done() and now >= self._due):
                self._reading, self._due = self._pool.submit(self._accounts.all), now + self._kept_seconds
            reading = self._reading
        try:
            self._known = reading.result(None if self._known is None else _WAIT_SECONDS)
        except (LedgerError, TimeoutError):
            if self._known is None:
                raise
        return self._known


class CountedRequests:
    """Outermost middleware: counts each request by the path of its route, and answers `path` with the counts.

    A Prometheus names a pod by its address, so the counts are given at any host, for the token of an account alone.
    """

    def __init__(
        self, app: ASGIApp, counts: RequestCounts, path: str, routes: Sequence[BaseRoute], accounts: Accounts
    ) -> None:
        self._app, self._counts, self._path = app, counts, path
        self._accounts = RecentAccounts(accounts)
        self._routes = [one for one in routes if isinstance(one, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()

        def count(status: int) -> None:
            self._counts.answered(
                scope["method"], self._route(scope), scope.get(REFUSED, status), time.monotonic() - began
            )

        is_counted = False

        async def counted(message: Message) -> None:
            nonlocal is_counted
            if message["type"] == "http.response.start":
                is_counted = True
                count(message["status"])
            await send(message)

        try:
            if scope["path"] == self._path:
                answer = await run_in_threadpool(self._page, Request(scope))
                await answer(scope, receive, counted)
            else:
                await self._app(scope, receive, counted)
        except Exception:
            if not is_counted:
                count(500)  # which the server answers outside of all middleware
            raise

    def _route(self, scope: Scope) -> str:
        """Return the path of the route of a request, which is one of few."""
        if scope["path"] == self._path:
            return self._path
        found = (one.path for one in self._routes if one.matches(scope)[0] is not Match.NONE)
        return next(found, OTHER)

    def _page(self, request: Request) -> Response:
        scheme, _, proof = request.headers.get("authorization", "").partition(" ")
        try:
            if scheme.casefold() != "bearer":
                raise IdentityRefused("metrics need `Authorization: Bearer` with the token of an account")
            proved_person(proof, self._accounts)
        except IdentityRefused as refused:
            return PlainTextResponse(str(refused), 401, {"WWW-Authenticate": "Bearer"})
        except LedgerError as error:
            # Its text has the address of the ledger, and nobody has proved anything yet.
            log.warning("nobody could be recognized for the metrics: %s", error)
            return PlainTextResponse("the ledger does not answer: see the log of this server", 503)
        return Response(self._counts.text(), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})
