"""`ml-assets dossier`: keys, and dossiers of registered versions."""

from pathlib import Path

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.problems import writing_to
from ml_assets.cli.project import Project, say
from ml_assets.cli.registered import VERSION, registered

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(
    "dossier", cls=SuggestingGroup, short_help="Sign the documents of a version; export them with its bundle."
)
def command() -> None:
    """Sign the documents of a version, so that others can verify its bundle without this platform."""


@command.command("keygen", short_help="Make a key pair for signing dossiers.")
@click.argument("folder", type=_FOLDER)
def keygen(folder: Path) -> None:
    """Write a private key, signing.pem, and its public key, signing.pub.pem, into FOLDER."""
    from ml_assets.extras.governance.dossier.signature import PUBLIC, create_keys

    with writing_to(folder):
        key = create_keys(folder)
    say(f"private key  {key.path}: keep it secret, set ML_ASSETS_SIGNING_KEY to its path")
    say(f"public key   {folder / PUBLIC}: give it to whoever verifies; its name is {key.public.name[:12]}")


@command.command("write", short_help="Sign and store the dossier of a version as it stands now.")
@click.argument("model")
@click.argument("version", type=VERSION, required=False)
@click.option("--out", type=_FOLDER, help="Export bundle and dossier to this new folder, too.")
def write(model: str, version: int | None, out: Path | None) -> None:
    """Write the dossier of VERSION of MODEL. Default: the version in production, or else the newest.

    Signs with the key in ML_ASSETS_SIGNING_KEY. Earlier dossiers stay.
    """
    from ml_assets.cli.problems import Problem
    from ml_assets.extras.governance.dossier.signature import SigningKey
    from ml_assets.model.release.dossiers import export as export_to
    from ml_assets.model.release.releases import bundles_of
    from ml_assets.model.steps.dossier import write_dossier

    project = Project.here()
    if project.settings.signing_key is None:
        raise Problem(
            "a dossier is signed: make a key with ml-assets dossier keygen FOLDER and set ML_ASSETS_SIGNING_KEY"
        )
    key = SigningKey.read(project.settings.signing_key)
    row = write_dossier(project.platform, registered(project, model, version), key)
    say(f"dossier {row.dossier_digest[:12]} of {model} {row.version}, signed with key {row.signed_by[:12]}")
    if out is None:
        say(f"To give it to others: ml-assets dossier export {model} {row.version} FOLDER")
        return
    with writing_to(out):
        export_to(bundles_of(project.platform), row, out)
    _say_exported(out)


@command.command("export", short_help="Write bundle and newest dossier of a version to a folder.")
@click.argument("model")
@click.argument("version", type=VERSION)
@click.argument("folder", type=_FOLDER)
def export(model: str, version: int, folder: Path) -> None:
    """Write bundle and newest dossier of VERSION of MODEL to the new FOLDER. Needs no key."""
    from ml_assets.model.release.dossiers import export as export_to
    from ml_assets.model.release.dossiers import newest_dossier
    from ml_assets.model.release.releases import bundles_of

    project = Project.here()
    named = registered(project, model, version)
    row = newest_dossier(project.platform.ledger.models, model, named.bundle_digest)
    with writing_to(folder):
        export_to(bundles_of(project.platform), row, folder)
    _say_exported(folder)


def _say_exported(folder: Path) -> None:
    say(f"wrote {folder}. To verify it anywhere: ml-assets verify {folder} --key PUBLIC.pem")
