"""The memory outside the lake's branches: verdicts of partitions, acceptances, promotions. Append-only.

What belongs here: facts that must survive whatever happens to a branch. What does not: data (the lake),
metrics and versions (the tracker), events (Dagster), and any judging (`ml_assets.validation`).
"""

from resources.ledger.errors import LedgerBusy, LedgerError, LedgerUnavailable, NothingToAccept
from resources.ledger.ledger import Ledger
from resources.ledger.rows import Acceptance, NewVerdict, Promotion, VerdictRow

__all__ = [
    "Acceptance",
    "Ledger",
    "LedgerBusy",
    "LedgerError",
    "LedgerUnavailable",
    "NewVerdict",
    "NothingToAccept",
    "Promotion",
    "VerdictRow",
]
