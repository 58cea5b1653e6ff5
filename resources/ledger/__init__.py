"""Append-only database outside the lake: verdicts and acceptances of partitions, evaluations and promotions of models.

Belongs here: facts that must survive changes of the lake's branches. Does not: data (the lake), metrics and versions
(the tracker), events (Dagster), and validation (`ml_assets.validation`).
"""

from resources.ledger.chain import Head
from resources.ledger.errors import (
    LedgerBusy,
    LedgerChanged,
    LedgerError,
    LedgerOfAnotherLake,
    LedgerOfAnotherVersion,
    LedgerUnavailable,
    NothingToAccept,
    NotPrintable,
    refuse_unprintable,
)
from resources.ledger.ledger import Ledger
from resources.ledger.model_log import ModelLog
from resources.ledger.rows import (
    Acceptance,
    Archival,
    Decision,
    Demotion,
    EvaluationRow,
    GateStatus,
    NewEvaluation,
    NewVerdict,
    Promotion,
    Review,
    RuleOutcome,
    SemanticName,
    TrainedOn,
    VerdictRow,
    evaluation_name,
)

__all__ = [
    "Acceptance",
    "Archival",
    "Decision",
    "Demotion",
    "EvaluationRow",
    "GateStatus",
    "Head",
    "Ledger",
    "LedgerBusy",
    "LedgerChanged",
    "LedgerError",
    "LedgerOfAnotherLake",
    "LedgerOfAnotherVersion",
    "LedgerUnavailable",
    "ModelLog",
    "NewEvaluation",
    "NewVerdict",
    "NotPrintable",
    "NothingToAccept",
    "Promotion",
    "Review",
    "RuleOutcome",
    "SemanticName",
    "TrainedOn",
    "VerdictRow",
    "evaluation_name",
    "refuse_unprintable",
]
