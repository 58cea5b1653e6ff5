"""`ml-assets accounts`: accounts by which persons prove who they are."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say

BEGINS = "From the first account on, each decision of a person in this ledger needs one."


@click.group(
    "accounts",
    cls=SuggestingGroup,
    short_help="Add, list and revoke accounts of persons, who prove who they are.",
)
def command() -> None:
    """Add, list and revoke accounts of this ledger.

    Without accounts, names are checked by nobody. From the first account on, approving, rejecting, promoting, demoting,
    rolling back, archiving, accepting and readmitting need an account, and only administrators add and revoke accounts.
    """


@command.command("add", short_help="Add an account; print its token once.")
@click.argument("name")
@click.option("--administrator", is_flag=True, help="The person may add and revoke accounts.")
@click.option(
    "--oidc",
    nargs=3,
    metavar="ISSUER SUBJECT AUDIENCE",
    help="An OIDC issuer proves the person, by the claims iss, sub and aud of its ID tokens, instead of a token.",
)
@click.option("--reason", default="", help="Reason; recorded with your name in an append-only log.")
def add(name: str, administrator: bool, oidc: tuple[str, str, str] | None, reason: str) -> None:
    """Add an account for the person NAME, as `release.approval.by` and the log name her.

    The command prints a token once; the ledger keeps only its digest. The person sets it as ML_ASSETS_TOKEN. With
    --oidc the person sets an ID token as ML_ASSETS_OIDC_TOKEN instead.
    """
    platform = Project.here().platform
    if oidc is not None:
        from resources.acting import require_proof_of
        from resources.ledger import Person

        issuer, subject, audience = oidc
        # An ID token proves nobody before the first account, so the administrator's name is then unchecked.
        is_first = not platform.ledger.accounts.all()
        platform.ledger.accounts.add_by_oidc(
            name,
            Person.unchecked(platform.settings.author) if is_first else platform.acting,
            issuer=issuer,
            subject=subject,
            audience=audience,
            reason=reason,
            is_administrator=administrator,
            prove_first=lambda new: require_proof_of(new, platform.settings),
        )
        say(f"{name} has an account{' as administrator' if administrator else ''}. {issuer} proves {name}:")
        say("export ML_ASSETS_OIDC_TOKEN=… (an ID token)")
        say(BEGINS)
        return
    token = platform.ledger.accounts.add_by_token(
        name, platform.acting, reason=reason, is_administrator=administrator
    )
    say(f"{name} has an account{' as administrator' if administrator else ''}. Token, shown once:")
    say(token)
    say(f"{name} proves the name with it: export ML_ASSETS_TOKEN=…")
    say(BEGINS)


@command.command("list", short_help="List all accounts, also revoked ones.")
def show() -> None:
    """List all accounts: proof, role, and who added or revoked them."""
    from resources.ledger import author_in_words

    known = Project.read_only().platform.ledger.accounts.all()
    if not known:
        say("No account: nobody checks names. To begin: ml-assets accounts add NAME --administrator")
    for one in known:
        proof = f"OIDC, {one.subject} of {one.issuer}" if one.issuer else "token"
        role = ", administrator" if one.is_administrator else ""
        added = f"added {one.at:%Y-%m-%d %H:%M} UTC by {author_in_words(one)}"
        said = f": {one.reason}" if one.reason else ""
        say(f"{one.name}  {proof}{role}, {added}{said}")
        if (ended := one.revocation) is not None:
            by = author_in_words(ended)
            say(f"    revoked {ended.at:%Y-%m-%d %H:%M} UTC by {by}: {ended.reason}")


@command.command("revoke", short_help="Revoke an account.")
@click.argument("name")
@click.option("--reason", required=True, help="Reason; recorded with your name in an append-only log.")
def revoke(name: str, reason: str) -> None:
    """Revoke the account NAME: its token proves nothing any more. Decisions of the past stay."""
    platform = Project.here().platform
    ended = platform.ledger.accounts.revoke(name, platform.acting, reason=reason)
    say(f"The account of {ended.name} is revoked. For a new one: ml-assets accounts add {ended.name}")
