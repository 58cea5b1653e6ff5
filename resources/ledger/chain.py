"""Hash chain of the decisions about models: appending a row, and the walk that finds the first row that was changed.

Each row stores the SHA-256 of its own content, which contains the digest of the row before it. All models share one
chain, so the removal of a whole model is found, too. A row appended with a right digest is valid: the chain shows that
the past was not rewritten, not who may write. If somebody replaces rows up to the end of the chain, or removes the
last ones, only an earlier `Head` shows it, kept outside the database. Not here: the meaning of the rows (`model_log`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import sqlalchemy as sa

from resources.ledger.errors import LedgerChanged, LedgerError
from resources.ledger.tables import decisions, utc_text

HASHED = tuple(column.name for column in decisions.columns if column.name != "digest")
"""Columns under the digest of a row, in this order."""
_AS_STORED = sa.select(*(sa.type_coerce(column, sa.Text).label(column.name) for column in decisions.columns))
"""Rows without any conversion: characters that a conversion overlooks must not be changed either."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """Last row of a chain. Kept elsewhere, it later shows whether a row up to it was changed."""

    place: int
    """Number of rows; 0 without any."""
    digest: str
    """64 hex digits; empty without any row."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`. Raise `LedgerError` for other text."""
        place, _, digest = text.partition(":")
        if not place.isdecimal() or len(digest) != 64:
            raise LedgerError(
                f"{text!r} is not a head of the ledger: expected PLACE:DIGEST, as `verify` prints it"
            )
        return cls(place=int(place), digest=digest)

    def __str__(self) -> str:
        return f"{self.place}:{self.digest}"


def append(connection: sa.Connection, facts: Mapping[str, Any]) -> int:
    """Append a row in the transaction of `connection`; return its place. `facts` has the other columns, but for the
    chain's own.
    """
    lock(connection)
    last = head(connection)
    row: dict[str, Any] = {**facts, "place": last.place + 1, "previous": last.digest}
    stored = row | {"at": utc_text(row["at"])}
    connection.execute(sa.insert(decisions), row | {"digest": digest_of(stored)})
    return row["place"]


def lock(connection: sa.Connection) -> None:
    """Keep other writers from appending until the commit. Whoever appends calls this before reading its grounds.

    Every row then continues the row before it, and no account is revoked in between. SQLite has one writer at a time
    anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"LOCK TABLE {decisions.name} IN EXCLUSIVE MODE"))


def head(connection: sa.Connection) -> Head:
    """Return the last row."""
    newest = sa.select(decisions.c.place, decisions.c.digest).order_by(decisions.c.place.desc()).limit(1)
    row = connection.execute(newest).first()
    return Head(place=0, digest="") if row is None else Head(place=row.place, digest=row.digest)


def digest_of(row: Mapping[Any, Any]) -> str:
    """Return the SHA-256 of a row as it is stored, in hex: of its columns but `digest`, as a JSON list."""
    content = json.dumps([row[name] for name in HASHED], default=repr)
    return hashlib.sha256(content.encode()).hexdigest()


def stored(connection: sa.Connection, model: str, bundle_digest: str) -> tuple[Head, list[dict[str, Any]]]:
    """Return the last row of the chain, and the rows about a bundle as they are stored, oldest first."""
    of_bundle = _AS_STORED.where(decisions.c.model == model, decisions.c.bundle_digest == bundle_digest)
    rows = connection.execute(of_bundle.order_by(decisions.c.place)).mappings()
    # `_AS_STORED` has texts only; the place is a number, also under the digest.
    return head(connection), [{**row} for row in rows]


def verify(connection: sa.Connection, known: Head | None = None) -> Head:
    """Walk all rows; return the last one.

    Raise `LedgerChanged` with the first row that was changed, removed, inserted or moved, or if the chain does not
    contain `known`.
    """
    last, at_known = Head(place=0, digest=""), ""
    for row in connection.execute(_AS_STORED.order_by(decisions.c.place)).mappings():
        place, expected = row["place"], last.place + 1
        named = f"row {place} ({row['kind']} of {row['model']}, {row['at']})"
        if place != expected:
            raise LedgerChanged(
                f"row {expected} is missing: the next one is {named}", how="missing", place=expected
            )
        if row["digest"] != digest_of(row):
            raise LedgerChanged(
                f"{named} was changed, inserted or moved: its digest belongs to other content",
                how="changed",
                place=place,
            )
        if row["previous"] != last.digest:
            raise LedgerChanged(
                f"{named} continues another row {last.place} than the stored one, which was replaced",
                how="relinked",
                place=place,
            )
        last = Head(place=place, digest=row["digest"])
        if known is not None and known.place == place:
            at_known = last.digest
    if known is not None and at_known != known.digest:
        is_shorter = last.place < known.place
        why = f"the ledger ends with row {last.place}" if is_shorter else "rows were replaced"
        raise LedgerChanged(
            f"row {known.place} is not the one with digest {known.digest[:12]}…: {why}",
            how="shortened" if is_shorter else "replaced",
            place=known.place,
        )
    return last
