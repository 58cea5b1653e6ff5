"""Assignment of entities to production or canary by a stable hash.

An entity, such as an aircraft, is named by columns of its rows. It is always on the same side: in every process, on
every machine, after every restart. With a larger share the canary keeps its entities and gets more. Another canary gets
other entities, because model and bundle are part of the hash. Not here: the share itself (`release.canary`).
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Literal

Role = Literal["production", "canary", "shadow"]
"""Role of a version in the answer to a request. A prediction of a `shadow` is logged and never answered."""


class EntityRefused(ValueError):
    """A row does not name its entity."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column!r} {why}")
        self.column = column


def entity_of(row: Mapping[str, object], by: Sequence[str]) -> str:
    """Return the name of the entity of a raw row: a JSON list with a text or null for each column in `by`.

    A number and its text are one value, so 5, 5.0 and "5" name the same entity; so do null and NaN. Raises
    `EntityRefused` if a column is missing, or holds a list or an object.
    """
    return json.dumps([_text(row, column) for column in by], ensure_ascii=False, separators=(",", ":"))


def is_of_canary(entity: str, *, model: str, bundle_digest: str, share: float) -> bool:
    """Return True if the canary with this bundle answers the requests of `entity`.

    `share` is the canary's share of entities, from 0 to 1. An entity without a name, whose columns are all null, is
    always production's: it may be most of the requests, and one side would get all of them.
    """
    if all(name is None for name in json.loads(entity)):
        return False
    return _position(entity, model, bundle_digest) < share


def _position(entity: str, model: str, bundle_digest: str) -> float:
    """Return the place of an entity in [0, 1): the first 53 bits of a BLAKE2b hash, which a float holds exactly."""
    salted = json.dumps([model, bundle_digest, entity]).encode()
    return (int.from_bytes(hashlib.blake2b(salted, digest_size=8).digest()) >> 11) / 2**53


def _text(row: Mapping[str, object], column: str) -> str | None:
    if column not in row:
        raise EntityRefused(column, "is missing; it names the entity (release.canary.by)")
    match row[column]:
        case None:
            return None
        case bool(value):
            return "true" if value else "false"
        case float(value):
            if math.isnan(value):
                return None
            return str(int(value)) if value.is_integer() else repr(value)
        case int(value):
            return f"{value:d}" if -(2**63) <= value < 2**64 else repr(float(value))
        case str(value):
            return value
        case date() as value:  # a datetime, too
            return value.isoformat()
        case value:
            raise EntityRefused(
                column,
                f"holds {type(value).__name__}, but it names the entity (release.canary.by): send a text, a number or "
                "a boolean",
            )
