"""Rules of a model's releases: the `release` section of a pipeline, and the check of an approval.

Here: gates of single transitions, the canary's share, bake time and watched metrics, who may approve a version, and
whether the ledger has the approval that a promotion needs. Not here: the decision of gates (`evaluation`), the
promotion itself (`promotion`), the comparison of a canary (`ml_assets.use.live`).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from ml_assets.foundation.sections import Section, refuse_at
from ml_assets.model.evaluation.spec import Gate
from ml_assets.model.release.signing_keys import PublicKey, SigningKeyRefused
from ml_assets.model.release.standing import BundleStanding
from resources.ledger import Account, EvaluationRow, Review, author_in_words, same_person

Author = Annotated[str, Field(min_length=1)]
"""Name in the ledger: `ML_ASSETS_AUTHOR`, by default the account of the operating system."""

WatchedMetric: TypeAlias = Literal[
    "error_rate", "latency_ms", "calibration", "logloss", "brier", "accuracy", "mae"
]
OF_REQUESTS: tuple[WatchedMetric, ...] = ("error_rate", "latency_ms")
"""Metrics of requests. The others need labels."""
_LARGEST_LOGLOSS = 5.0
"""Nats; a label whose probability was 0.7 % costs as much."""


class ApprovalSection(Section):
    """Approval by a person that a version needs before it goes into production."""

    by: tuple[Author, ...] = ()
    """Names that may approve and reject. Not given: everybody."""
    not_by: tuple[Literal["author", "promoter"], ...] = ("author", "promoter")
    """Persons who may not approve: `author` ran an evaluation of the version, `promoter` promotes it. Empty: everybody
    may approve, also the only person of a project."""
    processes: tuple[Author, ...] = ()
    """Accounts of processes, such as Dagster's daemon, whose evaluations may be approved. Name one only if nobody in
    `by` can launch in Dagster's pages without the proxy. Not given: a person evaluates again, in a terminal or through
    the proxy."""

    @model_validator(mode="after")
    def _processes_need_reviewers(self) -> Self:
        if self.processes and not self.by:
            refuse_at(
                type(self).__name__,
                {
                    (
                        "processes",
                    ): "needs `by`: the persons who may approve and cannot launch in Dagster's pages"
                },
            )
        return self


class CanaryWatchSection(Section):
    """Metric that takes a canary back as soon as it is shown to be worse than the champion by more than allowed."""

    metric: WatchedMetric
    """`error_rate`: share of requests that end with an error. `latency_ms`: a quantile of their latency. With labels,
    as they arrive: `calibration` (distance of the mean prediction from the observed rate), `logloss`, `brier`,
    `accuracy`, `mae`."""
    no_worse_by: Annotated[float, Field(ge=0)]
    """Amount by which the canary may be worse than the champion, in the unit of the metric. Above 0; for `latency_ms`
    also 0."""
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Quantile of the latency, by default 0.95. For `latency_ms` alone."""
    largest: Annotated[float, Field(gt=0)] | None = None
    """Losses of a row above this value count as this value: for `logloss` (default 5 nats) and `mae` (required, in the
    unit of the label). Smaller values find a regression sooner."""

    @property
    def range(self) -> float:
        """Largest loss of a row."""
        return self.largest or (_LARGEST_LOGLOSS if self.metric == "logloss" else 1.0)

    @property
    def of_latency(self) -> float:
        """Quantile of the latency."""
        return self.quantile or 0.95

    @property
    def needs_labels(self) -> bool:
        """True if the metric compares predictions with labels."""
        return self.metric not in OF_REQUESTS

    @model_validator(mode="after")
    def _keys_fit_the_metric(self) -> Self:
        why: dict[tuple[str | int, ...], str] = {}
        if self.quantile is not None and self.metric != "latency_ms":
            why["quantile",] = f"is for metric latency_ms, and this metric is {self.metric}: remove it"
        if self.largest is not None and self.metric not in ("logloss", "mae"):
            why["largest",] = f"is for metrics logloss and mae, and this metric is {self.metric}: remove it"
        if self.metric == "mae" and self.largest is None:
            why["metric",] = "mae needs `largest`: the error of a row above which it counts as that much"
        if self.metric == "latency_ms":
            pass
        elif self.no_worse_by == 0:
            why["no_worse_by",] = (
                "is 0, and a difference of any size would take the canary back: give the smallest difference that "
                "matters"
            )
        elif self.no_worse_by >= self.range:
            why["no_worse_by",] = (
                f"is {self.no_worse_by:g}, and {self.metric} cannot differ by more than {self.range:g}"
            )
        refuse_at(type(self).__name__, why)
        return self


