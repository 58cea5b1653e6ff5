"""Record of each bundle of a model in the ledger. Reads one model's rows once; decides nothing."""

from dataclasses import dataclass
from typing import Self

from resources.ledger import EvaluationRow, ModelLog, Promotion

PRODUCTION = "production"
"""The role of the version that serves, and its alias in MLflow."""


@dataclass(frozen=True, kw_only=True)
class BundleStanding:
    """One bundle of a model."""

    newest: EvaluationRow | None
    """Its newest evaluation; None where it was never evaluated."""
    promotion: Promotion | None
    """Its newest promotion; None where it was never in production."""
    shown: EvaluationRow | None
    """Evaluation that its version shows: the one it was promoted on, or else the newest."""
    is_in_production: bool

    @property
    def decided_by(self) -> str:
        """Digest of the evaluation that a promotion rests on: that of its promotion before, or else the newest."""
        if self.promotion is not None:
            return self.promotion.evaluation_digest
        return self.newest.evaluation_digest if self.newest is not None else ""

    @property
    def may_be_promoted(self) -> bool:
        """Its newest evaluation blessed it, or it was in production before."""
        return self.promotion is not None or (self.newest is not None and self.newest.status == "blessed")


@dataclass(frozen=True, kw_only=True)
class BundleStandings:
    """All bundles of one model."""

    in_production: Promotion | None
    promotions: tuple[Promotion, ...]
    """To production, oldest first."""
    evaluations: tuple[EvaluationRow, ...]
    """Oldest first."""

    @classmethod
    def read(cls, log: ModelLog, model: str) -> Self:
        """As the ledger has them now."""
        return cls(
            in_production=log.in_production(model, PRODUCTION),
            promotions=tuple(one for one in log.promotions(model) if one.alias == PRODUCTION),
            evaluations=tuple(log.evaluations(model)),
        )

    def name_of(self, champion_digest: str | None) -> str:
        """The champion of an evaluation, for people: its version, which it was promoted as."""
        if champion_digest is None:
            return "no other version"
        numbers = [one.version for one in self.promotions if one.bundle_digest == champion_digest]
        return f"version {numbers[-1]}" if numbers else f"bundle {champion_digest[:12]}"

    def of(self, bundle_digest: str) -> BundleStanding:
        """The standing of one bundle."""
        evaluations = {
            one.evaluation_digest: one for one in self.evaluations if one.bundle_digest == bundle_digest
        }
        newest = max(evaluations.values(), key=lambda one: one.id, default=None)
        promotion = next(
            (one for one in reversed(self.promotions) if one.bundle_digest == bundle_digest), None
        )
        shown = None if promotion is None else evaluations.get(promotion.evaluation_digest)
        held = self.in_production
        return BundleStanding(
            newest=newest,
            promotion=promotion,
            shown=shown or newest,
            is_in_production=held is not None and held.bundle_digest == bundle_digest,
        )
