"""Decisions about a model in words: one line each, in the order of the ledger."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from ml_assets.model.release.rules import why_void
from ml_assets.model.release.rules_in_force import (
    RulesLog,
    changes,
    in_words,
    rules_name,
    rules_of,
    why_uncounted,
)
from ml_assets.model.release.standing import PRODUCTION
from resources.ledger import (
    AboutBundle,
    Account,
    Archival,
    Decision,
    Demotion,
    DossierRow,
    EvaluationRow,
    Promotion,
    Redating,
    Review,
    RulesRow,
    SemanticName,
    author_in_words,
    evaluation_name,
)


def lines(decisions: Sequence[Decision], accounts: Sequence[Account] = ()) -> Iterator[str]:
    """Yield the lines of a history: for each decision its time, its kind, its version and its reason.

    `accounts` are all of the ledger: an approval whose account was revoked is void.
    """
    named = _Names(decisions, accounts)
    for one in decisions:
        kind, *said = (_in_one_line(text) for text in _said(one, named))
        yield f"{_time(one.at)}  {kind:11} {said[0]}"
        for more in said[1:]:
            yield f"    {more}"


def state_at(decisions: Sequence[Decision], moment: datetime) -> Iterator[str]:
    """Yield what was in production at a moment, and the decision behind it."""
    named, known = _Names(decisions), [one for one in decisions if one.at <= moment]
    held = [one for one in known if isinstance(one, Promotion) and one.alias == PRODUCTION]
    if not held:
        yield f"At {_time(moment)}, no version had been in production."
        return
    ended = [one for one in known if isinstance(one, Demotion) and one.promotion == held[-1].place]
    why = ended[0] if ended else held[-1]
    what = "no version" if ended else named.of(why.bundle_digest)
    yield f"At {_time(moment)}, {what} was in production, since {_time(why.at)}:"
    kind, *said = (_in_one_line(text) for text in _said(why, named))
    yield from (f"    {line}" for line in (f"{kind} {said[0]}", *said[1:]))


def since(decisions: Sequence[Decision], place: int, bundle: str) -> Iterator[str]:
    """Yield the decisions about a bundle after a place of the ledger, and promotions of others into production."""
    named = _Names(decisions)
    for one in decisions:
        replaces = isinstance(one, Promotion) and one.alias == PRODUCTION
        is_decision = not isinstance(one, DossierRow | SemanticName)
        is_about = isinstance(one, RulesRow | Redating) or (is_decision and one.bundle_digest == bundle)
        if one.place > place and (replaces or is_about):
            kind, first, *_ = (_in_one_line(text) for text in _said(one, named))
            yield f"{_time(one.at)} {kind}: {first}"


def void_approvals(decisions: Sequence[Decision], accounts: Sequence[Account] = ()) -> dict[int, str]:
    """Return place → reason of each approval that counts no more, and that no promotion was based on before."""
    void: dict[int, str] = {}
    for one in decisions:
        if not isinstance(one, Review) or not one.approves:
            continue
        of_bundle = [
            other
            for other in decisions
            if isinstance(other, AboutBundle) and other.bundle_digest == one.bundle_digest
        ]
        used = [
            it
            for it in of_bundle
            if isinstance(it, Promotion) and it.alias == PRODUCTION and it.place > one.place
        ]
        if used and used[0].evaluation_digest == one.evaluation_digest:
            continue
        evaluations = [it for it in of_bundle if isinstance(it, EvaluationRow)]
        reviews = [it for it in of_bundle if isinstance(it, Review)]
        if why := why_void(one, evaluations, reviews, accounts):
            void[one.place] = why
    return void


def _under(one: Promotion | Review) -> list[str]:
    return [f"under rules {rules_name(one.rules)}"] if one.rules else []


class _Names:
    """Names of the bundles of one model, semantic version and number; rules before a change; void approvals."""

    def __init__(self, decisions: Sequence[Decision], accounts: Sequence[Account] = ()) -> None:
        self.void = void_approvals(decisions, accounts)
        self.rules = RulesLog.of([one for one in decisions if isinstance(one, RulesRow)], accounts)
        self._semantic = {
            one.bundle_digest: one.semantic for one in decisions if isinstance(one, SemanticName)
        }
        self._numbers = {
            one.bundle_digest: one.version
            for one in decisions
            if isinstance(one, Promotion | Archival | Review | DossierRow)
        }
        self.aliases = {one.place: one.alias for one in decisions if isinstance(one, Promotion)}
        self.evaluations = {one.evaluation_digest: one for one in decisions if isinstance(one, EvaluationRow)}

    def rules_before(self, row: RulesRow) -> RulesRow | None:
        before = [one for one in self.rules.counting if one.place < row.place]
        return before[-1] if before else None

    def of(self, digest: str) -> str:
        number, semantic = self._numbers.get(digest), self._semantic.get(digest)
        if number is None:
            return semantic or f"bundle {digest[:12]}"
        return f"version {number} ({semantic or 'no semantic version'})"


def _said(one: Decision, named: _Names) -> tuple[str, ...]:
    """Return the kind of a decision, and its lines."""
    match one:
        case EvaluationRow():
            beside = f", beside {named.of(one.champion_digest)}" if one.champion_digest else ""
            return (
                "evaluated",
                f"{named.of(one.bundle_digest)} on {one.partition}{beside}, by {author_in_words(one)}: {one.summary}",
                f"evaluation {one.name}: {one.report}",
            )
        case SemanticName():
            return "registered", f"{one.semantic}, bundle {one.bundle_digest[:12]}"
        case Promotion():
            kind = "promoted" if one.returns_to is None else "rolled back"
            place = "" if one.alias == PRODUCTION else f" as {one.alias}"
            to = "to " if one.returns_to is not None else ""
            said = [
                kind,
                f"{to}{named.of(one.bundle_digest)}{place}, by {author_in_words(one)}: {one.reason}",
            ]
            if one.despite:
                said.append(f"despite {one.despite}")
            behind = named.evaluations.get(one.evaluation_digest)
            report = f": {behind.report}" if behind is not None else ""
            return (*said, f"on evaluation {evaluation_name(one.evaluation_digest)}{report}", *_under(one))
        case Demotion():
            alias = named.aliases.get(one.promotion, PRODUCTION)
            role = "" if alias == PRODUCTION else f" as {alias}"
            return (
                "demoted",
                f"{named.of(one.bundle_digest)}{role}, by {author_in_words(one)}: {one.reason}",
            )
        case Review():
            said = f"{named.of(one.bundle_digest)}, by {author_in_words(one)}: {one.reason}"
            return (
                ("approved" if one.approves else "rejected"),
                said,
                f"evaluation {evaluation_name(one.evaluation_digest)}",
                *_under(one),
                *([f"void: {named.void[one.place]}"] if one.place in named.void else []),
            )
        case RulesRow():
            name, before = rules_name(one.rules_digest), named.rules_before(one)
            if before is None:
                return "rules", f"{name} recorded, by {author_in_words(one)}", in_words(rules_of(one))
            return (
                "rules",
                f"{name} accepted, by {author_in_words(one)}: {one.reason}",
                *changes(rules_of(before), rules_of(one)),
                *([why_uncounted(one, named.rules)] if one in named.rules.uncounted else []),
            )
        case Redating():
            places = ", ".join(map(str, one.rows))
            return (
                "redated",
                f"rows {places}, which a wrong clock dated ahead, by {author_in_words(one)}: {one.reason}",
            )
        case DossierRow():
            return (
                "dossier",
                f"{named.of(one.bundle_digest)}, by {author_in_words(one)}: signed with key {one.signed_by[:12]}",
                f"dossier {one.dossier_digest[:12]} on evaluation {evaluation_name(one.evaluation_digest)}",
            )
        case Archival():
            return (
                "archived",
                f"{named.of(one.bundle_digest)}, by {author_in_words(one)}: {one.reason}",
            )


def _in_one_line(text: str) -> str:
    """Escape what does not print. Values of data, such as names of slices, may contain line breaks."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
