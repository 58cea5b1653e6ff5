"""`ModelLog`: append-only log of models: evaluations, semantic versions, promotions, demotions."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from resources.ledger.database import LedgerDatabase
from resources.ledger.rows import Demotion, EvaluationRow, NewEvaluation, Promotion, SemanticName
from resources.ledger.tables import demotions, evaluations, promotions, semantic_names, verdicts

TURN_PATIENCE_SECONDS = 60.0
"""Seconds that an evaluation or promotion waits for others of the same model. Each is one short transaction."""


class ModelLog:
    """Part of the ledger on models. Every method may raise `LedgerError`."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    # --- evaluations ---

    def record_evaluation(self, new: NewEvaluation, at: datetime | None = None) -> EvaluationRow:
        """Append one evaluation and return its row.

        If the newest evaluation of the bundle has the same digest, return that row instead: a retried step repeats its
        evaluation. No promotion of the model is decided meanwhile.
        """
        facts: dict[str, Any] = {**vars(new), "at": at or datetime.now(UTC)}

        def work(connection: sa.Connection) -> EvaluationRow:
            found = connection.execute(_newest(new.model, new.bundle_digest)).mappings().first()
            if found is not None and found["evaluation_digest"] == new.evaluation_digest:
                return EvaluationRow(**found)
            row_id = connection.execute(
                sa.insert(evaluations).returning(evaluations.c.id), facts
            ).scalar_one()
            return EvaluationRow(id=row_id, **facts)

        with self._turn(new.model):
            return self._database.write(work)

    def newest_evaluation(self, model: str, bundle_digest: str) -> EvaluationRow | None:
        """Return the newest evaluation of a bundle, which decides about it, or None."""
        with self._database.reading() as connection:
            row = connection.execute(_newest(model, bundle_digest)).mappings().first()
        return None if row is None else EvaluationRow(**row)

    def evaluation(self, digest: str) -> EvaluationRow | None:
        """Return the evaluation with this digest, of any model, or None."""
        query = sa.select(evaluations).where(evaluations.c.evaluation_digest == digest)
        with self._database.reading() as connection:
            row = connection.execute(query.order_by(evaluations.c.id.desc()).limit(1)).mappings().first()
        return None if row is None else EvaluationRow(**row)

    def evaluations(self, model: str) -> list[EvaluationRow]:
        """Return all evaluations of a model, oldest first."""
        query = sa.select(evaluations).where(evaluations.c.model == model).order_by(evaluations.c.id)
        with self._database.reading() as connection:
            return [EvaluationRow(**row) for row in connection.execute(query).mappings()]

    # --- semantic versions ---

    def name_version(
        self,
        model: str,
        bundle_digest: str,
        *,
        schema_digest: str,
        recipe_digest: str,
        choose: Callable[[Sequence[SemanticName]], str],
        allow: Callable[[], object] | None = None,
    ) -> str:
        """Return the semantic version of a bundle. If it has none, append the version that `choose` returns.

        `choose` receives all semantic versions of the model, oldest first, and must return a new version. If several
        writers choose at once, one succeeds and the others choose again. `allow` runs while no verdict and no
        evaluation of the model can be recorded. It may read the ledger; if it raises, nothing is appended.
        """
        facts = {
            "model": model,
            "bundle_digest": bundle_digest,
            "schema_digest": schema_digest,
            "recipe_digest": recipe_digest,
        }
        query = sa.select(semantic_names).where(semantic_names.c.model == model).order_by(semantic_names.c.at)

        def work(connection: sa.Connection) -> str:
            if allow is not None:
                allow()
            known = [SemanticName(**row) for row in connection.execute(query).mappings()]
            for one in known:
                if one.bundle_digest == bundle_digest:
                    return one.semantic
            semantic = choose(known)
            new = {**facts, "semantic": semantic, "at": datetime.now(UTC)}
            connection.execute(sa.insert(semantic_names), new)
            return semantic

        with self._turn(model):
            return self._database.write(work, still=(verdicts,))

    # --- promotions ---

    def promote(
        self,
        model: str,
        version: str,
        alias: str,
        *,
        author: str,
        reason: str,
        bundle_digest: str,
        evaluation_digest: str,
        despite: str = "",
        at: datetime | None = None,
        allow: Callable[[], object] | None = None,
    ) -> Promotion:
        """Append a promotion and return it: from `at` on, `version` holds the role `alias` of `model`.

        `allow` runs while no verdict, and no evaluation or promotion of the model, can be recorded. It may read the
        ledger; if it raises, nothing is appended.
        """
        facts: dict[str, Any] = {
            "model": model,
            "version": version,
            "alias": alias,
            "bundle_digest": bundle_digest,
            "evaluation_digest": evaluation_digest,
            "author": author,
            "reason": reason,
            "despite": despite,
            "at": at or datetime.now(UTC),
        }

        def work(connection: sa.Connection) -> Promotion:
            if allow is not None:
                allow()
            row_id = connection.execute(sa.insert(promotions).returning(promotions.c.id), facts).scalar_one()
            return Promotion(id=row_id, **facts)

        with self._turn(model):
            return self._database.write(work, still=(verdicts,))

    def demote(
        self, promotion: Promotion, *, author: str, reason: str, at: datetime | None = None
    ) -> Demotion:
        """Append the end of `promotion`. Then no version holds its role. A second demotion changes nothing."""
        facts: dict[str, Any] = {"author": author, "reason": reason, "at": at or datetime.now(UTC)}
        known = sa.select(*_ended).where(demotions.c.promotion == promotion.id)

        def work(connection: sa.Connection) -> Demotion:
            found = connection.execute(known).mappings().first()
            if found is not None:
                return Demotion(**found)
            connection.execute(sa.insert(demotions), {**facts, "promotion": promotion.id})
            return Demotion(**facts)

        return self._database.write(work)

    def promoted_models(self) -> list[str]:
        """Return the names of all models with a promotion, sorted."""
        with self._database.reading() as connection:
            return list(
                connection.execute(sa.select(promotions.c.model).distinct().order_by("model")).scalars()
            )

    def promotions(self, model: str) -> list[Promotion]:
        """Return all promotions of a model, oldest first."""
        query = _with_demotion().where(promotions.c.model == model).order_by(promotions.c.id)
        with self._database.reading() as connection:
            return [_promotion(row) for row in connection.execute(query).mappings()]

    def in_production(
        self, model: str, alias: str = "production", at: datetime | None = None
    ) -> Promotion | None:
        """Return the promotion that held the role at the time `at` (None: now); None before the first promotion and
        after a demotion."""
        query = _with_demotion().where(promotions.c.model == model, promotions.c.alias == alias)
        if at is not None:
            query = query.where(promotions.c.at <= at)
        with self._database.reading() as connection:
            row = connection.execute(query.order_by(promotions.c.id.desc()).limit(1)).mappings().first()
        if row is None:
            return None
        found = _promotion(row)
        has_ended = found.demotion is not None and (at is None or found.demotion.at <= at)
        return None if has_ended else found

    def _turn(self, model: str) -> AbstractContextManager[None]:
        """Return the turn of a model. Its evaluations and promotions are recorded one after the other, so that the
        newest evaluation is the one that decided."""
        return self._database.turn(f"models/{model}", TURN_PATIENCE_SECONDS)


_ended = [demotions.c[name] for name in ("author", "reason", "at")]


def _with_demotion() -> sa.Select[Any]:
    theirs = [column.label(f"demoted_{column.name}") for column in _ended]
    joined = promotions.outerjoin(demotions, demotions.c.promotion == promotions.c.id)
    return sa.select(promotions, *theirs).select_from(joined)


def _promotion(row: sa.RowMapping) -> Promotion:
    facts = dict(row)
    author, reason, at = (facts.pop(f"demoted_{name}") for name in ("author", "reason", "at"))
    return Promotion(
        **facts, demotion=None if author is None else Demotion(author=author, reason=reason, at=at)
    )


def _newest(model: str, bundle_digest: str) -> sa.Select[Any]:
    return (
        sa.select(evaluations)
        .where(evaluations.c.model == model, evaluations.c.bundle_digest == bundle_digest)
        .order_by(evaluations.c.id.desc())
        .limit(1)
    )
