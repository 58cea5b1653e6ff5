"""Addresses of servers. Their text, for people and logs, never holds credentials, and requests follow no redirects.

Here: the parts of an address that are credentials. Not here: connecting to the server.
"""

import re
import urllib.request
from http.client import HTTPMessage
from typing import IO, Any
from urllib.parse import SplitResult, quote, unquote, unquote_plus, urlsplit

from pydantic_core import core_schema

HIDDEN = "***"
"""Text that replaces a credential."""
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
_IN_TEXT = re.compile(r"[A-Za-z][\w+.-]*://\S+")
_NAMES_A_SECRET = re.compile(r"pass|pwd|secret|token|key|credential|sig|auth", re.IGNORECASE)
_SHORTEST = 3
"""Least length of a secret that is hidden in a text. Shorter secrets occur in ordinary words."""


def with_driver(address: str) -> str:
    """Return the address of a database; one of PostgreSQL without a driver with the one that is installed.

    SQLAlchemy 2.1 reads `postgresql://` as psycopg 3.
    """
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg2://", address)


def parts_of(address: str) -> SplitResult:
    """Return the parts of `scheme://host:port` or `host:port`."""
    return urlsplit(address if "://" in address else f"//{address}")


class Address:
    """Address of a server. Text made from it (`str`, `repr`, f-strings, pydantic's JSON) never holds its credentials.

    Credentials are everything before the last `@`, and everything after `?` or `#`. In unclear cases more is hidden.
    Code that connects calls `reveal`.
    """

    __slots__ = ("_whole",)

    def __init__(self, whole: str) -> None:
        self._whole = whole

    def reveal(self) -> str:
        """Return the address with its credentials."""
        return self._whole

    def hide_in(self, text: str) -> str:
        """Return `text` without the credentials of this address, in any spelling, and of all other addresses."""
        text = text.replace(self._whole, str(self))
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return hide_credentials(text)

    @property
    def host(self) -> str | None:
        """Host of the address, which may have no scheme."""
        return parts_of(self._whole).hostname

    @property
    def server(self) -> str:
        """`host:port` of the address."""
        return urlsplit(str(self)).netloc

    @property
    def has_credentials(self) -> bool:
        """True if `str` hides a part of the address."""
        return str(self) != self._whole

    def __str__(self) -> str:
        return _shown(self._whole)

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and self._whole == other._whole

    def __hash__(self) -> int:
        return hash(self._whole)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Accept a text or an `Address`. Serialize as the text without credentials."""
        made = core_schema.no_info_after_validator_function(cls, core_schema.str_schema())
        return core_schema.json_or_python_schema(
            json_schema=made,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), made]),
            serialization=core_schema.to_string_ser_schema(),
        )

    def _secrets(self) -> set[str]:
        scheme = _SCHEME.match(self._whole)
        rest = self._whole[scheme.end() :] if scheme else self._whole
        userinfo, has_user, _ = rest.rpartition("@")
        user, _, password = userinfo.partition(":")
        found = {userinfo, password or user} if has_user else set[str]()
        for pair in re.split(r"[?&#;]", rest)[1:]:
            name, _, value = pair.partition("=")
            if _NAMES_A_SECRET.search(name):
                found.add(value or name)
        plain = {form(one) for one in found for form in (str, unquote, unquote_plus)}
        spelled = plain | {quote(one, safe=safe) for one in plain for safe in ("", "/")}
        return {one for one in spelled if len(one) >= _SHORTEST}


def hide_credentials(text: str) -> str:
    """Return `text` without the credentials of the addresses in it."""
    return _IN_TEXT.sub(lambda found: _shown(found[0]), text)


def _shown(whole: str) -> str:
    scheme = _SCHEME.match(whole)
    if scheme is None:
        return HIDDEN if re.search(r"[@?=]", whole) else whole
    head, rest = scheme[0], whole[scheme.end() :]
    cut = re.search(r"[?#]", rest)
    place, query = (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")
    if "@" in query:
        # A password with a question mark, or a query with an @: hide everything after the scheme.
        return f"{head}{HIDDEN}"
    userinfo, has_user, place = place.rpartition("@")
    # A slash before the @: either the @ is a part of the path, or the slash is a part of the password.
    head += f"{HIDDEN}@" if has_user and "/" in userinfo else ""
    return f"{head}{place}{f'{query[0]}{HIDDEN}' if query else ''}"


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they lead from https to any address, and turn a POST into a GET."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow nothing; the answer then counts as an error."""
