"""Rules of a model's releases: the `release` section of a pipeline, and the check of an approval.

Here: who may approve a version, and whether the ledger has the approval that a promotion needs. Not here: gates
(`evaluation`), the promotion itself (`promotion`).
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field

from ml_assets.sections import Section
from resources.ledger import EvaluationRow, Review, author_in_words, same_person

Author = Annotated[str, Field(min_length=1)]
"""Name in the ledger: `ML_ASSETS_AUTHOR`, by default the account of the operating system."""


class ApprovalSection(Section):
    """Approval by a person that a version needs before it goes into production."""

    by: tuple[Author, ...] = ()
    """Names that may approve and reject. Not given: everybody."""
    not_by: tuple[Literal["author", "promoter"], ...] = ("author", "promoter")
    """Persons who may not approve: `author` ran an evaluation of the version, `promoter` promotes it. Empty: everybody
    may approve, also the only person of a project."""


class CanarySection(Section):
    """Stage between staging and production. Nothing serves a canary yet: it lets people look before production."""

    bake_hours: Annotated[float, Field(gt=0, le=24 * 365)]
    """Hours that a version is canary before it may go into production."""

    def end_of_bake(self, since: datetime) -> datetime:
        """Return the moment from which on a canary since `since` may go into production."""
        return since + timedelta(hours=self.bake_hours)


class ReleaseSection(Section):
    """Rules for the promotion of a version, in addition to its gates. Not part of the fingerprint."""

    canary: CanarySection | None = None
    """Stage between staging and production. Not given: a promotion goes straight into production."""

    approval: ApprovalSection | None = None
    """Approval that a version needs. Not given: its evaluation is enough."""


NO_RULES = ReleaseSection()


def why_not_by(person: str, rules: ApprovalSection, evaluations: Sequence[EvaluationRow]) -> str:
    """Return the rule against a review by `person` of a bundle with these evaluations; empty if there is none."""
    if rules.by and not is_among(person, rules.by):
        return f"release.approval.by in defs.yaml allows {', '.join(rules.by)}, not {person}"
    if "author" in rules.not_by and is_among(person, [one.author for one in evaluations]):
        return f"release.approval.not_by in defs.yaml excludes the author, and {person} ran its evaluation"
    return ""


def why_not_approved(
    promoter: str,
    rules: ApprovalSection | None,
    evaluation: EvaluationRow,
    evaluations: Sequence[EvaluationRow],
    reviews: Sequence[Review],
) -> str:
    """Return the reason why `promoter` may not promote a bundle on `evaluation`; empty if nothing is missing.

    `evaluations` and `reviews` are all of this bundle. A review counts only for the evaluation that it names.
    """
    if rules is None:
        return ""
    if why := why_rejected(rules, evaluation, reviews):
        return why
    decided = review_of(evaluation, reviews)
    if decided is None:
        older = " The review of an earlier evaluation does not count." if reviews else ""
        return (
            f"release.approval in defs.yaml asks for an approval of its evaluation {evaluation.name}.{older}"
        )
    said = _person_and_time(decided)
    if refused := why_not_by(decided.author, rules, evaluations):
        return f"the approval by {said} does not count: {refused}."
    if "promoter" in rules.not_by and is_among(promoter, [decided.author]):
        return (
            f"it was approved by {said}, and release.approval.not_by in defs.yaml excludes the promoter: somebody else "
            "has to promote it."
        )
    return ""


def why_rejected(rules: ApprovalSection | None, evaluation: EvaluationRow, reviews: Sequence[Review]) -> str:
    """Return the rejection of `evaluation` by a person; empty if there is none, or without an `approval` section."""
    decided = None if rules is None else review_of(evaluation, reviews)
    if decided is None or decided.approves:
        return ""
    return f"it was rejected by {_person_and_time(decided)}: {decided.reason}."


def is_among(person: str, persons: Sequence[str]) -> bool:
    """Return True if `persons` has this name, also in other case, Unicode form, or with spaces around it."""
    return any(same_person(person, one) for one in persons)


def _person_and_time(review: Review) -> str:
    return f"{author_in_words(review)} at {review.at:%Y-%m-%d %H:%M} UTC"


def review_of(evaluation: EvaluationRow, reviews: Sequence[Review]) -> Review | None:
    """Return the review that decides about an evaluation: its rejection if there is one, otherwise its approval."""
    found = [one for one in reviews if one.evaluation_digest == evaluation.evaluation_digest]
    return next((one for one in found if not one.approves), found[0] if found else None)
