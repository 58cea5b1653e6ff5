"""The memory outside the lake's branches: verdicts of partitions and acceptances; evaluations and promotions of
models. Append-only.

What belongs here: facts that must survive whatever happens to a branch. What does not: data (the lake),
metrics and versions (the tracker), events (Dagster), and any judging (`ml_assets.validation`).
"""

from resources.ledger.errors import LedgerBusy, LedgerError, LedgerUnavailable, NothingToAccept
from resources.ledger.ledger import Ledger
from resources.ledger.model_log import ModelLog
from resources.ledger.rows import (
    Acceptance,
    Demotion,
    EvaluationRow,
    GateStatus,
    NewEvaluation,
    NewVerdict,
    Promotion,
    SemanticName,
    TrainedOn,
    VerdictRow,
    evaluation_name,
)

__all__ = [
    "Acceptance",
    "Demotion",
    "EvaluationRow",
    "GateStatus",
    "Ledger",
    "LedgerBusy",
    "LedgerError",
    "LedgerUnavailable",
    "ModelLog",
    "NewEvaluation",
    "NewVerdict",
    "NothingToAccept",
    "Promotion",
    "SemanticName",
    "TrainedOn",
    "VerdictRow",
    "evaluation_name",
]
