"""`ml-assets verify`: the verification of a dossier by whoever got it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.project import say

if TYPE_CHECKING:
    from ml_assets.extras.governance.dossier.signature import PublicKey
    from ml_assets.extras.governance.dossier.verification import Verified


@click.command("verify", short_help="Verify a dossier with a public key, without this platform.")
@click.argument("what", metavar="FOLDER|MODEL/VERSION")
@click.option(
    "--key", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Public key in PEM."
)
@click.option("--ledger", "with_ledger", is_flag=True, help="Compare its decisions with the ledger, too.")
def command(what: str, key: Path, with_ledger: bool) -> None:
    """Verify an exported dossier in FOLDER, or the stored one of MODEL/VERSION.

    FOLDER and the key are enough: neither settings nor ledger nor lake are read without --ledger. The error names each
    file that was altered, added or removed since the dossier was signed.
    """
    from ml_assets.extras.governance.dossier.signature import PublicKey
    from ml_assets.extras.governance.dossier.verification import verify

    public = PublicKey.read(key)
    is_folder = Path(what).is_dir() or not _is_version(what)
    found = verify(Path(what), public) if is_folder else _stored(what, public)
    dirty = ", with changes (dossier/code.diff)" if found.is_dirty else ""
    say(f"{found.model} {found.number}: {found.files} files, all as signed with key {public.name[:12]}")
    say(f"  bundle      {found.bundle}")
    say(f"  evaluation  {found.evaluation}, {found.status}")
    say(f"  data        commit {found.lake_commit} of the lake")
    say(f"  code        {', '.join(found.code_commits) or 'no commit is known'}{dirty}")
    say(f"  decisions   {len(found.decisions['rows'])} rows, head {found.decisions['head']}")
    if with_ledger:
        from ml_assets.cli.project import Project
        from ml_assets.extras.governance.dossier.verification import require_in_ledger
        from ml_assets.model.release.history import since
        from resources.ledger import Head

        ledger = Project.read_only().platform.ledger
        require_in_ledger(found.decisions, ledger)
        say("  ledger      has the same rows, and its chain contains the head")
        place = Head.parse(found.decisions["head"]).place
        for line in since(ledger.models.decisions(found.model), place, found.bundle):
            say(f"  since then: {line}")


def _is_version(what: str) -> bool:
    model, _, number = what.partition("/")
    return bool(model) and number.isdecimal()


def _stored(what: str, key: "PublicKey") -> "Verified":
    from ml_assets.cli.problems import Problem
    from ml_assets.cli.project import Project
    from ml_assets.cli.registered import registered
    from ml_assets.model.release.dossiers import newest_dossier, verify_stored
    from ml_assets.model.release.registry import VersionMissing
    from ml_assets.model.release.releases import bundles_of

    model, _, number = what.partition("/")
    project = Project.read_only()
    try:
        digest = registered(project, model, int(number)).bundle_digest
    except (Problem, VersionMissing) as error:
        raise Problem(
            f"{what} is neither a folder nor a registered version. As a folder, it does not exist: give the one that "
            f"ml-assets dossier export wrote. As MODEL/VERSION: {error}"
        ) from error
    row = newest_dossier(project.platform.ledger.models, model, digest)
    return verify_stored(bundles_of(project.platform), row, key)
