"""Frame of all routes: who may call them, in which time, with how large a body, and what the OpenAPI document says.

A route is added with the lowest role that may call it, and there is no other way to add one. The caller is checked
before anything of the request is read. Not here: the routes.
"""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ml_assets.context import Context
from ml_assets.extras.api.answers import KeptAnswers, Part
from ml_assets.extras.api.callers import Callers, Streams
from ml_assets.extras.api.parts_read import PartsRead
from ml_assets.extras.api.problems import MEDIA_TYPE, ApiRefused, problem_of, request_id_of
from ml_assets.extras.governance.proxy.persons import PageVisitor
from ml_assets.extras.governance.proxy.webserver import GuardedWebserver
from resources.ledger import Role
from resources.web.request_counts import RequestCounts
from resources.words import did_you_mean

MOST_BYTES = 65_536
"""Bytes of a body."""
ANSWER_SECONDS = 60.0
"""Longest time for an answer; that of a stream ends with its first byte."""
MOST_CHANGES = 20
"""Changes in progress at once, those included whose clients were given up: a silent webserver holds the thread of each
for minutes. Reads have the other threads."""
ROLE = "x-role"
"""Key of an operation in the OpenAPI document: its lowest role."""
_OF_ALL = (400, 401, 403, 413, 422, 429, 503, 504)
"""Statuses of refusals of every route."""
BODY = "x-most-bytes"
"""Key of an operation in the OpenAPI document: most bytes of its body, where these are more than `MOST_BYTES`."""
Answer = TypeVar("Answer")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True)
class ApiParts:
    """Parts of a running API."""

    context: Context
    """Context of the API's own process, opened to write. Each decision names its person."""
    webserver: GuardedWebserver
    callers: Callers
    read: PartsRead
    """Parts of the platform from which answers are made."""
    answers: KeptAnswers = field(default_factory=KeptAnswers)
    streams: Streams = field(default_factory=Streams)
    declared: threading.Lock = field(default_factory=threading.Lock)
    """Held while declarations are read: Dagster builds them at the first use of each, in one thread."""
    changes: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(MOST_CHANGES)
    )
    """Held by the thread of each change, also after its request was given up."""
    requests: RequestCounts = field(
        default_factory=lambda: RequestCounts(
            requests="ml_assets_api_requests_total", seconds="ml_assets_api_request_seconds"
        )
    )
    larger_bodies: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Methods and paths of routes that take more than `MOST_BYTES`, from known callers."""


def _caller(request: Request) -> PageVisitor:
    return request.state.caller


Caller = Annotated[PageVisitor, Depends(_caller)]
"""Person behind the request, as a parameter of an endpoint."""


async def in_thread(work: Callable[..., Answer], *arguments: Any, **named: Any) -> Answer:
    """Return what `work` returns in a thread. A cancelled wait leaves the thread behind, which then answers nobody."""
    return await run_sync(functools.partial(work, *arguments, **named), abandon_on_cancel=True)


class Routes:
    """Adds routes to an application."""

    def __init__(self, app: FastAPI, parts: ApiParts) -> None:
        self._app, self._changes, self._larger = app, parts.changes, parts.larger_bodies
        self._answers, self._kept = parts.answers, set[str]()
        app.router.route_class = _guarded(parts.callers, parts.requests, self._answers, self._kept)

    def add(
        self,
        method: str,
        path: str,
        *,
        role: Role,
        summary: str,
        status: int = 200,
        refuses: Sequence[int] = (404,),
        described: Mapping[int | str, dict[str, Any]] | None = None,
        most_bytes: int = MOST_BYTES,
        kept_while: Sequence[Part] = (),
        **more: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds an endpoint, a plain function for a thread or a coroutine function.

        `refuses` are statuses of its refusals beside those of all routes; `described` is OpenAPI of other answers.
        `most_bytes` bounds the body. A larger bound than that of all others is for known callers alone. `kept_while`
        are all parts of the platform from which the answer of a read is made, if it does not depend on its caller: the
        answer is kept while none of them changes.
        """

        if most_bytes > MOST_BYTES:
            self._larger.add((method, f"/api/v1{path}"))

        def added(endpoint: Endpoint) -> Endpoint:
            served = endpoint if method == "GET" else _counted(endpoint, self._changes)
            self._app.add_api_route(
                f"/api/v1{path}",
                endpoint if asyncio.iscoroutinefunction(endpoint) else self._threaded(served, kept_while),
                methods=[method],
                status_code=status,
                summary=summary,
                responses={
                    **(described or {}),
                    **{one: _problem(one) for one in sorted({*_OF_ALL, *refuses})},
                },
                openapi_extra={ROLE: role} | ({BODY: most_bytes} if most_bytes > MOST_BYTES else {}),
                **more,
            )
            if kept_while:
                self._kept.add(f"/api/v1{path}")
            return endpoint

        return added

    def _threaded(
        self, endpoint: Callable[..., Any], kept_while: Sequence[Part]
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        @functools.wraps(endpoint)
        async def threaded(**named: Any) -> Any:
            if kept_while:
                await self._answers.before(kept_while, named)
            return await in_thread(endpoint, **named)

        return threaded


def _counted(endpoint: Callable[..., Answer], changes: threading.BoundedSemaphore) -> Callable[..., Answer]:
    """Return an endpoint that raises `ApiRefused`, 503, if too many changes are in progress."""

    @functools.wraps(endpoint)
    def counted(**named: Any) -> Answer:
        if not changes.acquire(blocking=False):
            raise ApiRefused(
                503,
                "busy",
                "Too many changes are in progress, perhaps because Dagster's webserver does not answer: send the "
                "request again later, with the same Idempotency-Key",
                **{"Retry-After": "5"},
            )
        try:
            return endpoint(**named)
        finally:
            changes.release()

    return counted


def _guarded(
    callers: Callers, requests: RequestCounts, answers: KeptAnswers, kept: Set[str]
) -> type[APIRoute]:
    """Return the class of routes that know their caller before they read a request.

    `kept` are paths of reads whose `answers` are kept.
    """

    async def _caller_of(request: Request, role: Role) -> PageVisitor:
        address = request.client.host if request.client else ""
        proof, is_change = request.headers.get("authorization", ""), request.method != "GET"
        callers.admit(address)
        known = None if is_change else callers.at_hand(proof, role)
        return known or await in_thread(callers.of, proof, role, at_once=is_change)

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle, extra = super().get_route_handler(), self.openapi_extra or {}
            role, most_bytes = extra[ROLE], extra.get(BODY, MOST_BYTES)

            async def guarded(request: Request) -> Response:
                began = time.monotonic()
                answer = await answered(request)
                requests.answered(request.method, self.path, answer.status_code, time.monotonic() - began)
                return answer

            async def made(request: Request) -> Response:
                _require_known(request, {one.alias for one in self.dependant.query_params})
                return await handle(await _with_body(request, most_bytes))

            async def answered(request: Request) -> Response:
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        request.state.caller = await _caller_of(request, role)
                        if request.method == "GET" and self.path in kept:
                            return await answers.of(request, functools.partial(made, request))
                        return await made(request)
                except Exception as error:  # any: uvicorn would log a refusal as a defect of the server
                    return problem_of(error, request_id_of(request.scope))

            return guarded

    return GuardedRoute


async def _with_body(request: Request, most: int) -> Request:
    """Return the request once its whole body is here. Raise `ApiRefused`, 413, if that is larger than `most`."""
    content = bytearray()
    try:
        async for part in request.stream():
            content += part
            if len(content) > most:
                raise _too_large(most)
    except ClientDisconnect:
        raise ApiRefused(400, "client_gone", "the client left before its request was whole") from None
    whole: Message = {"type": "http.request", "body": bytes(content), "more_body": False}

    async def received() -> Message:
        return whole

    return Request(request.scope, received)


def _too_large(most: int) -> ApiRefused:
    """Return the refusal of a body of more than `most` bytes."""
    return ApiRefused(413, "too_large", f"a body has at most {most:,} bytes here: send less")


def _require_known(request: Request, known: set[str]) -> None:
    """Raise `ApiRefused` for a parameter that a route does not have: a mistyped one must not look like a default."""
    for name in request.query_params:
        if name not in known:
            there = did_you_mean(name, known) if known else "; there are none"
            raise ApiRefused(422, "unknown_parameter", f"no parameter of this path is named {name!a}{there}")


def _problem(status: int) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/ProblemDocument"}
    return {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": reference}}}


class Bounds:
    """Middleware: a body is read before its request, and no further than `MOST_BYTES`; each answer has a request id.

    A larger body of a route that takes it waits until the route knows the caller, who may send the rest.
    """

    def __init__(self, app: ASGIApp, larger: Set[tuple[str, str]]) -> None:
        """`larger` are methods and paths of routes that take larger bodies."""
        self._app, self._larger = app, larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MOST_BYTES:
                if (scope["method"], scope["path"]) in self._larger:
                    break
                await problem_of(_too_large(MOST_BYTES), request_id)(scope, receive, named)
                return
        parts = [{"type": "http.request", "body": bytes(body), "more_body": more}]

        async def replayed() -> Message:
            return parts.pop() if parts else await receive()

        await self._app(scope, replayed, named)
