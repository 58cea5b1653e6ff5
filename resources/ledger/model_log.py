"""`ModelLog`: append-only log of models: evaluations, versions, rules, promotions, demotions, archivals, reviews.

A decision of a person and a registration walk the hash chain in their own transaction, so nothing is decided on a
changed row.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from resources.clocks import TOLERANCE
from resources.ledger import chain
from resources.ledger.database import LedgerDatabase
from resources.ledger.decision_rows import (
    ABOUT_MODELS,
    append,
    begin_decision,
    kind_of,
    naming_a_changed_row,
    require_chained_acceptances,
    require_identity,
    row_of,
    time_of,
)
from resources.ledger.errors import ClockRefused, LedgerError, refuse_unprintable
from resources.ledger.rows import (
    Archival,
    Decision,
    Demotion,
    DossierRow,
    EvaluationRow,
    NewEvaluation,
    Person,
    Promotion,
    Redating,
    Review,
    RulesRow,
    SemanticName,
)
from resources.ledger.tables import decisions, verdicts

TURN_PATIENCE_SECONDS = 60.0
"""Seconds that a decision waits for others of the same model. Each is one short transaction."""

_WHEN_APPENDED = datetime.max.replace(tzinfo=UTC)
"""Time of a row that is not appended yet."""

Row = TypeVar("Row", bound=Decision)
Answer = TypeVar("Answer")


class ModelLog:
    """Part of the ledger on models. Every method may raise `LedgerError`: `NotPrintable` for a name or reason that does
    not print.

    `allow` of a method runs while no other decision about the model can be recorded. It may read the ledger; if it
    raises, nothing is appended.
    """

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    # --- all decisions ---

    def decisions(self, model: str) -> list[Decision]:
        """Return all decisions about a model, oldest first."""
        return self._read(ABOUT_MODELS, model)

    def stored(self, model: str, bundle_digest: str) -> tuple[chain.Head, list[dict[str, Any]]]:
        """Return the head of the chain, and all rows about a bundle as they are stored: column → value, oldest first.

        Both are of one state of the ledger.
        """
        with self._database.reading() as connection:
            return chain.stored(connection, model, bundle_digest)

    def head(self) -> chain.Head:
        """Return the last row of the hash chain, without a check of the rows."""
        with self._database.reading() as connection:
            return chain.head(connection)

    def verify(self, known: chain.Head | None = None) -> chain.Head:
        """Check the hash chain over the decisions about all models; return its last row.

        Raise `LedgerChanged` with the first row that differs from what was written, if the chain does not contain
        `known`, or with the first acceptance of a partition that differs from its row of the chain.
        """
        with self._database.reading() as connection:
            head = chain.verify(connection, known)
            require_chained_acceptances(connection)
            return head

    def now(self) -> datetime:
        """Return the present time by the ledger, for rules about time. Raise `ClockRefused`."""
        with self._database.reading() as connection:
            return time_of(connection)

    def redate(self, model: str, by: Person, *, reason: str) -> Redating:
        """Append that the rows of a model which are dated ahead of the ledger's clock count as of now.

        Nobody chooses the time, because an earlier one would end a bake time. Raise `LedgerError` if there are none.
        """

        def work(connection: sa.Connection) -> Redating:
            require_identity(connection, by)
            now = time_of(connection)
            ahead = [one.place for one in _read(connection, ABOUT_MODELS, model) if one.at - now > TOLERANCE]
            if not ahead:
                raise LedgerError(
                    f"no row of {model} is dated ahead of the ledger's clock: nothing to redate"
                )
            return append(
                connection, Redating(place=0, model=model, rows=tuple(ahead), by=by, reason=reason, at=now)
            )

        return self._decide(model, work)

    def models(self) -> list[str]:
        """Return the names of all models with a decision, sorted."""
        with self._database.reading() as connection:
            named = sa.select(decisions.c.model).where(decisions.c.model != "").distinct()
            return sorted(connection.execute(named).scalars())

    # --- evaluations ---

    def record_evaluation(self, new: NewEvaluation, at: datetime | None = None) -> EvaluationRow:
        """Append one evaluation and return its row.

        If the newest evaluation of the bundle has the same digest and gates, return that row instead: a retried step
        repeats its evaluation. An author with a better proof replaces the one before, though, so that a person with an
        account can answer for the evaluation. No promotion of the model is decided meanwhile.
        """

        def work(connection: sa.Connection) -> EvaluationRow:
            found = self.newest_evaluation(new.model, new.bundle_digest)
            is_known = found is not None and (found.evaluation_digest, found.gates) == (
                new.evaluation_digest,
                new.gates,
            )
            if found is not None and is_known and new.proof <= found.proof:
                return found
            return _append(connection, EvaluationRow(**vars(new), place=0, at=at or _WHEN_APPENDED))

        with self._turn(new.model):
            return self._database.write(work)

    def newest_evaluation(self, model: str, bundle_digest: str) -> EvaluationRow | None:
        """Return the newest evaluation of a bundle, which decides about it, or None."""
        refuse_unprintable(model=model)
        query = _rows(EvaluationRow).where(
            decisions.c.model == model, decisions.c.bundle_digest == bundle_digest
        )
        return self._newest(EvaluationRow, query)

    def evaluation(self, digest: str) -> EvaluationRow | None:
        """Return the evaluation with this digest, of any model, or None."""
        query = _rows(EvaluationRow).where(decisions.c.evaluation_digest == digest)
        return self._newest(EvaluationRow, query)

    def evaluations(self, model: str) -> list[EvaluationRow]:
        """Return all evaluations of a model, oldest first."""
        return self._of(EvaluationRow, model)

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

        `choose` receives all semantic versions of the model, oldest first, and must return a new version. While `allow`
        runs, no verdict can be recorded either.
        """

        def work(connection: sa.Connection) -> str:
            known = self.names(model)
            for one in known:
                if one.bundle_digest == bundle_digest:
                    return one.semantic
            semantic = choose(known)
            if semantic in [one.semantic for one in known]:
                raise LedgerError(f"{model} {semantic} is the name of another bundle: choose a new version")
            new = SemanticName(
                place=0,
                model=model,
                semantic=semantic,
                bundle_digest=bundle_digest,
                schema_digest=schema_digest,
                recipe_digest=recipe_digest,
                at=_WHEN_APPENDED,
            )
            return _append(connection, new).semantic

        return self._decide(model, work, allow, still=(verdicts,))

    def names(self, model: str) -> list[SemanticName]:
        """Return all semantic versions of a model, oldest first."""
        return self._of(SemanticName, model)

    # --- rules ---

    def rules(self, model: str) -> list[RulesRow]:
        """Return all recorded rules of a model, oldest first. Not all of them count."""
        return self._of(RulesRow, model)

    def record_first_rules(self, model: str, rules: str, by: Person) -> RulesRow:
        """Record `rules`, as JSON, if the model has none yet; return the rules in force."""

        def work(connection: sa.Connection) -> RulesRow:
            recorded = self.rules(model)
            return recorded[-1] if recorded else _append(connection, _rules_row(model, rules, by))

        return self._decide(model, work)

    def accept_rules(
        self, model: str, rules: str, by: Person, *, reason: str, allow: Callable[[], object]
    ) -> RulesRow:
        """Append the decision of a person that `rules`, as JSON, are in force from now on; return its row."""

        row = _rules_row(model, rules, by, reason)
        return self._decide(model, lambda connection: _append(connection, row), allow)

    # --- promotions ---

    def promote(
        self,
        model: str,
        version: str,
        alias: str,
        *,
        by: Person,
        reason: str,
        bundle_digest: str,
        evaluation_digest: str,
        despite: str = "",
        returns_to: int | None = None,
        rules: str = "",
        under: str = "",
        at: datetime | None = None,
        allow: Callable[[], object] | None = None,
    ) -> Promotion:
        """Append a promotion and return it: from `at` on, `version` holds the role `alias` of `model`.

        It stores `under`, the digest of the rules in force. If that is empty, it records `rules`, as JSON.
        While `allow` runs, no verdict can be recorded either.
        """
        new = Promotion(
            place=0,
            model=model,
            version=version,
            alias=alias,
            bundle_digest=bundle_digest,
            evaluation_digest=evaluation_digest,
            by=by,
            reason=reason,
            despite=despite,
            returns_to=returns_to,
            at=at or _WHEN_APPENDED,
        )

        def work(connection: sa.Connection) -> Promotion:
            return _append(connection, replace(new, rules=_under(connection, new, under, rules)))

        return self._decide(model, work, allow, still=(verdicts,))

    def demote(
        self,
        promotion: Promotion,
        *,
        by: Person,
        reason: str,
        at: datetime | None = None,
        allow: Callable[[], object] | None = None,
    ) -> Demotion:
        """Append the end of `promotion`. Then no version holds its role. A second demotion changes nothing."""
        new = Demotion(
            place=0,
            model=promotion.model,
            bundle_digest=promotion.bundle_digest,
            promotion=promotion.place,
            by=by,
            reason=reason,
            at=at or _WHEN_APPENDED,
        )

        def work(connection: sa.Connection) -> Demotion:
            for one in self._of(Demotion, promotion.model):
                if one.promotion == promotion.place:
                    return one
            if allow is not None:
                allow()
            return _append(connection, new)

        return self._decide(promotion.model, work)

    # --- archivals ---

    def archive(
        self,
        model: str,
        version: str,
        *,
        by: Person,
        reason: str,
        bundle_digest: str,
        allow: Callable[[], object] | None = None,
    ) -> Archival:
        """Append that a version is never promoted again. A second archival changes nothing and returns the first."""
        new = Archival(
            place=0,
            model=model,
            version=version,
            bundle_digest=bundle_digest,
            by=by,
            reason=reason,
            at=_WHEN_APPENDED,
        )

        def work(connection: sa.Connection) -> Archival:
            for one in self.archivals(model):
                if one.bundle_digest == bundle_digest:
                    return one
            if allow is not None:
                allow()
            return _append(connection, new)

        return self._decide(model, work)

    def archivals(self, model: str) -> list[Archival]:
        """Return all archivals of a model, oldest first."""
        return self._of(Archival, model)

    # --- reviews ---

    def review(
        self,
        evaluation: EvaluationRow,
        version: str,
        *,
        approves: bool,
        by: Person,
        reason: str,
        rules: str = "",
        under: str = "",
        allow: Callable[[], object] | None = None,
    ) -> Review:
        """Append an approval or rejection of `evaluation` and return it.

        It stores `under`, the digest of the rules in force. If that is empty, it records `rules`, as JSON."""
        new = Review(
            place=0,
            model=evaluation.model,
            version=version,
            bundle_digest=evaluation.bundle_digest,
            evaluation_digest=evaluation.evaluation_digest,
            approves=approves,
            by=by,
            reason=reason,
            at=_WHEN_APPENDED,
        )

        def work(connection: sa.Connection) -> Review:
            return _append(connection, replace(new, rules=_under(connection, new, under, rules)))

        return self._decide(evaluation.model, work, allow)

    def reviews(self, model: str) -> list[Review]:
        """Return all reviews of a model, oldest first."""
        return self._of(Review, model)

    # --- dossiers ---

    def record_dossier(
        self,
        evaluation: EvaluationRow,
        version: str,
        dossier_digest: str,
        *,
        signed_by: str,
        by: Person,
    ) -> DossierRow:
        """Append that a dossier of the evaluated bundle was signed and stored; return its row."""
        new = DossierRow(
            place=0,
            model=evaluation.model,
            version=version,
            bundle_digest=evaluation.bundle_digest,
            evaluation_digest=evaluation.evaluation_digest,
            dossier_digest=dossier_digest,
            signed_by=signed_by,
            by=by,
            at=_WHEN_APPENDED,
        )
        with self._turn(evaluation.model):
            return self._database.write(lambda connection: _append(connection, new))

    def dossiers(self, model: str) -> list[DossierRow]:
        """Return all dossiers of a model, oldest first."""
        return self._of(DossierRow, model)

    # --- roles ---

    def promotions(self, model: str) -> list[Promotion]:
        """Return all promotions of a model, oldest first."""
        return [one for one in self.stage_changes(model) if isinstance(one, Promotion)]

    def stage_changes(self, model: str) -> list[Promotion | Demotion | Archival]:
        """Return all decisions that change a stage of a model, oldest first, all of one state of the ledger."""
        found = self._read([kind_of(one) for one in (Promotion, Demotion, Archival)], model)
        ended = {one.promotion: one for one in found if isinstance(one, Demotion)}
        return [
            replace(one, demotion=ended.get(one.place)) if isinstance(one, Promotion) else one
            for one in found
            if isinstance(one, Promotion | Demotion | Archival)
        ]

    def in_production(
        self, model: str, alias: str = "production", at: datetime | None = None
    ) -> Promotion | None:
        """Return the promotion that held the role at the time `at` (None: now); None before the first promotion and
        after a demotion."""
        held = [one for one in self.promotions(model) if one.alias == alias and (at is None or one.at <= at)]
        if not held:
            return None
        newest = held[-1]
        has_ended = newest.demotion is not None and (at is None or newest.demotion.at <= at)
        return None if has_ended else newest

    def _of(self, kind: type[Row], model: str) -> list[Row]:
        return [one for one in self._read([kind_of(kind)], model) if isinstance(one, kind)]

    def _read(self, kinds: Sequence[str], model: str) -> list[Decision]:
        refuse_unprintable(model=model)
        with self._database.reading() as connection:
            return _read(connection, kinds, model)

    def _newest(self, kind: type[Row], query: sa.Select[Any]) -> Row | None:
        newest = query.order_by(decisions.c.place.desc()).limit(1)
        with self._database.reading() as connection:
            found = connection.execute(newest)
            with naming_a_changed_row():
                row = found.mappings().first()
                return None if row is None else cast("Row", row_of(row))

    def _decide(
        self,
        model: str,
        work: Callable[[sa.Connection], Answer],
        allow: Callable[[], object] | None = None,
        still: Sequence[sa.Table] = (),
    ) -> Answer:
        """Run `work` in the turn of a model, after a walk of the hash chain and `allow`. `still`: see `write`."""

        def decision(connection: sa.Connection) -> Answer:
            begin_decision(connection)
            if allow is not None:
                allow()
            return work(connection)

        with self._turn(model):
            return self._database.write(decision, still=still)

    def _turn(self, model: str) -> AbstractContextManager[None]:
        """Return the turn of a model. Its decisions are recorded one after the other, so that the newest evaluation is
        the one that decided."""
        refuse_unprintable(model=model)
        return self._database.turn(f"models/{model}", TURN_PATIENCE_SECONDS)