class CanarySection(Section):
    """Stage between staging and production, for a time, for a share of the entities, or both."""

    bake_hours: Annotated[float, Field(gt=0, le=24 * 365)] | None = None
    """Hours that a version is canary before it may go into production. Not given: the next promotion may follow at
    once."""
    share: Annotated[float, Field(gt=0, le=0.5)] | None = None
    """Share of the entities whose requests the canary answers. Not given: a server only logs what it predicts."""
    by: tuple[str, ...] = ()
    """Columns of the feature table that name the entity, such as an aircraft: all its requests go to one version."""
    watch: tuple[CanaryWatchSection, ...] = ()
    """Metrics that take the canary back automatically. Not given: only people do."""
    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Largest probability that a canary which is no worse than allowed is ever taken back, over all metrics together,
    however often they are compared."""
    every_seconds: Annotated[int, Field(ge=1, le=24 * 3600)] = 60
    """Time between two comparisons."""

    def end_of_bake(self, since: datetime) -> datetime:
        """Return the moment from which on a canary since `since` may go into production."""
        return since + timedelta(hours=self.bake_hours or 0)

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> Self:
        why: dict[tuple[str | int, ...], str] = {}
        if self.bake_hours is None and self.share is None:
            why["bake_hours",] = "is missing, and so is `share`: give hours, a share of the entities, or both"
        if self.share is not None and not self.by:
            why["by",] = "is missing: name the columns of the entity, all of whose requests go to one version"
        if self.share is None and self.by:
            why["by",] = "assigns entities to a share of the traffic: give `share`, or remove it"
        named: list[tuple[WatchedMetric, float]] = []
        for place, one in enumerate(self.watch):
            if self.share is None:
                why["watch", place, "metric"] = (
                    f"{one.metric} compares requests that the canary answered with those of the champion, and without "
                    "`share` it answers none: give `share` and `by`"
                )
            elif (one.metric, one.of_latency) in named:
                why["watch", place, "metric"] = f"{one.metric} is watched twice: remove one of them"
            named.append((one.metric, one.of_latency))
        refuse_at(type(self).__name__, why)
        return self


class DossierSection(Section):
    """Signed dossier that a version needs before it becomes canary or goes into production."""

    signed_by: Annotated[tuple[str, ...], Field(min_length=1, examples=[["-----BEGIN PUBLIC KEY-----…"]])]
    """Public keys in PEM, as `ml-assets dossier keygen` writes them. One of them must have signed the dossier."""

    @field_validator("signed_by")
    @classmethod
    def _are_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(PublicKey.parse(one, "a key of signed_by").pem for one in keys)
        except SigningKeyRefused as error:
            raise ValueError(str(error)) from error

    @property
    def keys(self) -> tuple[PublicKey, ...]:
        return tuple(PublicKey(one) for one in self.signed_by)


class TransitionGates(Section):
    """Gates that a version must pass for one transition, in addition to those of `evaluation`.

    Each evaluation measures them with the others. They do not decide whether the version is registered.
    """

    canary: tuple[Gate, ...] = ()
    """For the transition from staging to canary."""
    production: tuple[Gate, ...] = ()
    """For the transition into production."""


class ReleaseSection(Section):
    """Rules for the promotion of a version, in addition to its gates. Not part of the fingerprint."""

    gates: TransitionGates | None = None
    """Gates of single transitions. Not given: the gates of `evaluation` are enough for each."""

    signature: Literal["compatible"] | None = None
    """`compatible`: a version is refused as canary and for production if it would break clients of the version in
    production. Not given: `promote` only says what breaks."""

    canary: CanarySection | None = None
    """Stage between staging and production. Not given: a promotion goes straight into production."""

    approval: ApprovalSection | None = None
    """Approval that a version needs. Not given: its evaluation is enough."""

    dossier: DossierSection | None = None
    """Signed dossier that a version needs, of the evaluation that promotes it. Not given: none."""

    def gates_before(self, role: str) -> tuple[Gate, ...]:
        """Return the gates of the transition into `role`, `canary` or `production`."""
        if self.gates is None:
            return ()
        return self.gates.canary if role == "canary" else self.gates.production

    @model_validator(mode="after")
    def _a_canary_has_gates(self) -> Self:
        if self.gates_before("canary") and self.canary is None:
            said = "is for the transition to the canary, and there is no `canary` section: add it, or remove this"
            refuse_at(type(self).__name__, {("gates", "canary"): said})
        return self


class Rules(ReleaseSection):
    """All rules that decide about releases of a model.

    The ledger records them, because anybody can edit a copy of `defs.yaml`.
    """

    evaluation: dict[str, Any] | None = None
    """Settings of `evaluation` by which gates decide, as JSON values; None if the rules leave them open."""

    @classmethod
    def of(cls, release: ReleaseSection, evaluation: Mapping[str, Any]) -> Self:
        """Return the rules of a pipeline's sections `release` and `evaluation` (`EvaluationSpec.deciding`)."""
        return cls.model_validate({**release.model_dump(mode="json"), "evaluation": {**evaluation}})


