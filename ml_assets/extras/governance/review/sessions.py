"""Signed-in persons, and the tokens that forms carry.

A session lives in the memory of this process: its end signs everybody out.
"""

import hmac
import secrets
import time
from dataclasses import dataclass, field

from resources.ledger import Person

SESSION_SECONDS = 8 * 3600
"""Longest session. The ledger checks the account again at each decision."""
MOST_SESSIONS = 1000


@dataclass
class Session:
    """One browser in which a person signed in."""

    person: Person
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """Value that each form of the session sends back. A page of another site does not know it."""
    began: float = field(default_factory=time.monotonic)
    told: tuple[str, str] | None = None
    """Result of the last decision for the next page: tone and text."""

    def fits(self, form_token: str) -> bool:
        """Return True if a form of this session sent `form_token`."""
        return hmac.compare_digest(self.form_token.encode(), form_token.encode())

    def take_told(self) -> tuple[str, str] | None:
        """Return the result of the last decision, once."""
        told, self.told = self.told, None
        return told


class Sessions:
    """Sessions by the secret in the browser's cookie."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def begin(self, person: Person) -> tuple[str, Session]:
        """Return the secret of a new session, and the session."""
        now = time.monotonic()
        alive = {name: one for name, one in self._open.items() if now - one.began < SESSION_SECONDS}
        self._open = dict(list(alive.items())[-MOST_SESSIONS + 1 :])
        secret = secrets.token_urlsafe(32)
        self._open[secret] = Session(person)
        return secret, self._open[secret]

    def of(self, secret: str) -> Session | None:
        """Return the session with this secret; None if it is over or never was."""
        found = self._open.get(secret)
        return found if found and time.monotonic() - found.began < SESSION_SECONDS else None

    def end(self, secret: str) -> None:
        """Sign out."""
        self._open.pop(secret, None)
