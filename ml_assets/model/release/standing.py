"""Standing of each bundle of a model: its decisions in the ledger, and the rows behind its weights in the lake.

Reads one model's rows once; decides nothing. The rows are those of the version's window, their inputs, and the same for
the version that it began with, from an immutable commit. Not here: current verdicts of rows (`tables.guard`), promotion
in spite of rejected rows (`promotion`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from ml_assets.data.tables.guard import Contents, contents_behind
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from resources.lake import ObjectNotFound, RefNotFound, VersionedStore
from resources.ledger import (
    Archival,
    Decision,
    EvaluationRow,
    ModelLog,
    Promotion,
    Review,
    TrainedOn,
    evaluation_name,
)
from resources.words import name_some

PRODUCTION = "production"
"""Role of the version that serves, and its alias in MLflow."""
CANARY = "canary"
"""Role of the version that is next for production, and its alias in MLflow."""


@dataclass(frozen=True, kw_only=True)
class BundleStanding:
    """One bundle of a model."""

    newest: EvaluationRow | None
    """Newest evaluation; None if it was never evaluated."""
    promotion: Promotion | None
    """Newest promotion; None if it was never in production."""
    shown: EvaluationRow | None
    """Evaluation behind its newest promotion, otherwise the newest evaluation. Its version shows it, and its next
    promotion records it. None if it was never evaluated."""
    is_in_production: bool
    canary: Promotion | None
    """Its promotion to canary, while it is the canary."""
    was_taken_back: bool
    """True if its newest promotion to canary ended by a demotion."""
    archival: Archival | None
    """Decision that it is never promoted again, or None."""
    evaluations: tuple[EvaluationRow, ...]
    """All its evaluations, oldest first."""
    reviews: tuple[Review, ...]
    """Approvals and rejections by persons, oldest first."""

    @property
    def stage(self) -> str:
        """`staging`; `canary`; `production`; `replaced` after it; `archived` if a person took it out of use."""
        if self.archival is not None:
            return "archived"
        if self.canary is not None:
            return "canary"
        return "production" if self.is_in_production else "replaced" if self.promotion else "staging"

    @property
    def may_be_promoted(self) -> bool:
        """True if its newest evaluation blessed it, or it was in production before. Never for an archived version."""
        if self.archival is not None:
            return False
        return self.promotion is not None or (self.newest is not None and self.newest.status == "blessed")


@dataclass(frozen=True, kw_only=True)
class BundleStandings:
    """All bundles of one model."""

    in_production: Promotion | None
    promotions: tuple[Promotion, ...]
    """Promotions to production, oldest first."""
    canaries: tuple[Promotion, ...]
    """Promotions to canary, oldest first."""
    evaluations: tuple[EvaluationRow, ...]
    """Oldest first."""
    archivals: tuple[Archival, ...]
    reviews: tuple[Review, ...]

    @classmethod
    def read(cls, log: ModelLog, model: str) -> Self:
        """Read the ledger's current records of `model`."""
        return replace(
            cls.of_stages(log.stage_changes(model)),
            evaluations=tuple(log.evaluations(model)),
            reviews=tuple(log.reviews(model)),
        )

    @classmethod
    def of_stages(cls, changes: Sequence[Decision]) -> Self:
        """Return the standings by changes of stages alone, without evaluations and reviews: enough for who holds what.

        `changes` are those of one model, oldest first.
        """
        promotions = [one for one in changes if isinstance(one, Promotion)]
        held = [one for one in promotions if one.alias == PRODUCTION]
        return cls(
            in_production=held[-1] if held and held[-1].demotion is None else None,
            promotions=tuple(held),
            canaries=tuple(one for one in promotions if one.alias == CANARY),
            evaluations=(),
            archivals=tuple(one for one in changes if isinstance(one, Archival)),
            reviews=(),
        )

    @property
    def canary(self) -> Promotion | None:
        """Promotion of the canary; None if it was demoted, archived or promoted to production, or never was one."""
        newest = self.canaries[-1] if self.canaries else None
        if newest is None or newest.demotion is not None:
            return None
        later = [one.bundle_digest for one in self.promotions if one.place > newest.place]
        later += [one.bundle_digest for one in self.archivals]
        return None if newest.bundle_digest in later else newest

    @property
    def newest_promotion(self) -> Promotion | None:
        """Newest promotion to production, also if it was demoted since; None before the first."""
        return self.promotions[-1] if self.promotions else None

    @property
    def rollback_target(self) -> Promotion | None:
        """Promotion to which a rollback returns; None if there is none.

        Promotions form a stack. A rollback takes off the newest one and all archived ones below it, so that two
        rollbacks go back by two versions, and never to a version that a rollback left. After a demotion, the demoted
        version is the newest one. A version that a person demoted is left out until a person promotes it again.
        """
        stack: list[Promotion] = []
        for one in self.promotions:
            if one.returns_to is None:
                stack.append(one)
                continue
            while stack and stack[-1].place != one.returns_to:
                stack.pop()
        if not stack:
            return None
        left = {stack[-1].bundle_digest} | {one.bundle_digest for one in self.archivals}
        newest = {one.bundle_digest: one for one in self.promotions}
        left |= {digest for digest, one in newest.items() if one.demotion is not None}
        return next((one for one in reversed(stack) if one.bundle_digest not in left), None)

    def before(self, place: int) -> Self:
        """Return the standings before the decision at `place`."""

        def earlier(promotions: tuple[Promotion, ...]) -> tuple[Promotion, ...]:
            return tuple(
                replace(one, demotion=None) if one.demotion and one.demotion.place >= place else one
                for one in promotions
                if one.place < place
            )

        promotions = earlier(self.promotions)
        holds = bool(promotions) and promotions[-1].demotion is None
        return replace(
            self,
            in_production=promotions[-1] if holds else None,
            promotions=promotions,
            canaries=earlier(self.canaries),
            evaluations=tuple(one for one in self.evaluations if one.place < place),
            archivals=tuple(one for one in self.archivals if one.place < place),
            reviews=tuple(one for one in self.reviews if one.place < place),
        )

    def name_of(self, champion_digest: str | None) -> str:
        """Name the champion of an evaluation for people: by its version, otherwise by its bundle."""
        if champion_digest is None:
            return "no other version"
        numbers = [one.version for one in self.promotions if one.bundle_digest == champion_digest]
        return f"version {numbers[-1]}" if numbers else f"bundle {champion_digest[:12]}"

    def of(self, bundle_digest: str) -> BundleStanding:
        evaluations = {
            one.evaluation_digest: one for one in self.evaluations if one.bundle_digest == bundle_digest
        }
        newest = max(evaluations.values(), key=lambda one: one.place, default=None)
        promotion = next(
            (one for one in reversed(self.promotions) if one.bundle_digest == bundle_digest), None
        )
        shown = newest if promotion is None else evaluations[promotion.evaluation_digest]
        held, canary = self.in_production, self.canary
        stages = [one for one in self.canaries if one.bundle_digest == bundle_digest]
        return BundleStanding(
            newest=newest,
            promotion=promotion,
            shown=shown,
            is_in_production=held is not None and held.bundle_digest == bundle_digest,
            canary=canary if canary is not None and canary.bundle_digest == bundle_digest else None,
            was_taken_back=bool(stages) and stages[-1].demotion is not None,
            evaluations=tuple(one for one in self.evaluations if one.bundle_digest == bundle_digest),
            reviews=tuple(one for one in self.reviews if one.bundle_digest == bundle_digest),
            archival=next((one for one in self.archivals if one.bundle_digest == bundle_digest), None),
        )


