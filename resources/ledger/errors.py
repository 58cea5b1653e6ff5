"""Errors of the ledger. Each message names the request, the state of the ledger and the remedy."""

from typing import Literal

Change = Literal["missing", "changed", "relinked", "shortened", "replaced", "acceptance", "unreadable"]
"""Kinds of changes of the chain. `relinked`: a row after a replaced one. `shortened` and `replaced`: against a head
that was kept elsewhere. `acceptance`: one that differs from its row."""


class LedgerError(Exception):
    """Base of all errors of the ledger."""


class LedgerBusy(LedgerError):
    """Other writers held the database for longer than we wait. Try again."""


class LedgerUnavailable(LedgerError):
    """The database server does not answer, or the connection broke during a write. Try again."""


class NothingToAccept(LedgerError):
    """The newest verdict on this partition is not a rejection or not the named verdict, or the reason is missing."""


class LedgerOfAnotherLake(LedgerError):
    """The ledger has the verdicts on the lake of another environment."""


class LedgerOfAnotherVersion(LedgerError):
    """The tables have a revision that this version of ml-assets does not know. The message has the remedy."""

    def __init__(self, message: str, *, found: str, is_newer: bool) -> None:
        super().__init__(message)
        self.found = found
        """Revision of the tables."""
        self.is_newer = is_newer
        """True for tables of a newer version; False for tables from before the first release."""


class NotPrintable(LedgerError):
    """A name or reason has a line break, a control character or a broken encoding. Nothing is stored."""


class IdentityNeeded(LedgerError):
    """The ledger has accounts, and nobody checked the name of the person who decides. Nothing is stored."""

    def __init__(self, message: str, *, name: str, is_revoked: bool) -> None:
        super().__init__(message)
        self.name = name
        """Name of the person."""
        self.is_revoked = is_revoked
        """True if the person proved an account that was revoked since."""


class IdentityRefused(LedgerError):
    """A token or an ID token proves no account in force."""


class AccountRefused(LedgerError):
    """An account cannot be added or revoked. The message has the reason and the remedy."""


class ClockRefused(LedgerError):
    """A clock is wrong: of this host, or that by which an earlier row was dated. Nothing is stored."""

    def __init__(self, message: str, *, dated: Literal["process", "new row", "earlier row"]) -> None:
        super().__init__(message)
        self.dated = dated
        """Time that disagrees with the ledger's clock."""


class LedgerChanged(LedgerError):
    """A row of the log of models was changed, removed, inserted or moved after it was written."""

    def __init__(self, message: str, *, how: Change, place: int | None = None) -> None:
        super().__init__(message)
        self.how: Change = how
        self.place = place
        """Place of the row; None if the message names none."""


def refuse_unprintable(**texts: str) -> None:
    """Raise `NotPrintable` if a text has a character that does not print.

    A line break would forge a line of `history`, and a control character reaches the terminal of whoever reads it.
    """
    for name, text in texts.items():
        if not text.isprintable():
            at = next(place for place, letter in enumerate(text) if not letter.isprintable())
            raise NotPrintable(
                f"the {name} {text!a} has a character that does not print, {text[at]!a}, at place {at + 1}: "
                "use one line of letters, digits, signs and ordinary spaces"
            )
