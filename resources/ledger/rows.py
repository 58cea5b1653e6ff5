"""Values that the ledger stores and returns. Times are UTC."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

Status = Literal["passed", "warned", "rejected", "accepted"]

CheckedBy = Literal["token", "oidc", "platform", "nobody"]
"""Proof behind a name: a token, an ID token of an OIDC issuer, or none. `platform`: a declared rule decided, not a
person."""
LaunchedIn = Literal["terminal", "pages", "dagster"]
Role = Literal["viewer", "operator", "approver", "admin"]
"""Rights of a person in Dagster's pages behind the proxy, from least to most. Each may do what those before may."""


@dataclass(frozen=True, kw_only=True)
class Person:
    """Person who acts, by the name that the ledger records, with the proof of that name.

    Name, proof and account always travel together, so no call can leave one out. Where a person comes in, the proof is
    checked (`resources.acting`). When it stores a row, the ledger checks that the account is in force, and that it has
    this name and this kind of proof (`resources.ledger.decision_rows`).
    """

    name: str
    checked_by: CheckedBy
    account: int | None
    """Place of the proved account; None if nobody checked the name. A later account may have the same name."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a proof without an account, or an account without a proof."""
        if (self.checked_by in ("token", "oidc")) != (self.account is not None):
            raise ValueError(f"{self.name!a} is checked by {self.checked_by}, but account is {self.account}")

    @classmethod
    def unchecked(cls, name: str) -> Self:
        """Return a person whose name nobody checked: `ML_ASSETS_AUTHOR`, or the account of the operating system."""
        return cls(name=name, checked_by="nobody", account=None)

    @classmethod
    def by_rule(cls, name: str) -> Self:
        """Return the author of a decision that a declared rule made, such as the watch of a canary."""
        return cls(name=name, checked_by="platform", account=None)

    @classmethod
    def proved(cls, account: "Account", by: Literal["token", "oidc"]) -> Self:
        """Return the person of `account`, which a token or an ID token proved."""
        return cls(name=account.name, checked_by=by, account=account.place)

    @property
    def in_words(self) -> str:
        """Name and proof for people. A name without an addition was checked by nobody."""
        added = {"token": " (checked by token)", "oidc": " (checked by OIDC)", "platform": " (by rule)"}
        return self.name + added.get(self.checked_by, "")


@dataclass(frozen=True, kw_only=True)
class Authored:
    """Row of the chain with an author."""

    by: Person

    @property
    def author(self) -> str:
        """Name of the author."""
        return self.by.name

    @property
    def checked_by(self) -> CheckedBy:
        """Proof behind the name."""
        return self.by.checked_by


def author_in_words(row: Authored) -> str:
    """Return the author of a row for people."""
    return row.by.in_words


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Decision of a person that one rejected content may be used nevertheless."""

    table: str
    key: str
    number: int
    """Number of the verdict that it overrides. A later verdict needs an acceptance of its own."""
    content_digest: str
    author: str
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class NewVerdict:
    """Verdict before it is recorded."""

    table: str
    """Table id, such as `datasets/flights`."""
    key: str
    """Partition key, such as `2013-01-01`."""
    content_digest: str
    """Digest of the partition's content."""
    contract_digest: str
    """Digest of the contract that was applied."""
    status: Status
    """Result of the validation: `passed`, `warned` or `rejected`."""
    rows: int
    body_json: str
    """Whole verdict with its findings, for people, as JSON."""
    run_id: str
    branch: str
    """Branch with the validated content. It is kept as evidence after a rejection."""


@dataclass(frozen=True, kw_only=True)
class VerdictRow(NewVerdict):
    """Recorded verdict on a partition. `status` is `accepted` if a person accepted it."""

    number: int
    """1, 2, … per (table, key). The newest verdict decides."""
    at: datetime
    acceptance: Acceptance | None = None

    @property
    def blocks(self) -> bool:
        """True if the partition must not be used, because its verdict is rejected."""
        return self.status == "rejected"


GateStatus = Literal["blessed", "undecided", "rejected"]


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """Window of the lake on which a model was trained and evaluated."""

    commit: str
    """Commit of the lake from which the evaluated run read the partitions. An earlier run with the same fingerprint may
    have trained at another commit, whose columns of the training hold the same values."""
    table: str
    """Id of the feature table."""
    first: str
    """Key of the first partition of the window."""
    last: str
    """Key of the last partition of the window."""
    partitions: int
    """Number of partitions, from the first to the last."""
    begins_with: str = ""
    """Digest of the evaluation of the version that provided the initial weights; empty without such a version."""


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """Outcome of one gate on the whole holdout or on one slice, in words."""

    rule: str
    slice: str
    """`all rows` for the whole holdout."""
    result: str
    """`passed`, `failed`, `undecided` or `not_applicable`."""
    asks: str
    found: str
    would_pass: str
    """Condition under which it would pass; empty if it passed."""