NAMED = 3
"""Rejected partitions that a sentence names. It counts the others."""


class InputsUnknown(Exception):
    """The training inputs of a version cannot be found any more. The message has the reason."""


class InputsRejected(Exception):
    """Inputs of a version were rejected after it was trained."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        """Compose the message from `refused`: `table key` → reason."""
        super().__init__(in_words(refused))
        self.refused = refused


def in_words(refused: Mapping[str, str], most: int = NAMED) -> str:
    """Return the first `most` of `refused` (`table key` → reason) in words, and the number of the others."""
    return name_some([f"{what} {why}" for what, why in refused.items()], most)


def contents_of(lake: VersionedStore, log: ModelLog, window: TrainedOn) -> Contents:
    """Return all rows behind weights that were trained on `window`.

    If a training began with the weights of another version, the rows behind that version count, too, and so on. Raises
    `InputsUnknown` if the lake no longer holds the window, or the ledger lacks the evaluation of such a version.
    """
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    seen: set[str] = set()
    while True:
        try:
            reader = TableReader(lake, window.commit)
            here = contents_behind(reader, window.table, keys_of(reader, window))
        except (RefNotFound, ObjectNotFound, PartitionMissing) as error:
            raise InputsUnknown(
                f"the lake no longer holds {window.table} at commit {window.commit[:12]}, which it was trained on"
            ) from error
        for table, rows in here.items():
            found[table] |= rows
        if not window.begins_with or window.begins_with in seen:
            return found
        seen.add(window.begins_with)
        row = log.evaluation(window.begins_with)
        if row is None:
            raise InputsUnknown(
                f"the ledger lacks evaluation {evaluation_name(window.begins_with)} of the version it began with: it "
                "is another ledger, or an older copy"
            )
        window = row.trained_on


def keys_of(reader: TableReader, window: TrainedOn) -> Sequence[str]:
    """Return the partitions of `window`, oldest first. Partitions of another cadence between them are not part of it.

    Raises `InputsUnknown` if the lake holds another number of them, `PartitionMissing` and the errors of the lake.
    """
    keys = [key for key in reader.keys(window.table) if window.first <= key <= window.last]
    if len(keys) != window.partitions and window.last in keys:  # some have another cadence
        manifests = reader.manifests(window.table, keys)
        keys = [key for key in keys if manifests[key].cadence == manifests[window.last].cadence]
    if len(keys) != window.partitions:
        raise InputsUnknown(
            f"the lake holds {len(keys)} partitions of {window.table} at commit {window.commit[:12]}, but it "
            f"was trained on {window.partitions}"
        )
    return keys
