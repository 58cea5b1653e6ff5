"""Counts of the requests to a server of pages, and their page for Prometheus.

Not here: the numbers (`resources.web.request_counts`), and the metrics of the API, whose routes count themselves.
"""

import logging
import time
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resources.acting import proved_person
from resources.ledger import Accounts, IdentityRefused, LedgerError
from resources.web.request_counts import MEDIA_TYPE, OTHER, RequestCounts

log = logging.getLogger(__name__)

REFUSED = "ml_assets.refused"
"""Key of a request's scope: status of a refusal that a page gets with status 200."""


class CountedRequests:
    """Outermost middleware: counts each request by the path of its route, and answers `path` with the counts.

    A Prometheus names a pod by its address, so the counts are given at any host, for the token of an account alone.
    """

    def __init__(
        self, app: ASGIApp, counts: RequestCounts, path: str, routes: Sequence[BaseRoute], accounts: Accounts
    ) -> None:
        self._app, self._counts, self._path, self._accounts = app, counts, path, accounts
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
