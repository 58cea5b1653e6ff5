"""Accounts of the persons who decide, as rows of the chain: added and revoked, never changed.

A person proves an account by its token, or by an ID token that the account's OIDC issuer signed. All that a proof is
compared with stands in these rows: issuer and audience are no settings, because whoever is checked could set them.
Not here: the check of an ID token (`resources.web.oidc`), and the person who acts in a process (`resources.acting`).
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import sqlalchemy as sa

from resources.ledger.database import LedgerDatabase
from resources.ledger.decision_rows import (
    account_of,
    append,
    begin_decision,
    every_account,
    in_force,
    kind_of,
    naming_a_changed_row,
    require_identity,
    row_of,
    same_person,
    time_of,
)
from resources.ledger.errors import AccountRefused, IdentityNeeded, IdentityRefused, refuse_unprintable
from resources.ledger.rows import Account, Person, Revocation, Role, RoleRow
from resources.ledger.tables import decisions
from resources.secrets import TOKEN_PREFIX

TURN_PATIENCE_SECONDS = 60.0
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._@-]+")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Standing:
    """Role of a person in Dagster's pages, and the groups of assets to which it is limited; none: all assets."""

    role: Role
    groups: tuple[str, ...] = ()


class Accounts:
    """Part of the ledger on accounts. Every method may raise `LedgerError`.

    Nobody needs an account until somebody adds the first. From then on, each decision of a person needs a checked
    identity, and only administrators add and revoke accounts.
    """

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def all(self) -> list[Account]:
        """Return all accounts, also revoked ones, oldest first."""
        with self._database.reading() as connection:
            return every_account(connection)

    def in_force(self) -> list[Account]:
        """Return the accounts that are not revoked, oldest first."""
        return in_force(self.all())

    def add_by_token(self, name: str, by: Person, *, reason: str = "", is_administrator: bool = False) -> str:
        """Add an account; return its new token, which is stored nowhere. Raise `AccountRefused`."""
        token = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
        new = _new(name, by, reason, is_administrator)
        self._add(replace(new, token_digest=_digest(token)))
        return token

    def add_by_oidc(
        self,
        name: str,
        by: Person,
        *,
        issuer: str,
        subject: str,
        audience: str,
        reason: str = "",
        is_administrator: bool = False,
        prove_first: Callable[[Account], object] | None = None,
    ) -> Account:
        """Add an account that an ID token of `issuer` for `audience` with the subject `subject` proves.

        `prove_first` raises if nobody proved the new account. It runs if the account is the ledger's first, which must
        be proved. Raise `AccountRefused`.
        """
        refuse_unprintable(issuer=issuer, subject=subject, audience=audience)
        if not subject or not audience:
            raise AccountRefused(f"an account of {name} by OIDC needs a subject and an audience")
        require_safe_address(issuer)
        new = _new(name, by, reason, is_administrator)
        new = replace(new, issuer=issuer, subject=subject, audience=audience)
        if not self.all():
            if prove_first is None:
                raise AccountRefused(f"the first account {name} by OIDC needs a proof, such as an ID token")
            prove_first(new)
        return self._add(new)

    def revoke(self, name: str, by: Person, *, reason: str) -> Account:
        """End the account `name`; return it. Raise `AccountRefused`."""
        if not reason.strip():
            raise AccountRefused(f"revoking the account of {name} needs a reason for the log")

        def work(connection: sa.Connection) -> Account:
            found = _to_change(connection, name, by)
            if found.place == by.account:
                # So an administrator who just proved her account is left, after each revocation.
                raise AccountRefused(
                    f"another administrator, who proves an account, must revoke {found.name}: if nobody could prove "
                    "an administrator's account, nobody could add one any more. To add an administrator: ml-assets "
                    "accounts add NAME --administrator"
                )
            revocation = Revocation(
                place=0,
                name=found.name,
                ended=found.place,
                by=by,
                reason=reason,
                at=time_of(connection),
            )
            return replace(found, revocation=append(connection, revocation))

        with self._database.turn("accounts", TURN_PATIENCE_SECONDS):
            return self._database.write(work)

    def set_role(
        self, name: str, role: Role, by: Person, *, groups: Sequence[str] = (), reason: str
    ) -> RoleRow:
        """Give the account `name` a role in Dagster's pages; return its row. Raise `AccountRefused`."""
        refuse_unprintable(**{f"group {number}": one for number, one in enumerate(groups, 1)})
        if not reason.strip():
            raise AccountRefused(f"the role of {name} needs a reason for the log")
        if groups and role not in ("operator", "approver"):
            raise AccountRefused(
                f"a {role} is not limited to groups of assets: leave out --group, or make {name} an operator"
            )

        def work(connection: sa.Connection) -> RoleRow:
            found = _to_change(connection, name, by)
            if found.is_administrator != (role == "admin"):
                raise AccountRefused(
                    f"{found.name} is an administrator, which is the role admin: it stays until the account is revoked"
                    if found.is_administrator
                    else f"admin is the role of administrators. First revoke the account of {found.name}, then: "
                    f"ml-assets accounts add {found.name} --administrator"
                )
            new = RoleRow(
                place=0,
                name=found.name,
                of=found.place,
                role=role,
                groups=tuple(sorted(set(groups))),
                by=by,
                reason=reason,
                at=time_of(connection),
            )
            return append(connection, new)

        with self._database.turn("accounts", TURN_PATIENCE_SECONDS):
            return self._database.write(work)

    def standings(self) -> dict[int, Standing]:
        """Return place of an account in force → its role. Without a row, administrators are admins, others viewers."""
        query = sa.select(decisions).where(decisions.c.model == "", decisions.c.kind == kind_of(RoleRow))
        with self._database.reading() as connection:
            found = {
                one.place: Standing("admin" if one.is_administrator else "viewer")
                for one in in_force(every_account(connection))
            }
            with naming_a_changed_row():
                rows = map(row_of, connection.execute(query.order_by(decisions.c.place)).mappings())
                given = {row.of: Standing(row.role, row.groups) for row in rows if isinstance(row, RoleRow)}
        return {place: given.get(place, standing) for place, standing in found.items()}

    def of_token(self, token: str) -> Account:
        """Return the account that `token` proves. Raise `IdentityRefused`."""
        digest = _digest(token)
        found = next((one for one in self.all() if one.token_digest == digest), None)
        if found is None:
            raise IdentityRefused(
                "the token belongs to no account of this ledger: compare it with the one that `ml-assets accounts "
                "add` printed, or let an administrator add an account"
            )
        if found.revocation is not None:
            ended = found.revocation
            raise IdentityRefused(
                f"the account of {found.name} was revoked at {ended.at:%Y-%m-%d %H:%M} UTC by {ended.author}: "
                f"{ended.reason}. An administrator can add a new one"
            )
        return found

    def require_identity(self, person: Person) -> None:
        """Raise `IdentityNeeded` if the ledger has accounts and `person` does not act for one in force."""
        with self._database.reading() as connection:
            require_identity(connection, person)

    def _add(self, new: Account) -> Account:
        refuse_unprintable(name=new.name)
        if not new.name.strip():
            raise AccountRefused("an account needs a name")

        def work(connection: sa.Connection) -> Account:
            begin_decision(connection)
            every = every_account(connection)
            known = in_force(every)
            if not every and not new.is_administrator:
                raise AccountRefused(
                    "the first account must be an administrator's, because only administrators add others: ml-assets "
                    f"accounts add {new.name} --administrator"
                )
            if every:
                _require_administrator(known, new.by)
            if (same := _named(known, new.name)) is not None:
                raise AccountRefused(
                    f"{same.name} has an account since {same.at:%Y-%m-%d}: for a new token, first revoke it: ml-assets "
                    f"accounts revoke {same.name} --reason '…'"
                )
            _require_plain_name(new.name)
            taken = [one.name for one in known if new.issuer and _subject(one) == _subject(new)]
            if taken:
                raise AccountRefused(
                    f"the subject {new.subject} of {new.issuer} is the account of {taken[0]}: one person "
                    "has one account"
                )
            return append(connection, replace(new, at=time_of(connection)))

        with self._database.turn("accounts", TURN_PATIENCE_SECONDS):
            return self._database.write(work)


