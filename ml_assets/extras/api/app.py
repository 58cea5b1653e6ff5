"""Application of the API, its OpenAPI document, and its server."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from ml_assets.context import Context
from ml_assets.extras.api.callers import Callers
from ml_assets.extras.api.following import add_following
from ml_assets.extras.api.frame import ApiParts, Bounds, Routes, in_thread
from ml_assets.extras.api.launches import add_launches
from ml_assets.extras.api.metrics import add_metrics
from ml_assets.extras.api.parts_read import PartsRead
from ml_assets.extras.api.problems import (
    MEDIA_TYPE,
    ApiRefused,
    ProblemDocument,
    answer_with_problems,
    problem_of,
)
from ml_assets.extras.api.reads import add_reads
from ml_assets.extras.api.spending import add_spending
from ml_assets.extras.api.stages import add_stages
from ml_assets.extras.governance.proxy.webserver import GuardedWebserver
from resources.web.bounded_uvicorn import BoundedProtocol, answer_promptly, serve_until_stopped

OPEN_PATHS = ("/health", "/openapi.json")
"""Paths that need no token."""
_DESCRIPTION = """Runs, models and data of an ml_assets platform.

Every path but `/health` and `/openapi.json` needs `Authorization: Bearer TOKEN`, with the token that `ml-assets
accounts add` printed. `x-role` is the lowest role that may call an operation. Every error is a problem of RFC 9457."""


def api_app(context: Context, webserver: str) -> FastAPI:
    """Return the application over a context that was opened to write, and Dagster's webserver at `webserver`."""
    ledger = context.project.platform.ledger
    parts = ApiParts(
        context, GuardedWebserver(ledger, webserver), Callers(ledger.accounts), PartsRead(context.project)
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        parts.answers.close()
        await in_thread(parts.webserver.wait_for_launches)

    # The pages of docs_url and redoc_url load scripts from other hosts.
    app = FastAPI(
        title="ml-assets api",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation,
        lifespan=lifespan,
    )
    answer_with_problems(app)
    app.add_middleware(Bounds, larger=parts.larger_bodies)

    @app.get("/health", summary="The process lives")
    async def health() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    routes = Routes(app, parts)
    add_reads(routes, parts)
    add_spending(routes, parts)
    add_launches(routes, parts)
    add_following(routes, parts)
    add_stages(routes, parts)
    add_metrics(routes, parts)
    described = app.openapi
    app.openapi = lambda: _with_security(described())
    return app


def _operation(route: APIRoute) -> str:
    """Return the name of an operation, by which generated clients call it, such as `get_models_versions_by_v`."""
    *parts, last = route.path.removeprefix("/api/v1").strip("/").split("/")
    words = [one for one in parts if not one.startswith("{")]
    words += ["by", last.strip("{}")] if last.startswith("{") else [last]
    (method,) = route.methods or {"GET"}
    return "_".join([method, *words]).lower().replace("-", "_")


def _with_security(document: dict[str, Any]) -> dict[str, Any]:
    """Add to the OpenAPI document how a caller proves who asks, and the form of problems."""
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    components.setdefault("schemas", {})["ProblemDocument"] = ProblemDocument.model_json_schema()
    for path, operations in document["paths"].items():
        if path not in OPEN_PATHS:
            for operation in operations.values():
                operation["security"] = [{"token": []}]
    return document


def serve(app: FastAPI, host: str, port: int) -> None:
    """Serve `app` until Ctrl-C or SIGTERM. Requests that then last are cut off, but launches are recorded."""
    answer_promptly()
    serve_until_stopped(app, host, port, ProblemProtocol, ws="none")


class ProblemProtocol(BoundedProtocol):
    """uvicorn's protocol within bounds, whose errors are problems as those of all routes are."""

    def refusal(self, status: int, why: str) -> tuple[bytes, bytes]:
        said = f"{why} Send HTTP/1.1, without TLS" if status == 400 else why
        problem = problem_of(ApiRefused(status, "refused_by_server", said), uuid.uuid4().hex)
        return f"content-type: {MEDIA_TYPE}\r\n".encode(), bytes(problem.body)
