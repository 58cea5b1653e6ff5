"""`ml-assets accounts`, `ledger`, `lake`, `home`: the stored state of an installation, and who may decide about it."""

from typing import TYPE_CHECKING

import click

from ml_assets.cli.opened import deciding, reading, writing
from ml_assets.cli.terminal import (
    SuggestingGroup,
    reason_option,
    say,
    say_aside,
)
from resources.files import locked
from resources.words import counted, name_some

if TYPE_CHECKING:
    from resources.ledger import Role

BEGINS = "From the first account on, each decision of a person in this ledger needs one."


@click.group("accounts", cls=SuggestingGroup)
def accounts() -> None:
    """Add, list and revoke accounts of this ledger.

    Without accounts, names are checked by nobody. From the first account on, approving, rejecting, promoting, demoting,
    rolling back, archiving, accepting and readmitting need an account, and only administrators add and revoke accounts.
    """


@accounts.command("add", short_help="Add an account; print its token once.")
@click.argument("name")
@click.option("--administrator", is_flag=True, help="The person may add and revoke accounts.")
@click.option(
    "--oidc",
    nargs=3,
    metavar="ISSUER SUBJECT AUDIENCE",
    help="An OIDC issuer proves the person, by the claims iss, sub and aud of its ID tokens, instead of a token.",
)
@click.option("--reason", default="", help="Reason; recorded with your name in an append-only log.")
def accounts_add(name: str, administrator: bool, oidc: tuple[str, str, str] | None, reason: str) -> None:
    """Add an account for the person NAME, as `release.approval.by` and the log name her.

    The command prints a token once; the ledger keeps only its digest. The person sets it as ML_ASSETS_TOKEN. With
    --oidc the person sets an ID token as ML_ASSETS_OIDC_TOKEN instead.
    """
    platform = writing().project.platform
    role = " as administrator" if administrator else ""
    if oidc is not None:
        from resources import acting, ledger

        issuer, subject, audience = oidc
        # An ID token proves nobody before the first account, so the administrator's name is then unchecked.
        is_first = not platform.ledger.accounts.all()
        platform.ledger.accounts.add_by_oidc(
            name,
            ledger.Person.unchecked(platform.settings.author) if is_first else platform.acting,
            issuer=issuer,
            subject=subject,
            audience=audience,
            reason=reason,
            is_administrator=administrator,
            prove_first=lambda new: acting.require_proof_of(new, platform.settings),
        )
        say(f"{name} has an account{role}. {issuer} proves {name}:")
        say("export ML_ASSETS_OIDC_TOKEN=… (an ID token)")
        say(BEGINS)
        return
    token = platform.ledger.accounts.add_by_token(
        name, platform.acting, reason=reason, is_administrator=administrator
    )
    say(f"{name} has an account{role}. Token, shown once:")
    say(token)
    say(f"{name} proves the name with it: export ML_ASSETS_TOKEN=…")
    say(BEGINS)


@accounts.command("role", short_help="Give an account a role in Dagster's pages, with a reason.")
@click.argument("name")
@click.argument("role", type=click.Choice(["viewer", "operator", "approver", "admin"]))
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Limit an operator or approver to this group of assets. May be given several times. Default: all.",
)
@reason_option
def accounts_role(name: str, role: "Role", groups: tuple[str, ...], reason: str) -> None:
    """Let the person NAME do in Dagster's pages what ROLE may, behind `ml-assets proxy`.

    Each role may do what those before it may: viewer, operator, approver, admin. Without this command an administrator
    is admin, and everybody else is viewer.
    """
    platform = writing().project.platform
    row = platform.ledger.accounts.set_role(name, role, platform.acting, groups=groups, reason=reason)
    limit = f", limited to the assets of {', '.join(row.groups)}" if row.groups else ""
    say(f"{row.name} has the role {row.role} in Dagster's pages{limit}.")


