"""Assignment of entities to production or canary by a stable hash with a secret.

An entity, such as an aircraft, is named by columns of its rows. It is always on the same side: in every process, on
every machine, after every restart. With a larger share the canary keeps its entities and gets more. Another canary gets
other entities, because model, bundle and begin are part of the hash. The secret is that of the servers: a client that
could compute the side of an entity would choose which version its rows make look bad. Not here: the share itself
(`release.canary`).
"""

import hashlib
import json
import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from resources.artifacts import Artifacts, ArtifactsRefused
from resources.ledger import Ledger
from resources.web.http_bounds import network_of

Role = Literal["production", "canary", "shadow"]
"""Role of a version in the answer to a request. A prediction of a `shadow` is logged and never answered."""


_SECRET = ("serving-secret", "canary")
"""Folder and file of the secret among the artifacts."""
_SECRET_BYTES = 32


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


def shared_secret(artifacts: Artifacts, ledger: Ledger) -> bytes:
    """Return the secret that all servers with these artifacts share. The first one makes it, in its turn at the ledger.

    Without the file, the next server makes another one, and entities change their sides once. Raises `ArtifactsError`
    and, if there is no secret yet, `LedgerError`.
    """
    folder, file = _SECRET
    if not artifacts.exists(folder, file):
        with ledger.turn(folder):
            if not artifacts.exists(folder, file):
                with artifacts.create(folder, file) as made:
                    made.write(secrets.token_bytes(_SECRET_BYTES))
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as fetched:
        artifacts.fetch(folder, file, target := Path(fetched) / file)
        secret = target.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise ArtifactsRefused(
            f"{artifacts.address(folder)}/{file} is no secret of {_SECRET_BYTES} bytes: remove it, and restart all "
            "servers"
        )
    return secret


def is_of_canary(
    entity: str, *, secret: bytes, model: str, bundle_digest: str, begun: datetime, share: float
) -> bool:
    """Return True if the canary with this bundle, promoted at `begun`, answers the requests of `entity`.

    `share` is the canary's share of entities, from 0 to 1. An entity without a name, whose columns are all null, is
    always production's: it may be most of the requests, and one side would get all of them.
    """
    if all(name is None for name in json.loads(entity)):
        return False
    # The first 53 bits of a keyed BLAKE2b hash are a place in [0, 1) which a float holds exactly.
    salted = json.dumps([model, bundle_digest, begun.astimezone(UTC).isoformat(), entity]).encode()
    place = (int.from_bytes(hashlib.blake2b(salted, key=secret, digest_size=8).digest()) >> 11) / 2**53
    return place < share


def sender_of(address: str, secret: bytes) -> str:
    """Return a name of the client at this network address that does not show the address."""
    return hashlib.blake2b(network_of(address).encode(), key=secret, digest_size=8).hexdigest()


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
