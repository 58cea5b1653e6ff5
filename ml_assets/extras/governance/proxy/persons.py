"""Person behind a request: proved by a session or by an `Authorization` header, with the role of the account.

A name in any other header proves nothing, because whoever sends a request chooses its headers. Not here: the check of
a token or an ID token (`resources.acting`).
"""

import hashlib
import threading
import time
from dataclasses import dataclass

from resources.acting import proved_person
from resources.ledger import Accounts, Person, Standing

PROOF_SECONDS = 60.0
"""Time for which a checked proof is not checked again: an issuer is not asked for its keys at each request."""
STANDING_SECONDS = 5.0
"""Longest time after which a revoked account or a changed role counts for readers. Mutations look at once."""
_MOST_PROOFS = 1_000


@dataclass(frozen=True)
class PageVisitor:
    """Person who sent a request, and the role of that person."""

    person: Person
    standing: Standing


class Persons:
    """Persons of a ledger. Safe for threads."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._proofs: dict[str, tuple[float, Person]] = {}
        self._standings: tuple[float, dict[int, Standing]] = (-STANDING_SECONDS, {})

    def of_proof(self, proof: str) -> Person:
        """Return the person whom a token or an ID token proves. Raise `IdentityRefused`."""
        name, now = _name_of(proof), time.monotonic()
        known = self._proofs.get(name)
        if known is not None and now - known[0] < PROOF_SECONDS:
            return known[1]
        person = proved_person(proof, self._accounts)
        with self._lock:
            if len(self._proofs) >= _MOST_PROOFS:
                self._proofs.clear()
            self._proofs[name] = now, person
        return person

    def at_hand(self, proof: str) -> PageVisitor | None:
        """Return the person of a proof if both were read moments ago; else None. Asks nobody."""
        known, now = self._proofs.get(_name_of(proof)), time.monotonic()
        at, standings = self._standings
        if known is None or now - known[0] >= PROOF_SECONDS or now - at >= STANDING_SECONDS:
            return None
        return _visitor(known[1], standings)

    def is_known(self, person: Person) -> bool:
        """Return True if the account of a person was in force moments ago. Asks nobody."""
        return self._known_for(person) is not None

    def keep_fresh(self) -> None:
        """Read the roles again if they are older than a reader may see."""
        with self._asking:
            if time.monotonic() - self._standings[0] >= STANDING_SECONDS:
                self._read()

    def visitor(self, person: Person, *, at_once: bool = False) -> PageVisitor | None:
        """Return a person with the present role; None if the account is no longer in force."""
        if at_once:
            return _visitor(person, self._read())
        if (standings := self._known_for(person)) is None:
            with self._asking:  # one reader asks for all that wait
                standings = self._known_for(person)
                if standings is None:
                    standings = self._read()
        return _visitor(person, standings)

    def _known_for(self, person: Person) -> dict[int, Standing] | None:
        at, standings = self._standings
        # An account that is not known yet may be new.
        is_known = time.monotonic() - at < STANDING_SECONDS and person.account in standings
        return standings if is_known else None

    def _read(self) -> dict[int, Standing]:
        at, standings = time.monotonic(), self._accounts.standings()
        with self._lock:
            if at >= self._standings[0]:
                self._standings = at, standings
        return standings


def _visitor(person: Person, standings: dict[int, Standing]) -> PageVisitor | None:
    standing = standings.get(person.account) if person.account is not None else None
    return PageVisitor(person, standing) if standing is not None else None


def _name_of(proof: str) -> str:
    return hashlib.sha256(proof.encode()).hexdigest()
