"""Appending a row of the chain, after a check of the person behind it.

`append` is the only way into the chain, so no decision can skip the check. Not here: adding and revoking accounts
(`accounts`), the proof of an account by a token (`resources.acting`).
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import sqlalchemy as sa

from resources.ledger import chain
from resources.ledger.decision_rows import Chained, kind_of, naming_a_changed_row, row_of, to_store
from resources.ledger.errors import ClockRefused, IdentityNeeded
from resources.ledger.ledger_time import TOLERANCE, time_of
from resources.ledger.rows import (
    AcceptedPartition,
    Account,
    Archival,
    Authored,
    Demotion,
    Person,
    Promotion,
    Redating,
    Review,
    Revocation,
    RulesRow,
)
from resources.ledger.tables import decisions, in_utc

Row = TypeVar("Row", bound=Chained)


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
            f"{now:%Y-%m-%d %H:%M:%S} UTC. Nothing was stored: leave the time to the ledger"
        )
    if isinstance(new, Authored) and (new.by.account is not None or _is_a_decision(new)):
        require_identity(connection, new.by)
    return replace(new, place=chain.append(connection, to_store(new)))


def require_identity(connection: sa.Connection, person: Person) -> None:
    """Raise `IdentityNeeded` if the ledger has accounts and `person` does not act for one in force."""
    known = every_account(connection)
    if person.checked_by == "platform" or (not known and person.account is None):
        return
    if person.checked_by == "nobody":
        administrators = ", ".join(one.name for one in in_force(known) if one.is_administrator)
        raise IdentityNeeded(
            f"nobody checked that you are {person.name}, and this ledger has accounts: set ML_ASSETS_TOKEN to the "
            "token of your account, or ML_ASSETS_OIDC_TOKEN to an ID token. If you have no account, ask an "
            "administrator: "
            f"{administrators}"
        )
    if account_of(known, person) is None:
        raise IdentityNeeded(
            f"the account of {person.name} was revoked meanwhile: an administrator can add a new one"
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
