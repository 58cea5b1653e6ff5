"""Refusals as documents of RFC 9457, `application/problem+json`: status, code and remedy of each error.

The code is the name of the error's type, and its message says what to do. Not here: the errors themselves.
"""

import logging
import re
import uuid
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from ml_assets.context.errors import HomeRefused, LaunchRefused, NotFound
from ml_assets.data.tables.cadence import KeyRefused
from ml_assets.data.tables.reader import PartitionMissing
from ml_assets.extras.governance.sessions import PageRefused
from ml_assets.model.release.foreign_graph import ForeignModelRefused
from ml_assets.model.release.registry import VersionMissing
from ml_assets.model.release.releases import DecisionRefused
from resources.artifacts import ArtifactMissing, ArtifactsUnavailable
from resources.job.errors import CheckpointGone
from resources.lake import LakeBusy, LakeUnavailable, RefNotFound
from resources.launcher.resource_profile import ProfileRefused
from resources.ledger import IdentityNeeded, IdentityRefused, LedgerBusy, LedgerUnavailable, NotPrintable
from resources.tracking.mlflow_client import TrackerRefused, TrackerUnavailable
from resources.tracking.tracker import TrackedMissing
from resources.words import has_remedy

MEDIA_TYPE = "application/problem+json"
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (IdentityRefused, 401),
    (IdentityNeeded, 401),
    (NotFound, 404),
    (VersionMissing, 404),
    (PartitionMissing, 404),
    (RefNotFound, 404),
    (ArtifactMissing, 404),
    (LaunchRefused, 422),
    (ForeignModelRefused, 422),
    (ProfileRefused, 422),
    (KeyRefused, 422),
    (NotPrintable, 422),
    (TrackedMissing, 404),
    (CheckpointGone, 404),
    (TrackerRefused, 422),
    (DecisionRefused, 409),
    (LedgerBusy, 503),
    (LedgerUnavailable, 503),
    (LakeBusy, 503),
    (LakeUnavailable, 503),
    (TrackerUnavailable, 503),
    (ArtifactsUnavailable, 503),
    (HomeRefused, 503),
)
"""Type of an error → status. Other errors of the project have 409: the platform's state forbids it."""
_OF_PAGES = {403: "role_needed", 502: "dagster_unavailable", 503: "ledger_unavailable"}
"""Status of a `PageRefused` → code."""
_LOG = logging.getLogger(__name__)


class ApiRefused(Exception):
    """Request that the API itself refuses. The message has the remedy."""

    def __init__(self, status: int, code: str, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status, self.code, self.headers = status, code, headers


class ProblemDocument(BaseModel):
    """Refusal of a request."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="`about:blank`: `code` identifies the problem.")
    title: str = Field(description="Words of the HTTP status.")
    status: int
    code: str = Field(description="Name of the error, for programs.")
    detail: str = Field(description="What is wrong, and what to do.")
    request_id: str = Field(description="Id of the request in the server's log.")
    ground: str | None = Field(None, description="Rule that speaks against a decision about a version.")


def problem_of(error: Exception, request_id: str) -> Response:
    """Return the answer to a request that raised. An error without a remedy is logged, and its text stays here."""
    status, code, detail, headers = _described(error)
    if status == 500:
        _LOG.error("request %s failed", request_id, exc_info=error)
    document = ProblemDocument(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail.encode(errors="backslashreplace").decode(),  # it may quote a broken surrogate
        request_id=request_id,
        ground=error.ground if isinstance(error, DecisionRefused) else None,
    )
    if status == 401:
        headers = {**headers, "WWW-Authenticate": "Bearer"}
    return Response(document.model_dump_json(exclude_none=True), status, headers, MEDIA_TYPE)


def _described(error: Exception) -> tuple[int, str, str, dict[str, str]]:
    """Return status, code, detail and headers."""
    if isinstance(error, ApiRefused):
        return error.status, error.code, str(error), error.headers
    if isinstance(error, RequestValidationError):
        return 422, "invalid_request", _invalid(error), {}
    if isinstance(error, HTTPException):
        return (
            error.status_code,
            _code(HTTPStatus(error.status_code).phrase),
            _of_http(error),
            {**(error.headers or {})},
        )
    if isinstance(error, PageRefused):
        return error.status, _OF_PAGES.get(error.status, "dagster_refused"), str(error), {}
    if isinstance(error, TimeoutError):
        return (
            504,
            "too_slow",
            "The answer took too long. Send the request again, with the same Idempotency-Key",
            {},
        )
    if has_remedy(error):
        status = next((status for of, status in STATUSES if isinstance(error, of)), 409)
        return status, _code(type(error).__name__), str(error), {"Retry-After": "5"} if status == 503 else {}
    return (
        500,
        "internal_error",
        "The request failed. The server's log has the reason under this request_id",
        {},
    )


def _invalid(error: RequestValidationError) -> str:
    """Return the first faults of a request, each with its place. Values are not repeated: they may be secret."""
    said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:3]]
    return f"{'; '.join(said)}. /openapi.json describes each field"


def _of_http(error: HTTPException) -> str:
    if error.status_code == 404:
        return "There is no such path: /openapi.json has all paths"
    if error.status_code == 405:
        return f"This path does not take this method: use {(error.headers or {}).get('Allow', 'GET')}"
    return str(error.detail)


def _code(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", "_", name).lower()


def answer_with_problems(app: FastAPI) -> None:
    """Answer every error of `app` with a problem."""

    async def handler(request: Request, error: Exception) -> Response:
        return problem_of(error, request_id_of(request.scope))

    for kind in (Exception, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handler)


def request_id_of(scope: Any) -> str:
    """Return the id of a request; the first call makes it."""
    return scope.setdefault("state", {}).setdefault("request_id", uuid.uuid4().hex)