NO_RULES = Rules()


def gates_as_json(gates: Sequence[Gate]) -> str:
    """Return gates as an evaluation records them: all keys with their defaults, as JSON in one order."""
    return json.dumps([gate.model_dump(mode="json") for gate in gates], sort_keys=True)


def deciding_as_json(evaluation: Mapping[str, Any]) -> str:
    """Return `EvaluationSpec.deciding` as an evaluation records it: JSON in one order."""
    return json.dumps(evaluation, sort_keys=True)


def why_not_past_gates(rules: Rules, role: str, evaluation: EvaluationRow) -> str:
    """Return why `evaluation` does not pass the gates in force, with those of the transition into `role`; empty if it
    does."""
    gates, named = rules.gates_before(role), f"release.gates.{role} in defs.yaml"
    found = next((one for one in evaluation.transitions if one.to == role), None)
    again = f"which reuses the training: ml-assets launch {evaluation.model} {evaluation.partition}"
    if gates and (found is None or found.gates != gates_as_json(gates)):
        return (
            f"its evaluation {evaluation.name} did not decide about the gates of {named}, which were declared later: "
            f"evaluate it again, {again}"
        )
    if rules.evaluation is not None and not _decided_by(rules.evaluation, evaluation):
        return (
            f"its evaluation {evaluation.name} was decided by other gates than those in force. Evaluate it again, "
            f"{again}"
        )
    if not gates or found is None or found.status == "blessed":
        return ""
    failed = [
        f"“{one.rule}” ({one.slice}): {one.found}"
        + (f"; would pass: {one.would_pass}" if one.would_pass else "")
        for one in found.rules
        if one.result in ("failed", "undecided")
    ]
    return (
        f"its evaluation {evaluation.name} does not pass {named}. {'; '.join(failed) or found.summary}. Materialize "
        "the model on a later date, promote another version, or change these gates"
    )


def _decided_by(settings: Mapping[str, Any], evaluation: EvaluationRow) -> bool:
    """Return True if these settings decided about an evaluation. It may have measured more than the gates ask for."""
    made: dict[str, Any] = json.loads(evaluation.gates or "{}")
    measured = {"slices", "bias", "metrics"}
    return all(made.get(name) == settings[name] for name in settings.keys() - measured) and all(
        one in made.get(name, []) for name in measured for one in settings.get(name, [])
    )


def why_not_by(
    person: str,
    rules: ApprovalSection,
    evaluations: Sequence[EvaluationRow],
    where: str = "in defs.yaml",
) -> str:
    """Return the rule against a review by `person` of a bundle with these evaluations; empty if there is none.

    `where` says for the error who has the rules.
    """
    if rules.by and not is_among(person, rules.by):
        return f"release.approval.by {where} allows {', '.join(rules.by)}, not {person}"
    if "author" in rules.not_by and is_among(person, [one.author for one in evaluations]):
        return f"release.approval.not_by {where} excludes the author, and {person} ran its evaluation"
    return ""


def why_unchecked(
    rules: ApprovalSection,
    evaluation: EvaluationRow,
    accounts: Sequence[Account],
    where: str = "in defs.yaml",
) -> str:
    """Return why nobody may approve an evaluation whose author is not known; empty if that is allowed.

    Without accounts nobody is checked, and the commands only say so. `where` says for the error who has the rules.
    """
    if not accounts or "author" not in rules.not_by or evaluation.proof == 2:
        return ""
    process = ""
    if evaluation.proof == 1:
        if is_among(evaluation.author, rules.processes):
            return ""
        who = (
            f"a process with the account of {evaluation.author} ran its evaluation {evaluation.name}, and nobody knows "
            "who launched it in Dagster's pages"
        )
        process = (
            ". To trust the process, whoever may approve accepts rules with it in release.approval.processes"
        )
    else:
        who = f"nobody checked that {evaluation.author} ran its evaluation {evaluation.name}"
    return (
        f"{who}, and release.approval.not_by {where} excludes the author. Evaluate it again with ML_ASSETS_TOKEN set, "
        f"which reuses the training: ml-assets launch {evaluation.model} {evaluation.partition}{process}"
    )