@dataclass(frozen=True, kw_only=True)
class TransitionOutcome:
    """Decision of the gates of one transition."""

    to: str
    """`canary` or `production`."""
    gates: str
    """The gates as declared, as JSON: a promotion counts only a decision of the gates in force."""
    status: GateStatus
    summary: str
    rules: tuple[RuleOutcome, ...]
    """Each gate with its outcome."""


@dataclass(frozen=True, kw_only=True)
class NewEvaluation(Authored):
    """Evaluation of a bundle before it is recorded."""

    model: str
    partition: str
    """Partition of the model whose holdout was used, such as `2013-12-30`."""
    bundle_digest: str
    """Digest of the evaluated bundle."""
    evaluation_digest: str
    """SHA-256 of `evaluation.json`, 64 hex digits. It identifies the evaluation."""
    champion_digest: str | None
    """Digest of the bundle in production at that time; None without one."""
    status: GateStatus
    """Decision of the gates."""
    summary: str
    """Decision of the gates in one sentence."""
    rules: tuple[RuleOutcome, ...]
    """Each gate with its outcome."""
    gates: str = ""
    """The settings by which the gates decided, as JSON: a promotion counts only a decision by the gates in force."""
    transitions: tuple[TransitionOutcome, ...] = ()
    """Decision of the gates of each transition that has its own."""
    launched_in: LaunchedIn = "dagster"
    """`terminal`: the author launched it there. `pages`: the author launched it in Dagster's pages, through the proxy
    that knows persons. `dagster`: a process ran it, whose account says nothing about the person who launched it."""
    report: str
    """Address of the report."""
    run_id: str
    """Id of the Dagster run that made the evaluation."""
    trained_on: TrainedOn
    """Window of the training."""
    launches: tuple[str, ...] = ()
    """SHA-256 of the record of each launch that trained the weights, oldest first: its code, packages and machine."""

    @property
    def proof(self) -> int:
        """Strength of the author's name: 0 if nobody checked it, 1 for the account of a process, 2 for a person's."""
        return 0 if self.checked_by == "nobody" else 1 if self.launched_in == "dagster" else 2


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(NewEvaluation):
    """Recorded evaluation."""

    place: int
    """Place in the ledger. The newest evaluation of a bundle decides."""
    at: datetime

    @property
    def name(self) -> str:
        """Short form of its digest: the name of its folder, and its name for people."""
        return evaluation_name(self.evaluation_digest)


def evaluation_name(digest: str) -> str:
    """Return the first 12 of the 64 hex digits of an evaluation's digest."""
    return digest[:12]


@dataclass(frozen=True, kw_only=True)
class SemanticName:
    """Semantic version of a bundle. No other bundle of the model has the same."""

    place: int
    """Place in the ledger."""
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
class Demotion(Authored):
    """End of a promotion by a person, without another promotion in its place."""

    place: int
    """Place in the ledger."""
    model: str
    bundle_digest: str
    promotion: int
    """Place of the promotion that ended."""
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Promotion(Authored):
    """Decision of a person that a version of a model holds a role."""

    place: int
    """Place in the ledger."""
    model: str
    version: str
    """Number in the registry at that time. A new registry gives the number again, so `bundle_digest` identifies it."""
    alias: str
    """Role, such as `production`. One version holds it at a time: that of the newest promotion."""
    bundle_digest: str
    """Digest of the promoted bundle."""
    evaluation_digest: str
    """Digest of the evaluation behind the promotion."""
    reason: str
    at: datetime
    despite: str = ""
    """Objection to the version's inputs that the person overrode; empty if there was none."""
    rules: str = ""
    """Digest of the recorded rules under which it was decided; empty if none were recorded."""
    returns_to: int | None = None
    """Place of the earlier promotion to which a rollback returned; None for any other promotion."""
    demotion: Demotion | None = None
    """End of the promotion by a person; None if it stands or another promotion followed."""


