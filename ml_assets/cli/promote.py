"""`ml-assets promote`: put a registered version into production."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ml_assets.cli.project import Project, say
from ml_assets.cli.registered import VERSION

if TYPE_CHECKING:
    from ml_assets.model.steps.spec import PipelineSpec
    from resources.ledger import Promotion


@click.command("promote", short_help="Put a registered version into production, with a reason.")
@click.argument("model")
@click.argument("version", type=VERSION, required=False)
@click.option("--reason", help="Reason; recorded with your name in an append-only log.")
@click.option(
    "--despite-inputs",
    is_flag=True,
    help="Promote although training inputs were rejected since; the log names them.",
)
def command(model: str, version: int | None, reason: str | None, despite_inputs: bool) -> None:
    """Put VERSION of MODEL into production. Default: the canary, without one the blessed version with the newest data.

    If `release.canary` in defs.yaml asks for it, the first promotion makes VERSION the canary. The second one, after
    the bake time, puts it into production, unless its requests show it to be worse than `watch` allows.

    The newest evaluation of VERSION must have blessed it against today's champion, and none of its training inputs may
    have been rejected since. A version that was in production before may return without a new evaluation.
    """
    from ml_assets.cli.problems import Problem
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.release.bundle_store import BundleDamaged, BundleMissing
    from ml_assets.model.release.promotion import breaks_for_clients, in_full_minutes, newest_data, promote
    from ml_assets.model.release.releases import releases_of
    from ml_assets.model.release.rollback import replaced_by
    from ml_assets.model.release.standing import CANARY
    from resources.ledger import author_in_words

    project, acting = Project.to_decide()
    spec = project.component(TrainingPipeline, model).spec  # `Problem` with the names there are
    rules = spec.rules
    releases = releases_of(project.platform)
    if not reason:
        raise Problem("a promotion needs a reason for the log: add --reason '…'")
    if version is None:
        newest = newest_data(releases, model, rules)
        if newest is None:
            raise Problem(
                f"{model} has no blessed version that is new to production. Materialize the model: ml-assets launch "
                f"{model} DATE, or name an earlier version: ml-assets promote {model} NUMBER --reason '…'"
            )
        version = newest.number
    before = project.platform.ledger.models.in_production(model)
    breaks: list[str] = []
    with suppress(
        BundleMissing, BundleDamaged
    ):  # that of the version in production: what replaces it must not wait
        breaks = breaks_for_clients(releases, model, version)
    promotion = promote(
        releases,
        model,
        version,
        by=acting,
        reason=reason,
        despite_inputs=despite_inputs,
        rules=rules,
        why_worse=lambda canary: _why_worse(spec, project, canary),
    )
    promoter = author_in_words(promotion)
    if promotion.alias == CANARY and rules.canary is not None:
        replaced = replaced_by(releases, promotion)
        baked = in_full_minutes(rules.canary.end_of_bake(promotion.at))
        say(f"{model} version {version} is the canary since {promotion.at:%Y-%m-%d %H:%M} UTC,")
        say(f"promoted by {promoter}: {promotion.reason}")
        if replaced is not None:
            say(f"Version {replaced.version} is no longer the canary. It is in staging.")
        _say_breaks(breaks)
        say(f"Into production, from {baked} on: ml-assets promote {model} {version} --reason '…'")
        return
    if before == promotion:
        say(f"Nothing changed: {model} version {promotion.version} was in production before this command.")
    say(f"{model} version {promotion.version} is in production since {promotion.at:%Y-%m-%d %H:%M} UTC,")
    say(f"promoted by {promoter}: {promotion.reason}")
    if promotion.despite:
        say(f"despite {promotion.despite}")
    _say_breaks(breaks)
    say(f"Load it anywhere: mlflow.pyfunc.load_model('models:/{model}@production')")


def _say_breaks(breaks: Sequence[str]) -> None:
    if breaks:
        say(f"Clients of the version before must change: {'; '.join(breaks)}.")


def _why_worse(spec: "PipelineSpec", project: Project, canary: "Promotion") -> str:
    """Return the evidence that `canary` is worse than allowed; empty without any. Say which metrics have none."""
    from ml_assets.use.live.canary_watch import evidence

    if spec.release.canary is None or not spec.release.canary.watch:
        return ""
    state = evidence(spec, project.platform)
    if state.canary != canary:  # replaced meanwhile: the promotion finds that, too
        return ""
    for why in state.missing:
        say(f"Not compared: {why}")
    return state.why_worse
