"""Decisions of a person with a reason, recorded in the ledger: releases, their rules, and dossiers."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.opened import deciding, reading, writing
from ml_assets.cli.terminal import (
    FOLDER,
    VERSION,
    Problem,
    SuggestingGroup,
    reason_option,
    require_free,
    say,
    say_if_unchecked,
    writing_to,
)
from ml_assets.model.release.signing_keys import PUBLIC, SigningKey, create_keys

if TYPE_CHECKING:
    from ml_assets.context import Context
    from resources.ledger import DossierRow


@click.command("approve")
@click.argument("model")
@click.argument("version", type=VERSION)
@reason_option
def approve(model: str, version: int, reason: str) -> None:
    """Approve the newest evaluation of VERSION of MODEL.

    `release.approval` in defs.yaml says who may. A new evaluation needs a new approval.
    """
    _review(model, version, reason, approves=True)


def _review(model: str, number: int, reason: str, *, approves: bool) -> None:
    """Record a review by the acting person, and print the one that decides."""
    context, acting = deciding()
    decide = context.approve if approves else context.reject
    found = decide(model, number, by=acting, reason=reason)
    decided, verb = found.review, "approved" if approves else "rejected"
    if not found.is_new:
        say(f"Nothing changed: {model} version {number} was {verb} before this command.")
    say(f"{model} version {number} is {verb} since {decided.at:%Y-%m-%d %H:%M} UTC,")
    say(f"by {decided.by.in_words}: {decided.reason}")
    say(f"This counts for evaluation {decided.evaluation_digest[:12]} alone.")
    say_if_unchecked(acting)
    if found.unchecked:
        names = ", ".join(found.unchecked)
        say(f"Nobody checked that {names} ran its evaluation, so a person who ran it may have approved it.")
    if approves and decided.approves:
        say(f"To promote it: ml-assets promote {model} {number} --reason '…'")


@click.command("reject")
@click.argument("model")
@click.argument("version", type=VERSION)
@reason_option
def reject(model: str, version: int, reason: str) -> None:
    """Reject the newest evaluation of VERSION of MODEL; an earlier approval no longer counts.

    `release.approval` in defs.yaml says who may. A rejection stands until a new evaluation.
    """
    _review(model, version, reason, approves=False)


@click.command("promote")
@click.argument("model")
@click.argument("version", type=VERSION, required=False)
@click.option("--reason", help="Reason; recorded with your name in an append-only log.")
@click.option(
    "--despite-inputs",
    is_flag=True,
    help="Promote although training inputs were rejected since; the log names them.",
)
def promote(model: str, version: int | None, reason: str | None, despite_inputs: bool) -> None:
    """Put VERSION of MODEL into production. Default: the canary, without one the blessed version with the newest data.

    If `release.canary` in defs.yaml asks for it, the first promotion makes VERSION the canary. The second one, after
    the bake time, puts it into production, unless its requests show it to be worse than `watch` allows.

    The newest evaluation of VERSION must have blessed it against today's champion, and none of its training inputs may
    have been rejected since. A version that was in production before may return without a new evaluation.
    """
    from ml_assets.model.release.promotion import in_full_minutes

    context, acting = deciding()
    if not reason:
        context.project.declared.pipeline(model)  # `NotFound` first, with the names there are
        raise Problem("a promotion needs a reason for the log: add --reason '…'")
    made = context.promote(
        model,
        version,
        by=acting,
        reason=reason,
        despite_inputs=despite_inputs,
        on_missing=lambda why: say(f"Not compared: {why}"),
    )
    promotion, number = made.promotion, made.version
    promoted_by = f"promoted by {promotion.by.in_words}: {promotion.reason}"
    broken = f"Clients of the version before must change: {'; '.join(made.breaks)}." if made.breaks else ""
    if made.baked_at is not None:
        say(f"{model} version {number} is the canary since {promotion.at:%Y-%m-%d %H:%M} UTC,")
        say(promoted_by)
        if made.replaced is not None:
            say(f"Version {made.replaced.version} is no longer the canary. It is in staging.")
        if broken:
            say(broken)
        baked = in_full_minutes(made.baked_at)
        say(f"Into production, from {baked} on: ml-assets promote {model} {number} --reason '…'")
        return
    if made.before == promotion:
        say(f"Nothing changed: {model} version {promotion.version} was in production before this command.")
    say(f"{model} version {promotion.version} is in production since {promotion.at:%Y-%m-%d %H:%M} UTC,")
    say(promoted_by)
    if promotion.despite:
        say(f"despite {promotion.despite}")
    if broken:
        say(broken)
    say(f"Load it anywhere: mlflow.pyfunc.load_model('models:/{model}@production')")


@click.command("rollback")
@click.argument("model")
@reason_option
def rollback(model: str, reason: str) -> None:
    """Put the version of MODEL into production again that was there before the present one.

    Neither a later evaluation nor a rejected day stands in the way. A second rollback goes back by one more version. It
    never returns to an archived or a demoted version.
    """
    context, acting = deciding()
    made = context.rollback(model, by=acting, reason=reason)
    promotion = made.promotion
    say(
        f"{model} version {promotion.version} is in production again since {promotion.at:%Y-%m-%d %H:%M} UTC,"
    )
    say(f"by {promotion.by.in_words}: {promotion.reason}")
    if (newest := made.evaluated_since) is not None:
        say(
            f"It was evaluated again since, with the result {newest.status} ({newest.name}, {newest.partition}):"
        )
        say(f"    {newest.summary} Report: {newest.report}")
    if (replaced := made.replaced) is not None:
        say(
            f"It replaced version {replaced.version}, which can return: ml-assets promote {model} {replaced.version} "
            "--reason '…'"
        )


@click.command("demote")
@click.argument("model")
@reason_option
@click.option("--canary", is_flag=True, help="Take the canary back to staging; production stays.")
def demote(model: str, reason: str, canary: bool) -> None:
    """Take MODEL's version out of production. No other version replaces it.

    The gates then treat the next training of MODEL as a first model: against the naive baseline, without a champion.
    """
    context, acting = deciding()
    ended = context.demote(model, by=acting, reason=reason, canary=canary)
    demotion = ended.demotion
    by = "" if demotion is None else f"Demoted by {demotion.by.in_words}: {demotion.reason}"
    if canary:
        say(f"{model} version {ended.version} is no longer the canary. It is in staging.")
        say(by)
        return
    say(f"{model} version {ended.version} is no longer in production. No version is.")
    say(by)
    say(f"To promote it again: ml-assets promote {model} {ended.version} --reason '…'")


@click.command("archive")
@click.argument("model")
@click.argument("version", type=VERSION)
@reason_option
def archive(model: str, version: int, reason: str) -> None:
    """Archive VERSION of MODEL: it is never promoted again, and no rollback returns to it. This is final.

    The version in production cannot be archived. Card and comparisons of an archived version stay.
    """
    context, acting = deciding()
    archival = context.archive(model, version, by=acting, reason=reason)
    say(f"{model} version {version} is archived since {archival.at:%Y-%m-%d %H:%M} UTC,")
    say(f"by {archival.by.in_words}: {archival.reason}")


@click.group("rules", cls=SuggestingGroup)
def rules() -> None:
    """Show the rules of a model's releases that are in force, and accept a change of them.

    The first registration of a model records the rules of its defs.yaml in the ledger: `release`, and the settings of
    `evaluation` by which gates decide. Decisions need the same ones; others are refused until somebody who may approve
    accepts them.
    """


@rules.command("show", short_help="Show the rules in force, and how defs.yaml differs.")
@click.argument("model")
def rules_show(model: str) -> None:
    """Show the rules of MODEL that are in force, who recorded them, and how this defs.yaml differs."""
    from ml_assets.model.release.rules_in_force import RulesLog, in_words, rules_name, rules_of, why_other

    project = reading().project
    rules = project.declared.pipeline(model).rules
    recorded = RulesLog.read(project.platform.ledger, model)
    row = recorded.newest
    if row is None:
        say(f"No rules of {model} are recorded yet. Its first registration records those of defs.yaml:")
        say(f"    {in_words(rules)}")
        return
    say(f"Rules {rules_name(row.rules_digest)} of {model} are in force since {row.at:%Y-%m-%d %H:%M} UTC,")
    said = f": {row.reason}" if row.reason else ", with the first registration"
    say(f"recorded by {row.by.in_words}{said}")
    say(f"    {in_words(rules_of(row))}")
    if other := why_other(recorded, rules):
        say(other)
        return
    say("This defs.yaml has the same.")
    if recorded.unconfirmed:
        say(f"Note that {recorded.why_unconfirmed}")


@rules.command("accept", short_help="Put the rules of this defs.yaml in force, with a reason.")
@click.argument("model")
@reason_option
def rules_accept(model: str, reason: str) -> None:
    """Put the rules of this defs.yaml in force for MODEL: `release`, and how the gates of `evaluation` decide.

    Whoever may approve under the rules in force may accept others. With `not_by: [author]`, that excludes everybody who
    ran an evaluation of MODEL; with `not_by: [promoter]`, somebody else has to promote under the new rules.
    """
    from ml_assets.model.release.rules_in_force import changes, in_words, rules_name, rules_of

    context, acting = deciding()
    made = context.accept_rules(model, by=acting, reason=reason)
    row, before = made.row, made.before
    if before and row.place == before.place:
        say(f"Nothing changed: rules {rules_name(row.rules_digest)} of {model} are in force already.")
        return
    say(f"Rules {rules_name(row.rules_digest)} of {model} are in force since {row.at:%Y-%m-%d %H:%M} UTC,")
    say(f"accepted by {row.by.in_words}: {row.reason}")
    for line in changes(rules_of(before), made.rules) if before else [in_words(made.rules)]:
        say(f"    {line}")
    say_if_unchecked(acting)


LOOPBACK = "127.0.0.1"


@click.command("review")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=3001, show_default=True, help="Port of the page."
)
@click.option(
    "--host",
    default=LOOPBACK,
    show_default=True,
    help="Address to listen on. Another one than loopback needs accounts (`ml-assets accounts`).",
)
def review(port: int, host: str) -> None:
    """Serve a page with the versions that wait for an approval, until Ctrl-C.

    A reviewer signs in with the token of an account, reads report and differences, and approves or rejects with a
    reason. Without accounts the page decides under your name, and says so. Behind a proxy, ML_ASSETS_REVIEW_URL is the
    address of the page in browsers: only that page may send forms.
    """
    import uvicorn

    from ml_assets.extras.governance.review import desk, review_pages
    from resources.web.bounded_uvicorn import bounded_options

    project = writing().project
    if host != LOOPBACK and not project.platform.ledger.accounts.all():
        raise Problem(
            f"on {host} everybody in the network could decide under your name, because this ledger has no accounts: "
            "first ml-assets accounts add NAME --administrator"
        )
    url = project.settings.review_url
    if host != LOOPBACK and url is None:
        raise Problem(
            f"on {host} the page needs its address in browsers: set ML_ASSETS_REVIEW_URL to https://…"
        )
    address = str(url or "") or f"http://{host}:{port}"
    require_free(host, port)
    say(f"Reviews on {address}; Ctrl-C stops the page.")
    app = review_pages.review_app(desk.ReviewDesk(project.platform, project.declared.pipelines()), address)
    uvicorn.run(app, host=host, port=port, log_level="warning", ws="none", **bounded_options())


@click.group("dossier", cls=SuggestingGroup)
def dossier() -> None:
    """Sign the documents of a version, so that others can verify its bundle without this platform."""


@dossier.command("keygen", short_help="Make a key pair for signing dossiers.")
@click.argument("folder", type=FOLDER)
def dossier_keygen(folder: Path) -> None:
    """Write a private key, signing.pem, and its public key, signing.pub.pem, into FOLDER."""
    with writing_to(folder):
        key = create_keys(folder)
    say(f"private key  {key.path}: keep it secret, set ML_ASSETS_SIGNING_KEY to its path")
    say(f"public key   {folder / PUBLIC}: give it to whoever verifies; its name is {key.public.name[:12]}")


@dossier.command("write", short_help="Sign and store the dossier of a version as it stands now.")
@click.argument("model")
@click.argument("version", type=VERSION, required=False)
@click.option("--out", type=FOLDER, help="Export bundle and dossier to this new folder, too.")
def dossier_write(model: str, version: int | None, out: Path | None) -> None:
    """Write the dossier of VERSION of MODEL. Default: the version in production, or else the newest.

    Signs with the key in ML_ASSETS_SIGNING_KEY. Earlier dossiers stay.
    """
    from ml_assets.context.versions import registered_version
    from ml_assets.extras.governance.dossier.stored import write_dossier

    context = writing()
    project = context.project
    if project.settings.signing_key is None:
        raise Problem(
            "a dossier is signed: make a key with ml-assets dossier keygen FOLDER and set ML_ASSETS_SIGNING_KEY"
        )
    key = SigningKey.read(project.settings.signing_key)
    row = write_dossier(project.platform, registered_version(project, model, version), key)
    say(f"dossier {row.dossier_digest[:12]} of {model} {row.version}, signed with key {row.signed_by[:12]}")
    if out is None:
        say(f"To give it to others: ml-assets dossier export {model} {row.version} FOLDER")
        return
    _export(context, row, out)


@dossier.command("export", short_help="Write bundle and newest dossier of a version to a folder.")
@click.argument("model")
@click.argument("version", type=VERSION)
@click.argument("folder", type=FOLDER)
def dossier_export(model: str, version: int, folder: Path) -> None:
    """Write bundle and newest dossier of VERSION of MODEL to the new FOLDER. Needs no key."""
    from ml_assets.context.versions import registered_version
    from ml_assets.extras.governance.dossier.stored import newest_dossier

    context = writing()
    named = registered_version(context.project, model, version)
    log = context.project.platform.ledger.models
    _export(context, newest_dossier(log, model, named.bundle_digest), folder)


def _export(context: "Context", row: "DossierRow", folder: Path) -> None:
    from ml_assets.extras.governance.dossier.stored import export

    with writing_to(folder):
        export(context.project.bundles, row, folder)
    say(f"wrote {folder}. To verify it anywhere: ml-assets verify {folder} --key PUBLIC.pem")
