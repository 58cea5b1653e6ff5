"""Errors of a PostgreSQL that may pass: which of them mean that the server is away.

Here too: the error of the studies in their place, because Optuna takes a second to import. Not here: the retries
(`retry`), and the errors of the ledger.
"""

import sqlite3

from sqlalchemy import exc

_NOT_NOW = ("57P01", "57P02", "57P03", "53300")
"""Codes of PostgreSQL: shutting down, crashed, starting up, too many connections."""
_REFUSALS = ("authentication failed", "does not exist", "no pg_hba.conf")


class StudiesUnavailable(Exception):
    """The database of studies does not answer, or ended a connection in the middle of a transaction."""


def is_away(error: BaseException) -> bool:
    """True if `error`, of SQLAlchemy or of the driver, says that the server does not answer or ended the connection."""
    was_cut = isinstance(error, exc.DBAPIError) and error.connection_invalidated
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    if isinstance(cause, sqlite3.Error) or not _is_operational(cause):
        return False
    refused = any(word in str(cause) for word in _REFUSALS)
    # Errors of connecting have no code in psycopg2.
    return not refused and (code_of(cause) in (None, *_NOT_NOW) or was_cut)


def code_of(error: BaseException | None) -> str | None:
    """Return the code of PostgreSQL in an error of its driver; None without one."""
    # psycopg and psycopg2 use different names for the code.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _is_operational(error: BaseException | None) -> bool:
    """True for an `OperationalError` of any driver: each has a class of its own by this name (PEP 249)."""
    return any(one.__name__ == "OperationalError" for one in type(error).__mro__)
