"""Sessions of persons who signed in to a page of ours, and the reading of its forms.

A session lives in the memory of one process: its end signs everybody out. Not here: the proof of a person
(`resources.acting`), the pages.
"""

import hmac
import secrets
import time
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.requests import Request

from resources.ledger import Person

SESSION_SECONDS = 8 * 3600
"""Longest session. The account is checked again while it lasts."""
MOST_SESSIONS = 1000
LARGEST_FORM = 64_000
"""Bytes."""


class PageRefused(Exception):
    """Request that does nothing: its HTTP status and the sentence for the person."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


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
        self._open.pop(secret, None)


async def read_body(request: Request, most: int, what: str) -> bytes:
    """Return the body of a request. Raise `PageRefused` if it has more than `most` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise PageRefused(413, f"{what} has at most {most:,} bytes")
    return bytes(body)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Starlette's own reader needs another package, and takes files, too."""
    body = await read_body(request, LARGEST_FORM, "a form")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise PageRefused(400, f"the form cannot be read: {error}") from error
    return {name: values[0] for name, values in fields.items()}
