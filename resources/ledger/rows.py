"""The values the ledger takes and hands out. Times are UTC."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Status = Literal["passed", "warned", "rejected", "accepted"]


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """A person's word that one rejected attempt may be used all the same."""

    table: str
    key: str
    attempt: int
    """Exactly this attempt; a later one is judged anew."""
    content_digest: str
    author: str
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class NewVerdict:
    """Verdict on an attempt before it is recorded."""

    table: str
    """Table id, such as `datasets/flights`."""
    key: str
    """Partition key, such as `2013-01-01`."""
    content_digest: str
    """Identity of the partition's content."""
    contract_digest: str
    """Identity of the rules it was judged by."""
    status: Status
    """`passed`, `warned` or `rejected`."""
    rows: int
    body_json: str
    """The whole verdict with its findings, for people."""
    run_id: str
    branch: str
    """Branch of the judged content; kept as evidence where rejected."""


@dataclass(frozen=True, kw_only=True)
class VerdictRow(NewVerdict):
    """One attempt at a partition, as written down. `status` is `accepted` where a person accepted it."""

    attempt: int
    """1, 2, … per (table, key); the newest decides."""
    at: datetime
    acceptance: Acceptance | None = None

    @property
    def blocks(self) -> bool:
        """True where nothing may be built on this partition."""
        return self.status == "rejected"


GateStatus = Literal["blessed", "undecided", "rejected"]


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """The window of the lake that weights were learned from and judged on."""

    commit: str
    """Commit of the lake that holds the partitions as they were read."""
    table: str
    """Feature table."""
    first: str
    """Key of the first partition of the window."""
    last: str
    """Key of its last partition."""
    partitions: int
    """Number of partitions, from the first to the last."""
    begins_with: str = ""
    """Digest of the evaluation of the version whose weights the training began with; empty without one."""


@dataclass(frozen=True, kw_only=True)
class NewEvaluation:
    """One evaluation of a bundle, before it is written down."""

    model: str
    partition: str
    """Partition of the model whose holdout it was judged on, such as `2013-12-30`."""
    bundle_digest: str
    """Digest of the judged bundle."""
    evaluation_digest: str
    """SHA-256 of `evaluation.json`, 64 hex digits: the identity of the evaluation."""
    champion_digest: str | None
    """Bundle in production at that time; None without one."""
    status: GateStatus
    """Decision of the gates."""
    summary: str
    """The decision in one sentence."""
    report: str
    """Address of the report."""
    run_id: str
    """Dagster run that made it."""
    trained_on: TrainedOn | None
    """None in rows of versions of ml-assets that did not record it."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(NewEvaluation):
    """One evaluation, as written down."""

    id: int
    """Grows with each evaluation; of one bundle the newest decides."""
    at: datetime

    @property
    def name(self) -> str:
        """Short form of its digest: the name of its folder, and how people call it."""
        return evaluation_name(self.evaluation_digest)


def evaluation_name(digest: str) -> str:
    """The first 12 of the 64 hex digits."""
    return digest[:12]


@dataclass(frozen=True, kw_only=True)
class SemanticName:
    """The semantic version of a bundle, which no other bundle of the model gets."""

    model: str
    semantic: str
    """`major.minor.patch`."""
    bundle_digest: str
    schema_digest: str
    """Digest of the model's input and output schema."""
    recipe_digest: str
    """Digest of code and configuration."""
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Demotion:
    """A person ended a promotion without another in its place."""

    author: str
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """A person gave a version of a model a role."""

    id: int
    """Grows with each promotion."""
    model: str
    version: str
    """Number in the registry at that time. A registry that begins anew gives it again; `bundle_digest` stays."""
    alias: str
    """The role, such as `production`; it belongs to one version at a time: the newest promoted."""
    bundle_digest: str
    """Digest of the promoted bundle."""
    evaluation_digest: str
    """The evaluation it was promoted on; empty before evaluations had rows."""
    author: str
    reason: str
    at: datetime
    despite: str = ""
    """Objection to the version's inputs that a person overrode; empty if there was none."""
    demotion: Demotion | None = None
    """Its end by a person; None where it stands or another promotion followed."""
