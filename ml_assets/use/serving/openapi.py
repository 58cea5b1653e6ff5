"""Answers of a server: shapes of those that are not predictions, and OpenAPI of the predictions.

Each model has its own path, with its own columns, types and an example. FastAPI describes the other paths (`app`).
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import BaseModel, ConfigDict

from ml_assets.model.release.runtime import InputColumn
from ml_assets.use.serving.watch import ServedVersion

if TYPE_CHECKING:
    from ml_assets.use.serving.online_lookup import OnlineLookup
    from ml_assets.use.serving.watch import StageWatch


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


_NUMBER = {"type": ["number", "boolean", "null"]}
_CATEGORY = {"type": ["string", "number", "boolean", "null"]}
_BLOB = {"type": "string", "contentEncoding": "base64"}
_REFUSALS = {
    "400": "The body is not JSON",
    "404": "The model is not served here",
    "413": "The body is too large, or has too many rows",
    "415": "The body has another content type",
    "422": "A row lacks a column that the online store does not have, or has a value that the model cannot read",
    "500": "The prediction failed",
    "503": "No version is in production, or the online store does not answer",
}


def with_models(
    document: dict[str, Any], watch: "StageWatch", online: "Mapping[str, OnlineLookup]"
) -> dict[str, Any]:
    """Return the OpenAPI document with a path for each model that has a version in production.

    `online` has the models whose requests may name an entity alone.
    """
    paths: dict[str, Any] = {**document["paths"]}
    schemas: dict[str, Any] = {**document.get("components", {}).get("schemas", {})}
    schemas["ErrorAnswer"] = ErrorAnswer.model_json_schema()
    for model in watch.declarations:
        served = watch.served(model)
        if served is None or served.production is None:
            continue
        by = () if served.share is None else served.share.by
        example = example_of(served.production, by)
        entity = online[model].table.entity if model in online else None
        schemas[f"{model}_row"] = _row_schema(served.production, by, example, entity)
        schemas[f"{model}_answer"] = _answer_schema(served.production)
        paths[f"/models/{model}/predict"] = {"post": _operation(model, served.production, example)}
    return {**document, "paths": paths, "components": {**document.get("components", {}), "schemas": schemas}}


def example_of(version: ServedVersion, by: Sequence[str] = ()) -> dict[str, Any]:
    """Return a raw row as a client sends it: the first golden row in JSON.

    A golden row has the columns that the model reads. Further columns in `by`, which name the entity, get a text.
    """
    row = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in version.example.items()
    }
    return {name: f"a {name}" for name in by} | orjson.loads(orjson.dumps(row))


def _row_schema(
    version: ServedVersion, by: tuple[str, ...], example: dict[str, Any], entity: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the schema of a raw row. A row that has the columns of `entity` may leave out the others."""
    properties: dict[str, Any] = {one.name: _column_schema(one) for one in version.runtime.inputs}
    for name in by:
        properties.setdefault(name, {**_CATEGORY, "description": "Names the entity"})
    required: dict[str, Any] = {"required": list(properties)}
    if entity is not None:
        whole = {"title": "All columns", **required}
        required = {"anyOf": [whole, {"title": "An entity of the online store", "required": list(entity)}]}
        for name in entity:
            properties.setdefault(name, {**_CATEGORY, "description": "Names the entity in the online store"})
    return {
        "type": "object",
        "title": f"Raw row of {version.model}",
        "properties": properties,
        **required,
        "additionalProperties": True,
        "example": example,
    }


def _column_schema(column: InputColumn) -> dict[str, Any]:
    of_kind: Mapping[str, Any] = {"numeric": _NUMBER, "category": _CATEGORY, "blob": _BLOB}[column.kind]
    return {**of_kind, "description": f"{column.kind}, {column.dtype} in the feature table"}


def _answer_schema(version: ServedVersion) -> dict[str, Any]:
    columns = version.runtime.columns
    number = {"type": "number"}
    prediction = (
        {
            "type": "object",
            "properties": dict.fromkeys(columns, number),
            "required": list(columns),
        }
        if columns
        else number
    )
    return {
        "type": "object",
        "title": f"Prediction of {version.model}",
        "properties": {
            "prediction": prediction,
            "version": {"type": "integer"},
            "role": {"type": "string", "enum": ["production", "canary"]},
            "unknown_categories": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Columns whose category no training row had: the model reads it as unknown",
            },
            "online": {
                "type": "object",
                "description": "Columns from the online store, if the request left out some",
                "properties": {
                    "features_at": {"type": "string", "format": "date-time"},
                    "known_at": {"type": "string", "format": "date-time"},
                    "columns": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["features_at", "known_at", "columns"],
            },
            "model": {"type": "string"},
            "request_id": {"type": "string"},
        },
        "required": ["prediction", "version", "role"],
    }


def _operation(model: str, version: ServedVersion, example: dict[str, Any]) -> dict[str, Any]:
    row, answer = ({"$ref": f"#/components/schemas/{model}_{what}"} for what in ("row", "answer"))
    batch = {
        "type": "object",
        "properties": {
            "predictions": {"type": "array", "items": answer},
            "model": {"type": "string"},
            "request_id": {"type": "string"},
        },
        "required": ["predictions", "model", "request_id"],
    }
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
    content = {
        "schema": {"oneOf": [row, {"type": "array", "items": row, "minItems": 1}]},
        "example": example,
    }
    return {
        "operationId": f"predict_{model}",
        "summary": f"Predict with {model}: one raw row, or a list of rows",
        "description": f"Objective {version.runtime.objective}; version {version.number} is in production.",
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {
            "200": {
                "description": "The prediction, or one for each row of a list, in its order",
                "content": {"application/json": {"schema": {"oneOf": [answer, batch]}}},
            },
            **{status: {"description": said, "content": error} for status, said in _REFUSALS.items()},
        },
    }
