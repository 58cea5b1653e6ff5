"""`ml-assets home move`: give MLflow the addresses of a home that was moved or restored from a backup."""

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.project import Project, say
from resources.words import counted, name_some


@click.group("home", cls=SuggestingGroup, short_help="Finish the move of a home, or of its artifacts.")
def command() -> None:
    """Finish the move of a home, or of its artifacts."""


@command.command("move", short_help="Give MLflow the addresses of a moved home.")
def move() -> None:
    """Give MLflow the addresses at which this home has its files now.

    First move the whole home (mv, or restore a backup), or copy its artifacts to ML_ASSETS_ARTIFACTS_URL. Everything
    but MLflow finds files by name. A version of MLflow gets the address of the bundle with its digest; numbers,
    aliases and tags stay. Environments of the home are moved, too. You can repeat the command at any time.
    """
    from ml_assets.model.release.registry import NoEmbeddedTracker, moved_from, readdress
    from ml_assets.model.release.releases import bundles_of
    from resources.lake.environments import environments

    main = Project.on_main()
    names = [None, *(one.name for one in environments(main.settings.home))]
    missing: list[str] = []
    for name in names:
        project = main if name is None else Project(main.settings.inside(name))
        bundles, tracking = bundles_of(project.platform), project.settings.resolved_tracking_uri
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