def why_not_approved(
    promoter: str,
    rules: ApprovalSection | None,
    evaluation: EvaluationRow,
    found: BundleStanding,
    accounts: Sequence[Account],
) -> str:
    """Return the reason why `promoter` may not promote the bundle `found` on `evaluation`; empty if nothing is missing.

    `accounts` are all of the ledger. A review counts only for the evaluation that it names. Ask `why_rejected` first.
    """
    if rules is None:
        return ""
    decided = deciding_review(evaluation, found, accounts)
    if decided is None:
        if (void := _review_of(evaluation, found.reviews)) is not None:
            why = why_void(void, found.evaluations, found.reviews, accounts)
            return f"the approval by {_person_and_time(void)} does not count: {why}."
        older = " The review of an earlier evaluation does not count." if found.reviews else ""
        return (
            f"release.approval in defs.yaml asks for an approval of its evaluation {evaluation.name}.{older}"
        )
    said = _person_and_time(decided)
    if refused := why_not_by(decided.author, rules, found.evaluations):
        return f"the approval by {said} does not count: {refused}."
    if "promoter" in rules.not_by and is_among(promoter, [decided.author]):
        return (
            f"it was approved by {said}, and release.approval.not_by in defs.yaml excludes the promoter: somebody else "
            "has to promote it."
        )
    return ""


def why_rejected(rules: ApprovalSection | None, evaluation: EvaluationRow, reviews: Sequence[Review]) -> str:
    """Return the rejection of `evaluation` by a person; empty if there is none, or without an `approval` section."""
    decided = None if rules is None else _review_of(evaluation, reviews)
    if decided is None or decided.approves:
        return ""
    return f"it was rejected by {_person_and_time(decided)}: {decided.reason}."


def why_void(
    review: Review,
    evaluations: Sequence[EvaluationRow],
    reviews: Sequence[Review],
    accounts: Sequence[Account],
) -> str:
    """Return why an approval does not count any more; empty if it counts. A rejection always counts.

    `evaluations` and `reviews` are all of the bundle, oldest first, `accounts` all of the ledger. An approval ends with
    the next other evaluation, also if the approved one is recorded again after it. With accounts, the account behind
    the approval must be in force.
    """
    if not review.approves:
        return ""
    read = next(
        (
            one
            for one in reversed(evaluations)
            if one.place < review.place and one.evaluation_digest == review.evaluation_digest
        ),
        None,
    )
    for one in evaluations:
        if one.place > review.place and (read is None or _decided(one) != _decided(read)):
            return f"evaluated again at {one.at:%Y-%m-%d %H:%M:%S} UTC ({one.name})"
    for one in reviews:
        if (
            not one.approves
            and one.evaluation_digest == review.evaluation_digest
            and one.place > review.place
        ):
            return f"rejected at {one.at:%Y-%m-%d %H:%M:%S} UTC by {author_in_words(one)}"
    if not accounts:
        return ""
    if review.checked_by == "nobody":
        return f"nobody checked that it was {review.author}"
    account = next((one for one in accounts if one.place == review.by.account), None)
    if account is None:
        return f"{review.author} had no account then"
    if (ended := account.revocation) is None:
        return ""
    return (
        f"the account of {account.name} was revoked at {ended.at:%Y-%m-%d %H:%M} UTC by {ended.author}: "
        f"{ended.reason}"
    )


def _decided(evaluation: EvaluationRow) -> tuple[str, str]:
    """Return the identity of an evaluation: its content, and the settings by which its gates decided."""
    return evaluation.evaluation_digest, evaluation.gates


def is_among(person: str, persons: Sequence[str]) -> bool:
    """Return True if `persons` has this name, also in other case, Unicode form, or with spaces around it."""
    return any(same_person(person, one) for one in persons)


def deciding_review(
    evaluation: EvaluationRow, found: BundleStanding, accounts: Sequence[Account]
) -> Review | None:
    """Return the review that decides about an evaluation of the bundle `found`, or None; void approvals do not."""
    valid = [one for one in found.reviews if not why_void(one, found.evaluations, found.reviews, accounts)]
    return _review_of(evaluation, valid)


def _person_and_time(review: Review) -> str:
    return f"{author_in_words(review)} at {review.at:%Y-%m-%d %H:%M} UTC"


def _review_of(evaluation: EvaluationRow, reviews: Sequence[Review]) -> Review | None:
    """Return the review that decides about an evaluation: its rejection if there is one, otherwise its approval."""
    found = [one for one in reviews if one.evaluation_digest == evaluation.evaluation_digest]
    return next((one for one in found if not one.approves), found[0] if found else None)
