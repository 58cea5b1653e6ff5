"""Append-only database outside the lake: verdicts and acceptances of partitions, evaluations and promotions of models,
accounts of persons.

Belongs here: facts that must survive changes of the lake's branches. Does not: data (the lake), metrics and versions
(the tracker), events (Dagster), and validation (`ml_assets.validation`).
"""

from resources.ledger.accounts import Accounts, account_behind, require_safe_address, same_person
from resources.ledger.chain import Head
from resources.ledger.chain import digest_of as row_digest
from resources.ledger.errors import (
    AccountRefused,
    IdentityNeeded,
    IdentityRefused,
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
    Account,
    Archival,
    CheckedBy,
    Decision,
    Demotion,
    DossierRow,
    EvaluationRow,
    GateStatus,
    NewEvaluation,
    NewVerdict,
    Person,
    Promotion,
    Review,
    Revocation,
    RuleOutcome,
    SemanticName,
    TrainedOn,
    VerdictRow,
    author_in_words,
    evaluation_name,
)

__all__ = [
    "Acceptance",
    "Account",
    "AccountRefused",
    "Accounts",
    "Archival",
    "CheckedBy",
    "Decision",
    "Demotion",
    "DossierRow",
    "EvaluationRow",
    "GateStatus",
    "Head",
    "IdentityNeeded",
    "IdentityRefused",
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
    "Person",
    "Promotion",
    "Review",
    "Revocation",
    "RuleOutcome",
    "SemanticName",
    "TrainedOn",
    "VerdictRow",
    "account_behind",
    "author_in_words",
    "evaluation_name",
    "refuse_unprintable",
    "require_safe_address",
    "row_digest",
    "same_person",
]
