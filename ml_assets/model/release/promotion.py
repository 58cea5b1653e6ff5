"""Registration of a bundle as a version with a semantic number, and choice of the version in production.

The ledger decides: its evaluations allow a promotion, and its promotions name the version in production. The
transaction that writes a decision also reads its grounds. During it, nobody can record a verdict on any table or an
evaluation of the model. A rejection that is recorded later does not undo a decision: the inputs of a version that is
registered or in production may be rejected. Its next promotion is refused, and so is training on those inputs. Here:
registration, if the newest evaluation allows it; the conditions of a promotion (evaluation, stage, reviews, evidence of
the canary, inputs), each refusal with its remedy. Not here: gates (`evaluation`), the words about approvals (`rules`),
the way out of production (`rollback`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from ml_assets.data.tables.guard import rejections_of
from ml_assets.model.release.bundle_store import Bundle, client_breaks
from ml_assets.model.release.mlflow_view import show, show_if_reachable
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import (
    Ground,
    NotPromotable,
    NotRegistrable,
    Overtaken,
    Releases,
    known_numbers,
    require_reason,
    until_not_overtaken,
)
from ml_assets.model.release.rules import (
    DossierSection,
    Rules,
    why_not_approved,
    why_not_past_gates,
    why_rejected,
)
from ml_assets.model.release.rules_in_force import as_json, in_force, why_not_under_accepted, why_other
from ml_assets.model.release.standing import (
    CANARY,
    PRODUCTION,
    BundleStanding,
    BundleStandings,
    InputsRejected,
    InputsUnknown,
    contents_of,
    in_words,
)
from resources.ledger import EvaluationRow, Person, Promotion, SemanticName


@dataclass(frozen=True, order=True)
class SemanticVersion:
    """`major.minor.patch`, ordered."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`."""
        major, minor, patch = (int(part) for part in text.split("."))
        return cls(major, minor, patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def next_version(
    known: Iterable[tuple[SemanticVersion, str, str]], schema_digest: str, recipe_digest: str
) -> SemanticVersion:
    """Return the number of a new version, counted from the highest in `known`; the first is 1.0.0.

    `known` has number, schema digest and recipe digest of each registered version. Major: input columns, label,
    objective or classes changed. Minor: code or configuration changed. Patch: only the data changed.
    """
    number, schema, recipe = max(known, default=(None, "", ""))
    if number is None:
        return SemanticVersion(1, 0, 0)
    if schema != schema_digest:
        return SemanticVersion(number.major + 1, 0, 0)
    if recipe != recipe_digest:
        return SemanticVersion(number.major, number.minor + 1, 0)
    return SemanticVersion(number.major, number.minor, number.patch + 1)


def register(
    releases: Releases,
    bundle: Bundle,
    *,
    run_id: str,
    links: Mapping[str, str],
    rules: Rules | None = None,
) -> RegisteredVersion:
    """Return the version of this bundle; register it if there is none.

    The first registration of a model records `rules`, by the author of the evaluation; None leaves that to the first
    decision. `links` are tags such as lake commit, Dagster run and partition; a version keeps its first links. `run_id`
    is the MLflow run that trained it. Raises `NotRegistrable`, `InputsUnknown`, and `InputsRejected` if rows that
    trained it are rejected by now.
    """
    facts, log, registry = bundle.facts, releases.log, releases.registry
    model = facts.lineage.model

    def registrable() -> EvaluationRow:
        newest = log.newest_evaluation(model, bundle.digest)
        if newest is None or newest.status == "rejected":
            why = "was never evaluated" if newest is None else f"is rejected by evaluation {newest.name}"
            raise NotRegistrable(
                f"{model} {facts.lineage.fingerprint[:12]} {why}: materialize the model and read its "
                f"evaluation, which names the failed rules. Then change the model or the gates in defs.yaml"
            )
        return newest

    def choose(known: Sequence[SemanticName]) -> str:
        numbered = [
            (SemanticVersion.parse(one.semantic), one.schema_digest, one.recipe_digest) for one in known
        ]
        return str(next_version(numbered, facts.schema_digest, facts.recipe_digest))

    def name_it() -> str:
        evaluation = registrable()
        behind = contents_of(releases.lake, log, evaluation.trained_on)

        def allow() -> None:
            if registrable() != evaluation:
                raise Overtaken
            if refused := rejections_of(releases.ledger, behind):
                raise InputsRejected(refused)

        return log.name_version(
            model,
            bundle.digest,
            schema_digest=facts.schema_digest,
            recipe_digest=facts.recipe_digest,
            choose=choose,
            allow=allow,
        )

    semantic = until_not_overtaken(name_it)
    if rules is not None:
        row = registrable()
        log.record_first_rules(model, as_json(rules), row.by)
    tags = {
        **links,
        "semantic_version": semantic,
        "bundle_digest": bundle.digest,
        "fingerprint": facts.lineage.fingerprint,
        "snapshot_digest": facts.lineage.snapshot_digest,
        "schema_digest": facts.schema_digest,
        "recipe_digest": facts.recipe_digest,
    }
    taken = {number for number, bundles in known_numbers(log, model).items() if bundle.digest not in bundles}
    version = registry.add(bundle, run_id=run_id, tags=tags, taken=taken)
    show(registry, log, model)
    return registry.version(model, version.number)


def promote(
    releases: Releases,
    model: str,
    number: int,
    *,
    by: Person,
    reason: str,
    despite_inputs: bool = False,
    rules: Rules | None = None,
    why_worse: Callable[[Promotion], str] | None = None,
) -> Promotion:
    """Put a version into production, in place of the current version.

    Its newest evaluation must have blessed it in comparison with the current version, and `rules` may ask for more
    gates of that evaluation, for its approval, and for a signed dossier of it. If they ask for a canary, a version
    becomes canary first; after the bake time, its next promotion puts it into production. `why_worse` gives the
    evidence against that canary, and empty text without any. `rules` are those of a `defs.yaml`, and must be those
    in force; None takes the rules in force. None of its training inputs may be rejected by now. `despite_inputs`
    lifts that rule, and the promotion records the rejected inputs. A version that was in production before can
    always return, on the evaluation of its earlier promotion. If the version is in production already, nothing
    changes and its promotion is returned. Raises `NotPromotable`, `VersionMissing`, and `BundleMissing` or
    `BundleDamaged` if its bundle cannot be served.
    """
    require_reason(reason, f"promoting {model} {number}", NotPromotable)
    version = releases.version(model, number)
    promotable(version, releases.standings(model))
    releases.store.open(version.bundle_digest)

    def write_it() -> Promotion:
        found, evaluation = promotable(version, releases.standings(model))
        if found.is_in_production and found.promotion is not None:
            return found.promotion
        accounts, recorded = releases.persons_and_rules(model)
        asked = in_force(recorded) if rules is None else rules
        if why := why_other(recorded, asked):
            raise NotPromotable(f"{version.named} is not promoted: {why}", "rules")
        role = next_role(version, found, asked, releases.log.now())

        def objections() -> Iterator[tuple[Ground, str]]:
            yield "acceptance", why_not_under_accepted(by.name, recorded, found.evaluations, accounts)
            yield "gates", why_not_past_gates(asked, role, evaluation)
            if asked.signature == "compatible" and (breaks := breaks_for_clients(releases, model, number)):
                yield (
                    "signature",
                    "release.signature in defs.yaml is compatible, and clients of the version in production would "
                    f"break: {'; '.join(breaks)}. Train a version that clients can use, or change the clients first "
                    "and then release.signature",
                )
            evidence = why_worse(found.canary) if role == PRODUCTION and found.canary and why_worse else ""
            if evidence:
                take_back = f"ml-assets demote {model} --canary --reason '…'"
                yield "canary", f"as canary it is {evidence}. To take it back: {take_back}"
            if why := why_rejected(asked.approval, evaluation, found.reviews):
                yield (
                    "rejection",
                    f"{why} A rejection of an evaluation stands: materialize the model on another date, or promote "
                    "another version",
                )
            if role == PRODUCTION and (
                why := why_not_approved(by.name, asked.approval, evaluation, found, accounts)
            ):
                yield "approval", f"{why} To approve it: ml-assets approve {model} {number} --reason '…'"
            if asked.dossier and (why := _why_no_dossier(asked.dossier, evaluation, releases)):
                yield "dossier", f"{why}. To write one: ml-assets dossier write {model} {number}"

        # No review blocks the way back.
        for ground, why in objections() if found.promotion is None else ():
            if why:
                raise NotPromotable(f"{version.named} is not promoted: {why}", ground)
        against = dict[str, str] if found.promotion else _against(releases, evaluation)
        despite = against()
        if despite and not despite_inputs:
            raise NotPromotable(not_on_these_inputs(version, despite), "inputs")

        def allow() -> None:
            # Check again inside the transaction: the grounds may have changed while they were looked up.
            now = promotable(version, releases.standings(model)), against(), releases.persons_and_rules(model)
            if now != ((found, evaluation), despite, (accounts, recorded)):
                raise Overtaken

        return releases.log.promote(
            model,
            str(number),
            role,
            by=by,
            reason=reason,
            bundle_digest=version.bundle_digest,
            evaluation_digest=evaluation.evaluation_digest,
            despite=in_words(despite, len(despite)),
            rules=as_json(asked),
            under=recorded.digest,
            allow=allow,
        )

    promotion = until_not_overtaken(write_it)
    show_if_reachable(releases.registry, releases.log, model)
    return promotion


def _why_no_dossier(rules: DossierSection, evaluation: EvaluationRow, releases: Releases) -> str:
    from ml_assets.extras.governance.dossier.stored import why_no_dossier

    return why_no_dossier(rules, evaluation, releases.log, releases.store)


def newest_data(releases: Releases, model: str, rules: Rules | None = None) -> RegisteredVersion | None:
    """Return the version to promote by default: among the versions that may be promoted, that with the newest data.

    `rules` are those of a `defs.yaml`; None: those in force. If they ask for a canary, the present canary is the
    default, unless its newest evaluation or a reviewer rejected it. Otherwise a nightly version would take its
    place each day, and the bake time would never end. Versions that pass the gates of the transition go first. A
    version that was replaced in production, or demoted as canary, is never the default. None if no version
    qualifies.
    """
    rules = releases.rules(model) if rules is None else rules
    standings = releases.standings(model)
    ranked: list[tuple[bool, str, int, RegisteredVersion]] = []
    canary = None if rules.canary is None else standings.canary
    role = PRODUCTION if rules.canary is None else CANARY
    for version in releases.registry.versions(model):
        found = standings.of(version.bundle_digest)
        if canary is not None and found.canary == canary and stays_canary(found, rules):
            return version
        was_replaced = found.promotion is not None and not found.is_in_production
        if (
            found.may_be_promoted
            and not was_replaced
            and not found.was_taken_back
            and found.shown is not None
        ):
            # If no version passes the gates of the transition, the promotion of the newest names what failed. The
            # version in production needs no transition: a passing backfill of an old day must not replace it.
            passes = found.is_in_production or not why_not_past_gates(rules, role, found.shown)
            ranked.append((passes, found.shown.partition, version.number, version))
    return max(ranked, key=lambda one: one[:3])[3] if ranked else None


def newest_never_promoted(releases: Releases, model: str) -> RegisteredVersion | None:
    """Return the newest version that was never promoted, whether or not it may be; None without one."""
    standings = releases.standings(model)
    never = [
        one for one in releases.registry.versions(model) if standings.of(one.bundle_digest).promotion is None
    ]
    return max(never, key=lambda one: one.number, default=None)


def breaks_for_clients(releases: Releases, model: str, number: int) -> list[str]:
    """Return what breaks for clients of the version in production if version `number` answers them, a clause each.

    Empty if nothing is in production. Raises `VersionMissing`, `BundleMissing`, `BundleDamaged`.
    """
    champion = releases.champion(model)
    if champion is None:
        return []
    answering = releases.store.open(releases.version(model, number).bundle_digest)
    return list(client_breaks(champion.facts, answering.facts))


def _against(releases: Releases, evaluation: EvaluationRow) -> Callable[[], Mapping[str, str]]:
    """Look up the rows behind an evaluation; return a function that returns those rejected when it is called."""
    try:
        behind = contents_of(releases.lake, releases.log, evaluation.trained_on)
    except InputsUnknown as unknown:
        said = {"its inputs": f"are not known: {unknown}"}
        return lambda: said
    return lambda: rejections_of(releases.ledger, behind)


def promotable(
    version: RegisteredVersion, standings: BundleStandings
) -> tuple[BundleStanding, EvaluationRow]:
    """Return the standing of `version`, and the evaluation to record with its promotion.

    Raises `NotPromotable` if its evaluations do not allow a promotion.
    """
    found, champion = standings.of(version.bundle_digest), standings.in_production
    name, newest = version.named, found.shown
    if found.archival is not None:
        raise NotPromotable(
            f"{name} was archived at {found.archival.at:%Y-%m-%d %H:%M} UTC by {found.archival.author}: "
            f"{found.archival.reason}. An archived version stays out of production: materialize the model on "
            "another date, or promote another version",
            "archived",
        )
    if newest is None:
        raise NotPromotable(
            f"{name} was never evaluated: materialize the model, then promote the version that it registers",
            "evaluation",
        )
    if found.promotion is not None:
        return found, newest
    if newest.status != "blessed":
        raise NotPromotable(
            f"{name} is {newest.status}, not blessed, by its newest evaluation {newest.name} "
            f"({newest.partition}): {newest.summary} The report shows the condition under which each rule "
            f"passes: {newest.report}. Materialize the model on a later date, or change the gates in defs.yaml",
            "evaluation",
        )
    if champion is not None and champion.bundle_digest != newest.champion_digest:
        raise NotPromotable(
            f"the newest evaluation {newest.name} ({newest.partition}) of {name} compared it with "
            f"{standings.name_of(newest.champion_digest)}, but version {champion.version} is in "
            f"production since {champion.at:%Y-%m-%d %H:%M} UTC. Compare it with that version; the "
            f"training is reused: ml-assets launch {version.model} {newest.partition}",
            "champion",
        )
    return found, newest


def next_role(version: RegisteredVersion, found: BundleStanding, rules: Rules, now: datetime) -> str:
    """Return the role that a promotion gives to a version at `now`. Raise `NotPromotable` while a canary bakes.

    A version that was in production before returns there without being canary again.
    """
    if rules.canary is None or found.promotion is not None:
        return PRODUCTION
    if found.canary is None:
        return CANARY
    baked = rules.canary.end_of_bake(found.canary.at)
    if now < baked:
        raise NotPromotable(
            f"{version.named} is the canary since {found.canary.at:%Y-%m-%d %H:%M} UTC, and "
            f"release.canary.bake_hours in defs.yaml is {rules.canary.bake_hours or 0:g}: promote it from "
            f"{in_full_minutes(baked)} on, or take it back: ml-assets demote {version.model} --canary --reason '…'. "
            "Another version becomes the canary if you give its number",
            "canary",
        )
    return PRODUCTION


def stays_canary(found: BundleStanding, rules: Rules) -> bool:
    """Return True if neither the newest evaluation nor a reviewer rejected the canary `found`."""
    newest = found.newest
    return (
        found.may_be_promoted
        and newest is not None
        and not why_rejected(rules.approval, newest, found.reviews)
    )


def in_full_minutes(moment: datetime) -> str:
    """Return the first full minute from `moment` on, for people: before it, a command may still be refused."""
    return f"{moment + timedelta(minutes=1) - timedelta(microseconds=1):%Y-%m-%d %H:%M} UTC"


def not_on_these_inputs(version: RegisteredVersion, despite: Mapping[str, str]) -> str:
    return (
        f"{version.named} is not promoted because of its training inputs: {in_words(despite)}. Fix the "
        f"source and materialize the partition, or accept it (ml-assets accept TABLE PARTITION --reason '…'). "
        f"If its rows were replaced since, materialize the model again. To promote the version anyway, on "
        f"record in the log: ml-assets promote {version.model} {version.number} --despite-inputs --reason '…'"
    )
