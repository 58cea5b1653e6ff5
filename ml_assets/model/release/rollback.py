"""Ways out of production: demotion, rollback, archival."""

from dataclasses import replace

from ml_assets.model.release.mlflow_view import show_if_reachable
from ml_assets.model.release.releases import (
    NotPromotable,
    Overtaken,
    Releases,
    require_reason,
    until_not_overtaken,
)
from ml_assets.model.release.rules_in_force import RulesLog
from ml_assets.model.release.standing import CANARY, PRODUCTION
from resources.ledger import Archival, Person, Promotion


def demote(
    releases: Releases,
    model: str,
    *,
    by: Person,
    reason: str,
    role: str = PRODUCTION,
    seen: Promotion | None = None,
) -> Promotion:
    """Take the current version out of production without a successor; return the promotion that ended.

    The next training is evaluated as a first model. With `role` canary, the canary goes back to staging. `seen` is
    the promotion that the caller decided about; None: the present one. Raises `NotPromotable` if no version has the
    role, or if another version got it meanwhile.
    """
    require_reason(reason, f"demoting {model}", NotPromotable)

    def held() -> Promotion | None:
        standings = releases.standings(model)
        return standings.canary if role == CANARY else standings.in_production

    standing, has = seen or held(), "the canary" if role == CANARY else "in production"
    if standing is None:
        raise NotPromotable(
            f"no version of {model} is {has}{_who_ended(releases, model, role)}. To see all decisions: ml-assets "
            f"history {model}",
            "role",
        )

    def allow() -> None:
        if (now := held()) == standing:
            return
        since = f"no version is any more{_who_ended(releases, model, role)}" if now is None else _since(now)
        raise NotPromotable(
            f"version {standing.version} of {model} was {has} when this command began, but {since}. Nothing was "
            f"demoted. To see all decisions: ml-assets history {model}",
            "meanwhile",
        )

    demotion = releases.log.demote(standing, by=by, reason=reason, allow=allow)
    show_if_reachable(releases.registry, releases.log, model)
    return replace(standing, demotion=demotion)


def _who_ended(releases: Releases, model: str, role: str) -> str:
    """Return a clause with the person who demoted the last version in `role`; empty if nobody did."""
    standings = releases.standings(model)
    held = standings.canaries if role == CANARY else standings.promotions
    ended = held[-1].demotion if held else None
    if ended is None:
        return ""
    return f": {ended.author} demoted version {held[-1].version} at {ended.at:%Y-%m-%d %H:%M:%S} UTC"


def rollback(
    releases: Releases,
    model: str,
    *,
    by: Person,
    reason: str,
) -> Promotion:
    """Put the version into production again that was there before the present one; return the new promotion.

    No rule is checked again: it returns on the evaluation of its earlier promotion. MLflow shows it as soon as it
    answers. Raises `NotPromotable` if no earlier version is left, or if another promotion or rollback came
    meanwhile: of two persons who roll back at once, one must not go back by a version more. Raises `BundleMissing`
    or `BundleDamaged` if the bundle cannot be served.
    """
    require_reason(reason, f"rolling back {model}", NotPromotable)
    replaced = releases.standings(model).newest_promotion

    def write_it() -> Promotion:
        target, recorded = _rollback_target(releases, model, replaced), RulesLog.read(releases.ledger, model)
        releases.store.open(target.bundle_digest)

        def allow() -> None:
            if (_rollback_target(releases, model, replaced), RulesLog.read(releases.ledger, model)) != (
                target,
                recorded,
            ):
                raise Overtaken

        return releases.log.promote(
            model,
            target.version,
            PRODUCTION,
            by=by,
            reason=reason,
            bundle_digest=target.bundle_digest,
            evaluation_digest=target.evaluation_digest,
            returns_to=target.place,
            under=recorded.digest,
            allow=allow,
        )

    promotion = until_not_overtaken(write_it)
    show_if_reachable(releases.registry, releases.log, model)
    return promotion


def _rollback_target(releases: Releases, model: str, replaced: Promotion | None) -> Promotion:
    """Return the promotion to which a rollback of `replaced` returns. Raise `NotPromotable` if there is none."""
    standings = releases.standings(model)
    newest = standings.newest_promotion
    if newest is not None and (replaced is None or newest.place != replaced.place):
        raise NotPromotable(
            f"{model} is not rolled back: since this command began, {_since(newest)}. To see all decisions: "
            f"ml-assets history {model}. To go back from there: the same command again",
            "meanwhile",
        )
    target = standings.rollback_target
    if target is None and not standings.promotions:
        raise NotPromotable(
            f"no version of {model} was ever in production: there is nothing to roll back to. To promote one: "
            f"ml-assets promote {model} --reason '…'",
            "history",
        )
    if target is None:
        last = standings.promotions[-1]
        way = f"To promote another one: ml-assets promote {model} NUMBER --reason '…'"
        if standings.in_production is not None:
            way = (
                f"To take the present version out of production: ml-assets demote {model} --reason '…'. {way}"
            )
        elif standings.of(last.bundle_digest).archival is None:
            way = (
                f"A person demoted version {last.version}. To put it back: ml-assets promote {model} "
                f"{last.version} --reason '…'"
            )
        raise NotPromotable(
            f"no version of {model} that is neither archived nor demoted was in production before version "
            f"{last.version}: there is nothing to roll back to. To see all decisions: ml-assets history {model}. "
            f"{way}",
            "history",
        )
    return target


def replaced_by(releases: Releases, promotion: Promotion) -> Promotion | None:
    """Return the promotion whose version lost its role to `promotion`; None if no version had the role."""
    before = releases.standings(promotion.model).before(promotion.place)
    return before.canary if promotion.alias == CANARY else before.in_production


def archive(
    releases: Releases,
    model: str,
    number: int,
    *,
    by: Person,
    reason: str,
) -> Archival:
    """Record that a version is never promoted again, and that no rollback returns to it.

    If it is archived already, nothing changes and its archival is returned. Raises `NotPromotable` for the version
    in production, and `VersionMissing`.
    """
    require_reason(reason, f"archiving {model} {number}", NotPromotable)
    version = releases.version(model, number)

    def allow() -> None:
        if releases.standings(model).of(version.bundle_digest).is_in_production:
            raise NotPromotable(
                f"{version.named} is in production and cannot be archived. First put another version in its "
                f"place (ml-assets rollback {model} --reason '…', or promote), or take it out: ml-assets demote "
                f"{model} --reason '…'",
                "production",
            )

    archival = releases.log.archive(
        model,
        str(number),
        by=by,
        reason=reason,
        bundle_digest=version.bundle_digest,
        allow=allow,
    )
    show_if_reachable(releases.registry, releases.log, model)
    return archival


def _since(promotion: Promotion) -> str:
    """Return the words for a promotion that came meanwhile: its author, version and time."""
    did = "promoted" if promotion.returns_to is None else "rolled back to"
    return f"{promotion.author} {did} version {promotion.version} at {promotion.at:%Y-%m-%d %H:%M:%S} UTC"
