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
    """What is known of an attempt before it is written down."""

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
    """Where the judged content lies; kept as evidence where rejected."""


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


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """A person (or a gate) gave a version of a model a role."""

    id: int
    """Grows with each promotion."""
    model: str
    version: str
    alias: str
    """The role, such as `production`; it belongs to one version at a time: the newest promoted."""
    bundle_digest: str
    """What exactly was promoted."""
    author: str
    reason: str
    at: datetime