@accounts.command("list", short_help="List all accounts, also revoked ones.")
def accounts_list() -> None:
    """List all accounts: proof, role, and who added or revoked them."""
    ledger = reading().project.platform.ledger
    known, standings = ledger.accounts.all(), ledger.accounts.standings()
    if not known:
        say("No account: nobody checks names. To begin: ml-assets accounts add NAME --administrator")
    for one in known:
        proof = f"OIDC, {one.subject} of {one.issuer}" if one.issuer else "token"
        role = ", administrator" if one.is_administrator else ""
        added = f"added {one.at:%Y-%m-%d %H:%M} UTC by {one.by.in_words}"
        said = f": {one.reason}" if one.reason else ""
        say(f"{one.name}  {proof}{role}, {added}{said}")
        standing = standings.get(one.place)
        if standing is not None and standing.role not in ("viewer", "admin"):
            limit = f", limited to the assets of {', '.join(standing.groups)}" if standing.groups else ""
            say(f"    {standing.role} in Dagster's pages{limit}")
        if (ended := one.revocation) is not None:
            by = ended.by.in_words
            say(f"    revoked {ended.at:%Y-%m-%d %H:%M} UTC by {by}: {ended.reason}")


@accounts.command("revoke", short_help="Revoke an account.")
@click.argument("name")
@reason_option
def accounts_revoke(name: str, reason: str) -> None:
    """Revoke the account NAME: its token proves nothing any more. Decisions of the past stay."""
    platform = writing().project.platform
    ended = platform.ledger.accounts.revoke(name, platform.acting, reason=reason)
    say(f"The account of {ended.name} is revoked. For a new one: ml-assets accounts add {ended.name}")


@click.group("ledger", cls=SuggestingGroup)
def ledger() -> None:
    """Check the ledger's hash chain; show its schema revision."""


@ledger.command("verify", short_help="Check that no decision was changed since.")
@click.option("--head", "known", help="Head that an earlier `verify` printed; the chain must contain it.")
def ledger_verify(known: str | None) -> None:
    """Walk the hash chain over all decisions about models and accounts, and over acceptances.

    The error names the first row that was changed, removed, inserted or moved. Keep the printed head outside the
    database: only with it are a chain that was rewritten to its end, and removed last rows, found later.
    """
    from resources.ledger import Head

    head = Head.parse(known) if known else None
    found = reading().project.platform.ledger.models.verify(head)
    if not found.place:
        say("the ledger has no decision yet")
        return
    say(f"{found.place} decisions, each chained to the one before it: none was changed.")
    say(f"Keep this head elsewhere; to compare later: ml-assets ledger verify --head {found}")


@ledger.command("redate", short_help="Date rows of a model that a wrong clock dated ahead, with a reason.")
@click.argument("model")
@reason_option
def ledger_redate(model: str, reason: str) -> None:
    """Let rows of MODEL that are dated ahead of the ledger's clock count as of now. The rows themselves stay.

    Until then no decision about MODEL is stored, because it would get a time ahead, too.
    """
    context, acting = deciding()
    row = context.project.platform.ledger.models.redate(model, acting, reason=reason)
    say(f"Rows {', '.join(map(str, row.rows))} of {model} count as of {row.at:%Y-%m-%d %H:%M:%S} UTC.")


@ledger.command("current", short_help="Show the schema revision of the tables.")
def ledger_current() -> None:
    """Show the schema revision of the tables, and the revision that this version of ml-assets needs."""
    from resources.ledger.migrations import NEWEST

    revision = reading().project.platform.ledger.revision()
    say(f"the tables have revision {revision or 'none'}, this version of ml-assets needs {NEWEST}")


@click.group("lake", cls=SuggestingGroup)
def lake() -> None:
    """Set up the lake; check that every commit on main was audited; move it to lakeFS."""


@lake.command("init", short_help="Create and protect the repository; install the audit hook.")
def lake_init() -> None:
    """Create the lake's repository, protect main and install the audit hook, which refuses unaudited merges.

    You can run it again at any time. It replaces an older hook and changes nothing else.
    """
    for line in writing().project.platform.make_lake_ready():
        say(line)


