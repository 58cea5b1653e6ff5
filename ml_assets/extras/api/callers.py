"""Person who calls: the account that a bearer token proves, its role, and how often it may ask.

Tokens and roles are those of `ml-assets accounts`. Not here: the check of a proof (`governance.proxy.persons`).
"""

import threading
import time
from collections import Counter
from collections.abc import Generator, Hashable
from contextlib import contextmanager

from ml_assets.extras.api.problems import ApiRefused
from ml_assets.extras.governance.proxy.persons import PageVisitor, Persons
from ml_assets.extras.governance.proxy.rules import may
from ml_assets.extras.governance.proxy.webserver import role_in_words
from resources.ledger import Accounts, IdentityRefused, Role
from resources.web.http_bounds import network_of

OF_ACCOUNT, OF_ADDRESS = (20.0, 100), (200.0, 400)
"""Requests a second on average, and at once: of an account, and of an address, whose token may be wrong."""
MOST_STREAMS, STREAMS_OF_ACCOUNT = 300, 10
_MOST_BUCKETS = 10_000


class Allowance:
    """Token buckets by name: `rate` requests a second on average, `burst` at once. Safe for threads."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._lock = threading.Lock()
        self._left: dict[Hashable, tuple[float, float]] = {}

    def take(self, name: Hashable) -> None:
        """Raise `ApiRefused`, 429, if the bucket is empty."""
        now = time.monotonic()
        with self._lock:
            if len(self._left) >= _MOST_BUCKETS:  # full buckets need no entry
                full = self._burst / self._rate
                self._left = {one: facts for one, facts in self._left.items() if now - facts[1] < full}
            left, at = self._left.get(name, (float(self._burst), now))
            left = min(self._burst, left + (now - at) * self._rate)
            self._left[name] = max(0.0, left - 1), now
        if left < 1:
            raise ApiRefused(
                429,
                "too_many_requests",
                "Too many requests: wait, then send fewer a second",
                **{"Retry-After": "1"},
            )


class Streams:
    """Open streams, counted by account. Of one event loop."""

    def __init__(self) -> None:
        self._open: Counter[int | None] = Counter()

    def require_room(self, account: int | None) -> None:
        """Raise `ApiRefused`, 429, if too many are open."""
        if self._open[account] >= STREAMS_OF_ACCOUNT or self._open.total() >= MOST_STREAMS:
            raise ApiRefused(
                429,
                "too_many_streams",
                "Too many streams are open: close one, then open this again",
                **{"Retry-After": "5"},
            )

    @contextmanager
    def open(self, account: int | None) -> Generator[None]:
        """Count a stream as open during the block."""
        self._open[account] += 1
        try:
            yield
        finally:
            self._open[account] -= 1


class Callers:
    """Persons of a ledger who call the API. Safe for threads."""

    def __init__(self, accounts: Accounts) -> None:
        self._persons = Persons(accounts)
        self._of_account, self._of_address = Allowance(*OF_ACCOUNT), Allowance(*OF_ADDRESS)

    def admit(self, address: str) -> None:
        """Count a request of an address. Raise `ApiRefused`, 429, if it sends too many."""
        self._of_address.take(network_of(address))

    def at_hand(self, authorization: str, role: Role) -> PageVisitor | None:
        """Do as `of` for a read if nothing has to be asked of the ledger or an issuer; else return None at once."""
        visitor = self._persons.at_hand(_proof_in(authorization))
        return None if visitor is None else self._allowed(visitor, role)

    def of(self, authorization: str, role: Role, *, at_once: bool) -> PageVisitor:
        """Return who sent a request. Raise `IdentityRefused`, or `ApiRefused` for a role below `role`.

        `at_once`: a change of the account counts from this moment, not after a few seconds.
        """
        person = self._persons.of_proof(_proof_in(authorization))
        visitor = self._persons.visitor(person, at_once=at_once)
        if visitor is None:
            raise IdentityRefused(
                f"the account of {person.name} was revoked: an administrator can add a new one"
            )
        return self._allowed(visitor, role)

    def _allowed(self, visitor: PageVisitor, role: Role) -> PageVisitor:
        """Return a person who may send a request of `role` now. Raise `ApiRefused`."""
        self._of_account.take(visitor.person.account)
        if not may(visitor.standing.role, role):
            raise ApiRefused(
                403,
                "role_needed",
                f"this needs the role {role}, and {role_in_words(visitor)}. An administrator can change that: "
                f"ml-assets accounts role {visitor.person.name} {role} --reason '…'",
            )
        return visitor

    def is_known(self, visitor: PageVisitor) -> bool:
        """Return True if the account of a person was in force moments ago. Asks nobody."""
        return self._persons.is_known(visitor.person)

    def keep_fresh(self) -> None:
        """Read again which accounts are in force, unless that was moments ago."""
        self._persons.keep_fresh()

    def is_still_here(self, visitor: PageVisitor) -> bool:
        """Return True while the account of a person is in force."""
        return self._persons.visitor(visitor.person) is not None


def _proof_in(authorization: str) -> str:
    """Return the token of an `Authorization` header. Raise `IdentityRefused`."""
    scheme, _, proof = authorization.partition(" ")
    if scheme.casefold() != "bearer" or not proof.strip():
        raise IdentityRefused(
            "nobody proved who asks: send `Authorization: Bearer TOKEN`, with the token that `ml-assets accounts "
            "add` printed"
        )
    return proof
