"""Shapes of answers that are not predictions, for OpenAPI and for the code that makes them."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ErrorAnswer(_Shape):
    """Error of a request."""

    message: str
    """Fault and remedy."""
    field: str | None = None
    """Column with the fault."""
    row: int | None = None
    """Row of the batch, from 0."""
    request_id: str


class RoleAnswer(_Shape):
    """Version in a role."""

    version: int
    bundle_digest: str
    since: datetime
    """Moment of its promotion."""


class ModelAnswer(_Shape):
    """Roles of a model."""

    production: RoleAnswer | None
    canary: RoleAnswer | None
    shadows: list[RoleAnswer]
    problems: list[str]
    """Versions that the ledger names and that do not load."""


class LedgerAnswer(_Shape):
    """State of the ledger as the server sees it."""

    age_seconds: float | None
    """Seconds since it was read."""
    problem: str
    """Reason why it cannot be read; empty if it can."""
    unanswered_since: datetime | None
    """Moment since which no read succeeded; null if the last one did."""


class LogAnswer(_Shape):
    """State of the log of requests."""

    written_rows: int
    dropped_rows: int
    problem: str
    """Reason why rows wait in memory; empty if they do not."""
    above_bounds: dict[str, str]
    """Model → reason why days of its stored log stay above the bounds."""


class ReadyAnswer(_Shape):
    """State of a server."""

    ready: bool
    """True if each model has a version in production."""
    models: dict[str, ModelAnswer]
    ledger: LedgerAnswer
    log: LogAnswer
