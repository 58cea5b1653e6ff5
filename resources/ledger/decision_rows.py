"""Rows of the table of decisions: the type of each kind, its form in the table, and appending one.

`append` is the only way into the chain. It checks the person behind a row and its time, so no decision can skip the
checks. Not here: the chain of digests (`chain`), the questions to the rows (`model_log`), adding and revoking accounts
(`accounts`), the proof of an account by a token (`resources.acting`).
"""

import json
import os
import tempfile
import unicodedata
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter

from resources.clocks import TOLERANCE
from resources.ledger import chain
from resources.ledger.errors import ClockRefused, IdentityNeeded, LedgerChanged, refuse_unprintable
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
    LaunchRow,
    Person,
    Promotion,
    Redating,
    Review,
    Revocation,
    RoleRow,
    RulesRow,
    SemanticName,
    StopRow,
)
from resources.ledger.tables import acceptances, decisions, in_utc

Chained = Decision | Account | Revocation | RoleRow | LaunchRow | StopRow | AcceptedPartition
"""Any row of the chain."""
Row = TypeVar("Row", bound=Chained)
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
    "role": RoleRow,
    "launch": LaunchRow,
    "stop": StopRow,
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
            raise LedgerChanged(
                f"{named} is missing, and row {row.place} of the chain has it",
                how="acceptance",
                place=row.place,
            )
        if changed := [name for name, value in vars(found).items() if value != getattr(row, name)]:
            raise LedgerChanged(
                f"{named} differs from row {row.place} of the chain: {', '.join(changed)}",
                how="acceptance",
                place=row.place,
            )
    for one in deciding.values():
        raise LedgerChanged(
            f"the acceptance of verdict {one.number} on {one.table} {one.key} is in no row of the chain",
            how="acceptance",
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
            "from a copy that `ml-assets ledger verify` accepts",
            how=changed.how,
            place=changed.place,
        ) from None


@contextmanager
def naming_a_changed_row() -> Generator[None]:
    """Raise `LedgerChanged` for content that the ledger cannot have written."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerChanged(
            "a decision in the ledger cannot be read, so it was changed after it was written. To see which: ml-assets "
            "ledger verify",
            how="unreadable",
        ) from error


@cache
def _adapter(kind: type[Chained]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def append(connection: sa.Connection, new: Row) -> Row:
    """Append a row in the transaction of `connection`; return it with its place.

    A decision of a person needs an account in force as soon as the ledger has accounts. Any other row may have an
    author whom nobody checked, but a proof that it names must hold. Raise `IdentityNeeded`, `NotPrintable`, and
    `ClockRefused` for a row dated ahead of the ledger's clock.
    """
    chain.lock(connection)  # before its grounds are read
    if in_utc(new.at) - (now := time_of(connection)) > TOLERANCE:
        raise ClockRefused(
            f"a {kind_of(type(new))} dated {new.at:%Y-%m-%d %H:%M:%S} UTC is ahead of the ledger's clock, "
            f"{now:%Y-%m-%d %H:%M:%S} UTC. Nothing was stored: leave the time to the ledger",
            dated="new row",
        )
    if isinstance(new, Authored) and (new.by.account is not None or _is_a_decision(new)):
        require_identity(connection, new.by, allows_rules=isinstance(new, Demotion))
    return replace(new, place=chain.append(connection, to_store(new)))


def require_identity(connection: sa.Connection, person: Person, *, allows_rules: bool = False) -> None:
    """Raise `IdentityNeeded` for a person without a name, for a rule unless `allows_rules`, and, if the ledger has
    accounts, unless `person` acts for one in force, by its name and its kind of proof."""
    if not person.name.strip():
        raise IdentityNeeded(
            "whoever decides needs a name: set ML_ASSETS_AUTHOR, or ML_ASSETS_TOKEN to the token of your account",
            name=person.name,
            is_revoked=False,
        )
    if person.checked_by == "platform":
        if allows_rules:
            return
        raise IdentityNeeded(
            f"{person.name} is a rule, and rules only demote: a person decides this",
            name=person.name,
            is_revoked=False,
        )
    known = every_account(connection)
    if not known and person.account is None:
        return
    if person.checked_by == "nobody":
        administrators = ", ".join(one.name for one in in_force(known) if one.is_administrator)
        raise IdentityNeeded(
            f"nobody checked that you are {person.name}, and this ledger has accounts: set ML_ASSETS_TOKEN to the "
            "token of your account, or ML_ASSETS_OIDC_TOKEN to an ID token. If you have no account, ask an "
            "administrator: "
            f"{administrators}",
            name=person.name,
            is_revoked=False,
        )
    account = account_of(known, person)
    if account is None:
        raise IdentityNeeded(
            f"the account of {person.name} was revoked meanwhile: an administrator can add a new one",
            name=person.name,
            is_revoked=True,
        )
    if not same_person(account.name, person.name) or person.checked_by != (
        "oidc" if account.issuer else "token"
    ):
        raise IdentityNeeded(
            f"nobody proved to be {person.name}: the named account is of {account.name}, whom another proof names. Set "
            "ML_ASSETS_TOKEN to the token of your account, or ML_ASSETS_OIDC_TOKEN to an ID token",
            name=person.name,
            is_revoked=False,
        )


def every_account(connection: sa.Connection) -> list[Account]:
    """Return all accounts, also revoked ones, oldest first."""
    kinds = [kind_of(Account), kind_of(Revocation)]
    query = sa.select(decisions).where(decisions.c.kind.in_(kinds)).order_by(decisions.c.place)
    with naming_a_changed_row():
        found = [row_of(row) for row in connection.execute(query).mappings()]
    ended = {one.ended: one for one in found if isinstance(one, Revocation)}
    return [replace(one, revocation=ended.get(one.place)) for one in found if isinstance(one, Account)]


def in_force(known: Sequence[Account]) -> list[Account]:
    """Return the accounts that are not revoked."""
    return [one for one in known if one.revocation is None]


def account_of(known: Sequence[Account], person: Person) -> Account | None:
    """Return the account in force for which `person` acts; None without one. Its place decides, not its name: a later
    account may have the same name."""
    return next((one for one in in_force(known) if one.place == person.account), None)


def same_person(one: str, other: str) -> bool:
    """Return True for equal names, also in other case, Unicode form, or with spaces around them."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def _is_a_decision(new: Authored) -> bool:
    """Return True for a decision of a person. A run records a model's first rules, without a reason."""
    if isinstance(new, RulesRow):
        return bool(new.reason)
    return isinstance(new, Promotion | Demotion | Archival | Review | AcceptedPartition | Redating)


def time_of(connection: sa.Connection) -> datetime:
    """Return the present time by the ledger. Raise `ClockRefused` if this host and its file system disagree."""
    if connection.dialect.name == "postgresql":
        asked: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return asked.astimezone(UTC)
    own = process_time()
    stored = file_system_time(Path(connection.engine.url.database or ".").absolute().parent)
    if abs(own - stored) > TOLERANCE:
        raise ClockRefused(
            f"the clock of this process says {own:%Y-%m-%d %H:%M:%S} UTC, and the file system of the ledger "
            f"{stored:%Y-%m-%d %H:%M:%S} UTC. Nothing was stored: set the clocks right, then run it again",
            dated="process",
        )
    return own


def process_time() -> datetime:
    """Return the time of this process."""
    return datetime.now(UTC)


def file_system_time(folder: Path) -> datetime:
    """Return the time at which the file system stores a file in `folder`. A network file system has its own clock."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\n")
        file.flush()
        return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