def require_safe_address(address: str) -> None:
    """Raise `AccountRefused` unless an issuer's address is https, or http on this machine's loopback."""
    parts = urlsplit(address)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not is_safe or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise AccountRefused(
            f"{address!a} is not the address of an issuer: use https://… without credentials, ? and #, exactly as the "
            "claim `iss` of its tokens"
        )


def _require_plain_name(name: str) -> None:
    """Raise `AccountRefused` for a name that a reader could take for another, or for words of a command's output."""
    if not _PLAIN_NAME.fullmatch(name):
        raise AccountRefused(
            f"{name!a} is not the name of an account: it may have letters from A to Z in either case, digits and . _ @ "
            "-, because a name must not look like another one"
        )


def _new(name: str, by: Person, reason: str, is_administrator: bool) -> Account:
    return Account(
        place=0,
        name=name,
        is_administrator=is_administrator,
        by=by,
        reason=reason,
        at=datetime.now(UTC),
    )


def _digest(token: str) -> str:
    # A plain hash is enough: a token has 256 random bits, so nobody can try them all.
    return hashlib.sha256(token.encode()).hexdigest()


def _named(known: Sequence[Account], name: str) -> Account | None:
    return next((one for one in known if same_person(one.name, name)), None)


def _subject(account: Account) -> tuple[str, str]:
    return account.issuer, account.subject


def _to_change(connection: sa.Connection, name: str, by: Person) -> Account:
    """Begin a decision of an administrator about an account in force; return it. Raise `AccountRefused`."""
    begin_decision(connection)
    known = in_force(every_account(connection))
    _require_administrator(known, by)
    found = _named(known, name)
    if found is None:
        raise AccountRefused(f"no account in force is named {name!a}: ml-assets accounts list")
    return found


def _require_administrator(known: Sequence[Account], by: Person) -> None:
    administrators = [one.name for one in known if one.is_administrator]
    if by.checked_by not in ("token", "oidc"):
        raise IdentityNeeded(
            f"nobody checked that you are {by.name}: set ML_ASSETS_TOKEN or ML_ASSETS_OIDC_TOKEN. These administrators "
            f"can add and revoke accounts: {', '.join(administrators)}",
            name=by.name,
            is_revoked=False,
        )
    own = account_of(known, by)
    if own is None:
        raise IdentityNeeded(
            f"the account of {by.name} was revoked meanwhile. These administrators can add a new one: "
            f"{', '.join(administrators)}",
            name=by.name,
            is_revoked=True,
        )
    if not own.is_administrator:
        raise AccountRefused(
            f"{by.name} is not an administrator. These can add and revoke accounts: {', '.join(administrators)}"
        )
