"""Desk of a reviewer: versions that wait, facts of a version, and the decision. No page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ml_assets.context import decisions
from ml_assets.foundation.links import REPORTS, report_name
from ml_assets.foundation.reports.page import WrittenPage
from ml_assets.model.release.history import void_approvals
from ml_assets.model.release.registry import RegisteredVersion, VersionMissing
from ml_assets.model.release.releases import Releases, registry_of, releases_of
from ml_assets.model.release.reviews import waiting
from ml_assets.model.release.rules import Rules, deciding_review, why_not_by, why_unchecked
from ml_assets.model.release.rules_in_force import RulesLog, in_force
from ml_assets.model.steps.record import checked_file
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.pages.difference_page import difference_page
from ml_assets.pages.served import FORMS, SERVED
from ml_assets.pages.version_difference import compare_versions
from resources.ledger import EvaluationRow, Person, Promotion, Review
from resources.platform import Platform

SHOWN_REVIEWS = 20
"""Newest reviews on the first page."""


class NotOnThisDesk(Exception):
    """A model that is not declared, a version that does not exist, or one that was never evaluated."""


@dataclass(frozen=True, kw_only=True)
class ReviewedVersion:
    """Facts for the review of one version."""

    version: RegisteredVersion
    stage: str
    evaluation: EvaluationRow
    """Newest evaluation, to which a review applies."""
    report: str
    """Folder of its report among the artifacts."""
    champion: Promotion | None
    """Promotion of the version in production; None without one."""
    reviews: tuple[Review, ...]
    """All reviews of this bundle, oldest first."""
    decided: Review | None
    """Review that decides about the newest evaluation; None while it waits."""
    rules: Rules
    why_unconfirmed: str
    """Reason why newer rules than those in force do not count; empty without such rules."""
    unchecked: tuple[str, ...]
    """Names under which somebody ran an evaluation of this bundle without a check, sorted."""

    @property
    def next_command(self) -> str:
        """Command that promotes the version; empty unless its approval counts."""
        is_approved = (
            self.decided is not None and self.decided.approves and self.stage in ("staging", "canary")
        )
        promote = f"ml-assets promote {self.version.model} {self.version.number} --reason '…'"
        return promote if is_approved else ""


class ReviewDesk:
    """Questions and decisions of reviewers about the declared models."""

    def __init__(self, platform: Platform, specs: Mapping[str, PipelineSpec]) -> None:
        """`specs` has the declaration of each model by its name, as of the start of this process. The rules come from
        the ledger, at each question."""
        self.platform = platform
        self._specs = specs

    @property
    def releases(self) -> Releases:
        return releases_of(self.platform)

    def waiting(self) -> list[tuple[RegisteredVersion, EvaluationRow]]:
        """Return the versions of all models that wait for an approval, each with the evaluation to review."""
        return [
            one for name in sorted(self._specs) for one in waiting(self.releases, name, self._rules(name))
        ]

    def asks_for_approvals(self) -> list[str]:
        return sorted(name for name in self._specs if self._rules(name).approval is not None)

    def newest_reviews(self) -> list[Review]:
        """Return the newest reviews of all models, newest first."""
        log = self.platform.ledger.models
        every = [one for name in self.asks_for_approvals() for one in log.reviews(name)]
        return sorted(every, key=lambda one: one.place, reverse=True)[:SHOWN_REVIEWS]

    def facts(self, model: str, number: int) -> ReviewedVersion:
        """Return the facts of a version. Raise `NotOnThisDesk`."""
        self._spec(model)
        version = self._version(model, number)
        releases = self.releases
        standing = releases.standings(model).of(version.bundle_digest)
        if standing.newest is None:
            raise NotOnThisDesk(f"{model} version {number} was never evaluated")
        row = standing.newest
        return ReviewedVersion(
            version=version,
            stage=standing.stage,
            evaluation=row,
            report=report_name(row.model, row.partition, row.evaluation_digest),
            champion=self.platform.ledger.models.in_production(model),
            reviews=standing.reviews,
            decided=deciding_review(row, standing, releases.ledger.accounts.all()),
            rules=self._rules(model),
            why_unconfirmed=RulesLog.read(self.platform.ledger, model).why_unconfirmed,
            unchecked=tuple(
                sorted({one.author for one in standing.evaluations if one.checked_by == "nobody"})
            ),
        )

    def objection_to(self, person: Person, facts: ReviewedVersion) -> str:
        """Return why `person` may not review the version; empty if nothing speaks against it."""
        approval = facts.rules.approval
        if approval is None:
            return f"{facts.version.model} has no `approval` under `release` in defs.yaml: nothing waits for a review."
        evaluations = self.releases.standings(facts.version.model).of(facts.version.bundle_digest).evaluations
        why = why_not_by(person.name, approval, evaluations)
        return f"You may not review this version: {why}." if why else ""

    def why_unchecked(self, facts: ReviewedVersion) -> str:
        """Return why nobody may approve the version, because nobody checked who evaluated it; empty otherwise."""
        approval, accounts = facts.rules.approval, self.platform.ledger.accounts.all()
        return why_unchecked(approval, facts.evaluation, accounts) if approval is not None else ""

    def void(self, reviews: Sequence[Review]) -> Mapping[int, str]:
        """Return place → reason of those reviews that are approvals and count no more."""
        log, accounts = self.platform.ledger.models, self.platform.ledger.accounts.all()
        return {
            place: why
            for model in {one.model for one in reviews}
            for place, why in void_approvals(log.decisions(model), accounts).items()
        }

    def difference(self, model: str, number: int) -> WrittenPage:
        """Compare the version in production with a version. Takes seconds: both are scored. Raise `NotOnThisDesk`."""
        spec, version = self._spec(model), self._version(model, number)
        champion = self.platform.ledger.models.in_production(model)
        versions = registry_of(self.platform).versions(model)
        before = [one for one in versions if champion and one.bundle_digest == champion.bundle_digest]
        if not before:
            raise NotOnThisDesk(f"no version of {model} is in production: there is nothing to compare with")
        return difference_page(compare_versions(spec, self.platform, before[0], version))

    def review(
        self, model: str, number: int, *, person: Person, approves: bool, reason: str, read: str
    ) -> Review:
        """Record a review of the evaluation with the digest `read`. Raise `NotReviewable` and `LedgerError`."""
        self._spec(model)
        return decisions.review(
            self.releases,
            model,
            number,
            approves=approves,
            by=person,
            reason=reason,
            rules=self._rules(model),
            read=read,
        ).review

    def report_file(self, path: str) -> tuple[str, str]:
        """Return content and media type of a file of a report; `path` is below the folder of reports.

        The content is made from `evaluation.json` after a check against the ledger's digest, to which an approval
        binds. Raise `NotOnThisDesk` and `ReportUnreadable`.
        """
        folder, _, file = path.rpartition("/")
        model = folder.partition("/")[0]
        kinds = SERVED[REPORTS]
        rows = (
            self.platform.ledger.models.evaluations(model) if file in kinds and model in self._specs else []
        )
        named = {report_name(one.model, one.partition, one.evaluation_digest): one for one in rows}
        row = named.get(f"{REPORTS}/{folder}")
        if row is None:
            raise NotOnThisDesk(f"no such report: report addresses have the form {FORMS[REPORTS]}")
        return self._reported(row, file), kinds[file]

    @lru_cache(maxsize=16)  # noqa: B019 - one desk lives as long as its process
    def _reported(self, row: EvaluationRow, file: str) -> str:
        return checked_file(self.platform, row, file)

    def _rules(self, model: str) -> Rules:
        """Return the rules in force; before the first registration, those of the declaration."""
        return in_force(RulesLog.read(self.platform.ledger, model), self._spec(model).rules)

    def _spec(self, model: str) -> PipelineSpec:
        if model not in self._specs:
            raise NotOnThisDesk(f"no model is named '{model}'; there are: {', '.join(sorted(self._specs))}")
        return self._specs[model]

    def _version(self, model: str, number: int) -> RegisteredVersion:
        try:
            return self.releases.version(model, number)
        except VersionMissing as missing:
            raise NotOnThisDesk(str(missing)) from missing