@lake.command("audit", short_help="List commits on main without a passed audit.")
@click.option("--limit", default=10_000, show_default=True, help="Check this many of main's newest commits.")
def lake_audit(limit: int) -> None:
    """List commits on main without an audit or acceptance, and rejections that the ledger does not know.

    Exit status 1 if there is one of these, or if the audit hook is missing.
    """
    from ml_assets.data.tables.history.log import unaudited, unknown_rejections

    platform = reading().project.platform
    commits = unaudited(platform.lake, limit)
    for commit in commits:
        say(f"{commit.created_at:%Y-%m-%d %H:%M:%S} UTC  {commit.message}")
        say(f"    {platform.lake.commit_url(commit.id) or commit.id}")
    hook_is_current = platform.audit_hook_is_current()
    if not hook_is_current:
        say(
            "The audit hook of main is missing or belongs to another version. Install it: ml-assets lake init"
        )
    if commits:
        say(
            f"Commits on main without a passed audit: {len(commits)}. Publish those partitions again "
            "(ml-assets launch), or accept them: ml-assets accept TABLE PARTITION --reason '…'."
        )
    rejections = unknown_rejections(platform.lake, platform.ledger)
    for one in rejections:
        say(
            f"{one.table} {name_some(one.keys, 3)} was rejected (branch {one.branch}), and the ledger does not know it."
        )
    if rejections:
        say(
            "Trainings may read what main holds of these partitions. Materialize them again (ml-assets launch). The "
            "ledger is older than the lake, or another ledger was used with this lake, or a run was killed."
        )
    if commits or rejections or not hook_is_current:
        raise SystemExit(1)
    say("Every commit on main passed an audit or was accepted by a person.")


@lake.command("migrate", short_help="Show what moves from the embedded lake to lakeFS; move it with --copy.")
@click.option(
    "--copy", "copies", is_flag=True, help="Copy it and verify it. Without this option nothing changes."
)
def lake_migrate(copies: bool) -> None:
    """Show what moves from the embedded lake of the home to lakeFS; move it with --copy, with its history.

    ML_ASSETS_LAKE_URL and its keys name the server, ML_ASSETS_ENVIRONMENT the embedded lake and the repository, which
    --copy creates. The embedded lake stays as it is. A killed copy goes on when it is repeated.
    """
    from resources.lake.lakefs_setup import create_repository

    platform = writing(on_main=True).project.platform
    with locked(platform.settings.home / "lake-migration.lock"):
        migration = platform.lake_migration
        found = migration.look()
        say(f"{found.branches:>8,} branches, {found.tags:,} tags")
        say(f"{found.commits:>8,} commits, of which {found.migrated:,} were moved before")
        say(f"{found.contents:>8,} contents of {found.size:,} bytes")
        say(f"{found.lost:>8,} contents that garbage collection deleted")
        if not copies:
            say("Nothing was copied. To copy it: ml-assets lake migrate --copy")
            return
        create_repository(platform.lakefs, platform.settings.lake_storage)
        ids = migration.copy(say_aside)
        for line in platform.make_lake_ready():
            say(line)
    say(f"{len(ids):,} commits moved and verified; ids of the embedded lake stay valid. It is in")
    say(f"{platform.settings.lake_folder}, which nothing reads while ML_ASSETS_LAKE_URL is set")


@click.group("home", cls=SuggestingGroup)
def home() -> None:
    """Finish the move of a home, or of its artifacts."""


@home.command("move", short_help="Give MLflow the addresses of a moved home.")
def home_move() -> None:
    """Give MLflow the addresses at which this home has its files now.

    First move the whole home (mv, or restore a backup), or copy its artifacts to ML_ASSETS_ARTIFACTS_URL. Everything
    but MLflow finds files by name. A version of MLflow gets the address of the bundle with its digest; numbers,
    aliases and tags stay. Environments of the home are moved, too. You can repeat the command at any time.
    """
    from ml_assets.context.project import Project
    from ml_assets.model.release.registry import NoEmbeddedTracker, moved_from, readdress
    from resources.lake.environments import environments

    main = writing(on_main=True).project
    names = [None, *(one.name for one in environments(main.settings.home))]
    missing: list[str] = []
    for name in names:
        project = main if name is None else Project(main.settings.inside(name))
        bundles, tracking = project.bundles, project.settings.resolved_tracking_uri
        where = "MLflow" if name is None else f"MLflow of environment {name}"
        before = moved_from(tracking, bundles)
        try:
            changed = readdress(tracking, bundles)
        except NoEmbeddedTracker as server:
            say(str(server))
            continue
        missing += changed.missing
        if not before:
            say(f"{where} has the addresses of today: nothing to move")
            continue
        say(
            f"{where} looked under {name_some(before, 3)}, and now under {bundles.address.removesuffix('/bundles')}: "
            f"{counted(changed.experiments, 'experiment')}, {counted(changed.versions, 'version')}"
        )
    if missing:
        say(
            f"Without their bundle, so with their old address: {name_some(missing, 5)}. Copy the folder bundles of the "
            "artifacts, and repeat the command"
        )
        raise SystemExit(1)
