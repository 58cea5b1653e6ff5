"""HTTP of a server: predictions, state, metrics.

Here: routes, bodies, statuses. Not here: the answer to a request (`answering`), the process (`server`). Every answer
but that of `/metrics` is JSON. Every error has a `message`, the `request_id`, and the `field` and `row` with the fault.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Mapping
from logging import getLogger

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ml_assets.use.serving.answering import Arrival, ServerParts, answer, answer_beside_canary, roles_now
from ml_assets.use.serving.canary import ShadowJob
from ml_assets.use.serving.openapi import (
    ErrorAnswer,
    LedgerAnswer,
    LogAnswer,
    ModelAnswer,
    ReadyAnswer,
    RoleAnswer,
    with_models,
)
from ml_assets.use.serving.raw_rows import RequestRefused
from ml_assets.use.serving.watch import Roles, ServedVersion

INLINE_BYTES = 16_384
"""Body from which on a request is answered in a thread, so that it does not hold up others."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_LOGGER = getLogger(__name__)


def make_app(parts: ServerParts) -> FastAPI:
    """Return the application. The parts must be started."""
    # The pages of docs_url and redoc_url load scripts from other hosts.
    app = FastAPI(title="ml-assets serve", version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    watch = parts.watch

    @app.get("/health", summary="The process lives")
    def health() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    @app.get("/ready", summary="Each model can answer", responses={503: {"model": ReadyAnswer}})
    def ready(response: Response) -> ReadyAnswer:  # pyright: ignore[reportUnusedFunction]
        state = _ready(parts)
        response.status_code = 200 if state.ready else 503
        return state

    @app.get("/models", summary="Models with the versions in their roles")
    def models() -> dict[str, ModelAnswer]:  # pyright: ignore[reportUnusedFunction]
        return _models(parts)

    @app.get("/metrics", summary="Counters and latencies for Prometheus", response_class=_PrometheusText)
    def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return _PrometheusText(parts.metrics.text())

    @app.exception_handler(HTTPException)
    def http_error(request: Request, error: HTTPException) -> Response:  # pyright: ignore[reportUnusedFunction]
        parts.metrics.refused(error.status_code)
        allowed = (error.headers or {}).get("Allow", "GET")
        said = {
            404: f"there is no {request.url.path}: /openapi.json has all paths",
            405: f"{request.url.path} does not take {request.method}: use {allowed}",
        }.get(error.status_code, str(error.detail))
        content = ErrorAnswer(message=said, request_id=_new_id()).model_dump_json()
        return Response(content, error.status_code, error.headers, "application/json")

    for state_of in (health, ready, models, metrics):  # balancers ask so
        app.add_api_route(f"/{state_of.__name__}", state_of, methods=["HEAD"], include_in_schema=False)
    app.router.routes.append(Route("/models/{model}/predict", endpoint=_Predict(parts), methods=["POST"]))
    plain = app.openapi
    # Not kept: another version may read other columns.
    app.openapi = lambda: with_models(plain(), watch, parts.online)
    return app


class _PrometheusText(Response):
    media_type = "text/plain; version=1.0.0; charset=utf-8"


class _Gone(Exception):
    """The client closed the connection before its request was complete."""


class _Predict:
    """Endpoint of predictions. It does without FastAPI's parsing, which takes longer than a prediction."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        arrival = Arrival(
            request_id=_new_id(),
            client_id=given.decode() if _REQUEST_ID.fullmatch(given) else None,
            model=scope["path_params"]["model"],
            at_us=time.time_ns() // 1_000,
            address=(scope.get("client") or ("",))[0],
        )
        job: ShadowJob | None = None
        try:
            status = 200
            content, job = await self._answer(arrival, headers, receive)
        except _Gone:
            return
        except RequestRefused as refusal:
            status = refusal.status
            error = ErrorAnswer(
                message=refusal.message, field=refusal.field, row=refusal.row, request_id=arrival.said_id
            )
            content = error.model_dump_json().encode()
        except Exception:  # any defect: a caller gets an answer with an id, and the log the cause
            _LOGGER.exception("request %s failed", arrival.said_id)
            status = 500
            said = "the prediction failed; the server's own log has the reason under this request_id"
            content = ErrorAnswer(message=said, request_id=arrival.said_id).model_dump_json().encode()
        if status != 200:
            self._parts.metrics.refused(status)
        start = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"x-request-id", arrival.said_id.encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": content})
        if job is not None:
            self._parts.shadows.add(job)

    async def _answer(
        self, arrival: Arrival, headers: Mapping[bytes, bytes], receive: Receive
    ) -> tuple[bytes, ShadowJob | None]:
        served = roles_now(self._parts, arrival.model)
        body = await _body(headers, receive, self._parts.limits.body_bytes)
        is_small = len(body) < INLINE_BYTES and not _reads_blobs(served)
        if is_small and (online := self._parts.online.get(arrival.model)) is not None:
            # A read of the store must not hold up other requests.
            is_small = not online.is_asked(served, body)
        if served.canary is not None:
            return await answer_beside_canary(self._parts, arrival, served, body, is_small)
        if is_small:
            return answer(self._parts, arrival, served, body)
        return await asyncio.to_thread(answer, self._parts, arrival, served, body)


def _reads_blobs(served: Roles) -> bool:
    return any(one.runtime.blob for one in (served.production, served.canary) if one is not None)


async def _body(headers: Mapping[bytes, bytes], receive: Receive, most: int) -> bytes:
    """Return the body of a request. Raises `RequestRefused` for another content type, or more than `most` bytes."""
    content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestRefused(
            415,
            f"the content type is {content_type or 'not given'}: send JSON with Content-Type: application/json",
        )
    if (encoding := headers.get(b"content-encoding", b"identity")).lower() != b"identity":
        raise RequestRefused(
            415, f"the content encoding is {encoding.decode('latin-1')}: send the body as it is"
        )
    too_large = RequestRefused(
        413, f"the body has more than {most:,} bytes: send several requests, or raise --max-body-mib"
    )
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > most:
        raise too_large
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise too_large
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _ready(parts: ServerParts) -> ReadyAnswer:
    models = _models(parts)
    return ReadyAnswer(
        ready=all(one.production for one in models.values()),
        models=models,
        ledger=LedgerAnswer(
            age_seconds=parts.watch.ledger_age,
            problem=parts.watch.ledger_problem,
            unanswered_since=parts.watch.unanswered_since,
        ),
        log=LogAnswer(
            written_rows=parts.log.written,
            dropped_rows=parts.log.dropped,
            problem=parts.log.problem,
            above_bounds={model: why for model, why in parts.retention.kept.items() if why},
        ),
    )


def _models(parts: ServerParts) -> dict[str, ModelAnswer]:
    found: dict[str, ModelAnswer] = {}
    for model in parts.watch.declarations:
        served = parts.watch.served(model) or Roles()
        found[model] = ModelAnswer(
            production=served.production and _role(served.production),
            canary=served.canary and _role(served.canary),
            shadows=[_role(one) for one in served.shadows],
            problems=list(parts.watch.problems(model)),
        )
    return found


def _role(version: ServedVersion) -> RoleAnswer:
    return RoleAnswer(version=version.number, bundle_digest=version.digest, since=version.since)


def _new_id() -> str:
    return uuid.uuid4().hex
