"""Errors of the ledger. Each message names what was asked, what was found and what helps."""


class LedgerError(Exception):
    """Base of every refusal of the ledger."""


class LedgerBusy(LedgerError):
    """Other writers held the database for longer than we wait. Try again."""


class LedgerUnavailable(LedgerError):
    """The database server does not answer, or was cut off while it stored. Try again."""


class NothingToAccept(LedgerError):
    """The newest attempt of this partition was not rejected, or there is none."""