@dataclass(frozen=True, kw_only=True)
class Archival(Authored):
    """Decision of a person that a version is never promoted again."""

    place: int
    """Place in the ledger."""
    model: str
    version: str
    """Number in the registry at that time."""
    bundle_digest: str
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Review(Authored):
    """Approval or rejection of one evaluation of a bundle by a person."""

    place: int
    """Place in the ledger."""
    model: str
    version: str
    """Number in the registry at that time."""
    bundle_digest: str
    evaluation_digest: str
    """Digest of the reviewed evaluation. A review says nothing about another evaluation of the bundle."""
    approves: bool
    """True: approval; False: rejection."""
    reason: str
    at: datetime
    rules: str = ""
    """Digest of the recorded rules under which it was decided."""


@dataclass(frozen=True, kw_only=True)
class AcceptedPartition(Authored):
    """Entry of the chain for an `Acceptance`."""

    place: int
    """Place in the ledger."""
    table: str
    key: str
    number: int
    """Number of the verdict."""
    content_digest: str
    reason: str
    at: datetime
    level: str = ""
    """`FIRST..LAST` if the person accepted these partitions as a new level of the number of rows."""


@dataclass(frozen=True, kw_only=True)
class Revocation(Authored):
    """End of an account."""

    place: int
    """Place in the ledger."""
    name: str
    ended: int
    """Place of the account that ended."""
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Account(Authored):
    """Account of a person: a token, or the subject of an OIDC issuer, proves who acts."""

    place: int
    """Place in the ledger."""
    name: str
    is_administrator: bool
    """True if the person may add and revoke accounts."""
    token_digest: str = ""
    """SHA-256 of the token; empty for an account by OIDC."""
    issuer: str = ""
    """Address of the OIDC issuer; empty for an account by token."""
    subject: str = ""
    """The issuer's identifier of the person, claim `sub`."""
    audience: str = ""
    """Identifier of the client for which the issuer signs, claim `aud`."""
    reason: str
    at: datetime
    revocation: Revocation | None = None
    """End of the account; None while it is in force."""


@dataclass(frozen=True, kw_only=True)
class RoleRow(Authored):
    """Role of an account in Dagster's pages, in force until the next such row of the account."""

    place: int
    """Place in the ledger."""
    name: str
    of: int
    """Place of the account. A later account of the same name does not have the role."""
    role: Role
    groups: tuple[str, ...] = ()
    """Groups of assets to which the role is limited; empty: all."""
    reason: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class LaunchRow(Authored):
    """Run or backfill that a person launched through the API, or the proxy in front of Dagster's pages."""

    place: int
    """Place in the ledger."""
    launched: str
    """Id of the run or the backfill, from the answer of Dagster's webserver."""
    by_mutation: str
    """Mutation of Dagster's GraphQL, such as `launchRun`."""
    at: datetime


@dataclass(frozen=True, kw_only=True)
class StopRow(Authored):
    """Request of a person to end a run of Dagster."""

    place: int
    """Place in the ledger."""
    stopped: str
    """Id of the run."""
    at: datetime


@dataclass(frozen=True, kw_only=True)
class DossierRow(Authored):
    """Signed dossier of a bundle, on one evaluation."""

    place: int
    """Place in the ledger."""
    model: str
    version: str
    """Number in the registry at that time."""
    bundle_digest: str
    evaluation_digest: str
    """Digest of the evaluation in the dossier."""
    dossier_digest: str
    """SHA-256 of its signature, which covers all other files: the name of its folder among the artifacts."""
    signed_by: str
    """SHA-256 of the public key."""
    at: datetime


@dataclass(frozen=True, kw_only=True)
class RulesRow(Authored):
    """Rules of a model's releases, in force until the next such row of the model."""

    place: int
    """Place in the ledger."""
    model: str
    rules_digest: str
    """SHA-256 of `rules_json`."""
    rules_json: str
    """The `release` section of its `defs.yaml` with all defaults, as canonical JSON."""
    reason: str
    """Reason of the person who accepted the change; empty for the first rules, which no person decided."""
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Redating(Authored):
    """Decision of a person that earlier rows of a model, which a wrong clock dated ahead, count as of this moment."""

    place: int
    """Place in the ledger."""
    model: str
    rows: tuple[int, ...]
    """Places of those rows."""
    reason: str
    at: datetime


AboutBundle = EvaluationRow | SemanticName | Promotion | Demotion | Archival | Review | DossierRow
"""Row about one bundle of a model."""
Decision = AboutBundle | RulesRow | Redating
"""Row of the log of models."""