def _under(connection: sa.Connection, new: Promotion | Review, under: str, first: str) -> str:
    """Return `under`, the digest of the rules in force. If it is empty, record `first` as the first rules."""
    if under or not first:
        return under
    return _append(connection, _rules_row(new.model, first, new.by)).rules_digest


def _rows(kind: type[Decision]) -> sa.Select[Any]:
    return sa.select(decisions).where(decisions.c.kind == kind_of(kind))


def _rules_row(model: str, rules: str, by: Person, reason: str = "") -> RulesRow:
    return RulesRow(
        place=0,
        model=model,
        rules_digest=hashlib.sha256(rules.encode()).hexdigest(),
        rules_json=rules,
        by=by,
        reason=reason,
        at=_WHEN_APPENDED,
    )


def _append(connection: sa.Connection, new: Row) -> Row:
    """Append a row, with the time at which it is stored."""
    chain.lock(connection)  # before the time of the row before it is read
    if new.at == _WHEN_APPENDED:
        new = replace(new, at=_now(connection, new.model))
    return append(connection, new)


def _now(connection: sa.Connection, model: str) -> datetime:
    """Return the time for the next decision about a model: never before the one before it.

    A process may wait for its turn for seconds, and clocks differ. `history --at` goes by these times. Raise
    `ClockRefused` if the row before was dated far ahead of the ledger's clock.
    """
    now = time_of(connection)
    of_model = sa.select(decisions.c.place, decisions.c.at).where(decisions.c.model == model)
    newest = connection.execute(of_model.order_by(decisions.c.place.desc()).limit(1)).first()
    if newest is None:
        return now
    redatings = _read(connection, [kind_of(Redating)], model)
    counts = [one.at for one in redatings if isinstance(one, Redating) and newest.place in one.rows]
    before: datetime = counts[-1] if counts else newest.at
    if before - now > TOLERANCE:
        raise ClockRefused(
            f"row {newest.place} of {model} is dated {before:%Y-%m-%d %H:%M:%S} UTC, and the ledger's clock says "
            f"{now:%Y-%m-%d %H:%M:%S} UTC. Nothing was stored. If that clock is wrong, set it right; if the row is "
            f"wrong: ml-assets ledger redate {model} --reason '…'",
            dated="earlier row",
        )
    return max(now, before)


def _read(connection: sa.Connection, kinds: Sequence[str], model: str) -> list[Decision]:
    """Return the rows of a model, oldest first, with the times that count."""
    asked = {*kinds, kind_of(Redating)}
    query = sa.select(decisions).where(decisions.c.model == model, decisions.c.kind.in_(sorted(asked)))
    found = connection.execute(query.order_by(decisions.c.place))
    with naming_a_changed_row():
        rows = [cast("Decision", row_of(row)) for row in found.mappings()]
    redated = {place: one.at for one in rows if isinstance(one, Redating) for place in one.rows}
    wanted = [one for one in rows if kind_of(type(one)) in kinds]
    return [replace(one, at=redated[one.place]) if one.place in redated else one for one in wanted]
