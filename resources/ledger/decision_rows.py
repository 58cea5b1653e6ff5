"""Rows of the table of decisions: the type of each kind, its form in the table, and reading it back.

Not here: appending a row (`checked_append`), the chain of digests (`chain`), the questions to the rows (`model_log`,
`accounts`).
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter

from resources.ledger import chain
from resources.ledger.errors import LedgerChanged, refuse_unprintable
from resources.ledger.rows import (
    AboutBundle,
    Acceptance,
    AcceptedPartition,
    Account,
    Archival,
    Authored,
    Decision,
    Demotion,
    DossierRow,
    EvaluationRow,
    Promotion,
    Redating,
    Review,
    Revocation,
    RulesRow,
    SemanticName,
)
from resources.ledger.tables import acceptances, decisions

Chained = Decision | Account | Revocation | AcceptedPartition
"""Any row of the chain."""
KINDS: dict[str, type[Chained]] = {
    "evaluation": EvaluationRow,
    "name": SemanticName,
    "promotion": Promotion,
    "demotion": Demotion,
    "archival": Archival,
    "review": Review,
    "dossier": DossierRow,
    "rules": RulesRow,
    "redating": Redating,
    "account": Account,
    "revocation": Revocation,
    "acceptance": AcceptedPartition,
}
"""Kind of a row → type of its content. Other modules see the types only."""
_COLUMNS = ("model", "bundle_digest", "evaluation_digest", "author", "reason", "at")
"""Columns of the content. A type without one of them stores an empty text; its other fields are JSON in `facts`."""
_NOT_STORED = {"place", "by", "demotion", "revocation"}
"""Fields that come from the place of the row, from its column `author`, or from another row."""


def to_store(new: Chained) -> dict[str, Any]:
    """Return the columns of a row, but for those of the chain. Raise `NotPrintable`."""
    kind = type(new)
    values = _adapter(kind).dump_python(new, mode="json", exclude=_NOT_STORED)
    shared: dict[str, Any] = {name: getattr(new, name, "") for name in _COLUMNS}
    refuse_unprintable(author=shared["author"], reason=shared["reason"])
    facts = {name: value for name, value in values.items() if name not in _COLUMNS}
    if isinstance(new, Authored):
        facts |= {"checked_by": new.by.checked_by, "account": new.by.account}
    return {**shared, "kind": kind_of(kind), "facts": json.dumps(facts, sort_keys=True)}


def row_of(row: sa.RowMapping) -> Chained:
    """Return the typed content of a stored row."""
    kind = KINDS[row["kind"]]
    has = {field.name for field in fields(kind)} & {"place", *_COLUMNS}
    facts: dict[str, Any] = json.loads(row["facts"])
    if issubclass(kind, Authored):
        proof = {name: facts.pop(name) for name in ("checked_by", "account")}
        facts["by"] = {"name": row["author"], **proof}
    return _adapter(kind).validate_python({**{name: row[name] for name in has}, **facts})


def kind_of(content: type[Chained]) -> str:
    """Return the name of a kind in the table."""
    return next(name for name, known in KINDS.items() if known is content)


ABOUT_MODELS = tuple(kind_of(one) for one in (*get_args(AboutBundle), RulesRow, Redating))
"""Kinds of rows about models."""


def chained_acceptances(connection: sa.Connection) -> list[AcceptedPartition]:
    """Return the acceptances of the chain, oldest first. Raise `LedgerChanged` if one cannot be read."""
    of_chain = sa.select(decisions).where(decisions.c.kind == kind_of(AcceptedPartition))
    with naming_a_changed_row():
        rows = connection.execute(of_chain.order_by(decisions.c.place)).mappings()
        return [row for row in map(row_of, rows) if isinstance(row, AcceptedPartition)]


def require_chained_acceptances(connection: sa.Connection) -> None:
    """Raise `LedgerChanged` with the first acceptance that differs from its row of the chain.

    The table of acceptances decides; the chain shows a change of it only while both have the same acceptances.
    """
    every = chained_acceptances(connection)
    with naming_a_changed_row():
        stored = [Acceptance(**row) for row in connection.execute(sa.select(acceptances)).mappings()]
    deciding = {(one.table, one.key, one.number): one for one in stored}
    for row in every:
        named = f"the acceptance of verdict {row.number} on {row.table} {row.key}"
        found = deciding.pop((row.table, row.key, row.number), None)
        if found is None:
            raise LedgerChanged(f"{named} is missing, and row {row.place} of the chain has it")
        if changed := [name for name, value in vars(found).items() if value != getattr(row, name)]:
            raise LedgerChanged(f"{named} differs from row {row.place} of the chain: {', '.join(changed)}")
    for one in deciding.values():
        raise LedgerChanged(
            f"the acceptance of verdict {one.number} on {one.table} {one.key} is in no row of the chain"
        )


def begin_decision(connection: sa.Connection) -> None:
    """Begin a decision: nobody else appends until the commit, and no stored row was changed. Raise `LedgerChanged`.

    It walks the whole chain each time. A remembered place would not show a change of the rows before it.
    """
    chain.lock(connection)  # before its grounds are read, so that no account is revoked after them
    try:
        chain.verify(connection)
        require_chained_acceptances(connection)
    except LedgerChanged as changed:
        raise LedgerChanged(
            f"nothing was decided, because the ledger was changed by another program: {changed}. Restore its database "
            "from a copy that `ml-assets ledger verify` accepts"
        ) from None


@contextmanager
def naming_a_changed_row() -> Generator[None]:
    """Raise `LedgerChanged` for content that the ledger cannot have written."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerChanged(
            "a decision in the ledger cannot be read, so it was changed after it was written. To see which: ml-assets "
            "ledger verify"
        ) from error


@cache
def _adapter(kind: type[Chained]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
