"""Stored dossiers: finding, exporting and verifying them, and the check of a promotion.

Not here: what a dossier says (`ml_assets.extras.governance.dossier`), writing one
(`ml_assets.extras.governance.dossier.making`).
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ml_assets.extras.governance.dossier.documents import BUNDLE, LISTING, listed
from ml_assets.extras.governance.dossier.signature import SIGNATURE, DossierRefused, PublicKey
from ml_assets.extras.governance.dossier.verification import Verified, verify
from ml_assets.model.release.bundle_store import Bundle, BundleMissing, BundleStore
from ml_assets.model.release.rules import DossierSection
from resources.artifacts import Artifacts, ArtifactsError
from resources.ledger import DossierRow, EvaluationRow, ModelLog

_DOSSIERS = "dossiers"


def dossier_name(model: str, digest: str) -> str:
    """Return the folder name of a dossier among the artifacts."""
    return f"{_DOSSIERS}/{model}/{digest}"


def dossier_address(artifacts: Artifacts, row: DossierRow) -> str:
    """Return the address of a dossier's files."""
    return artifacts.address(dossier_name(row.model, row.dossier_digest))


def newest_dossier(log: ModelLog, model: str, bundle: str) -> DossierRow:
    """Return the newest dossier of a bundle. Raises `DossierRefused` if it has none."""
    found = [one for one in log.dossiers(model) if one.bundle_digest == bundle]
    if not found:
        raise DossierRefused(
            f"the bundle {bundle[:12]} of {model} has no dossier yet: write one with ml-assets dossier write {model}"
        )
    return found[-1]


def verify_stored(store: BundleStore, row: DossierRow, key: PublicKey) -> Verified:
    """Verify a stored dossier with its bundle. Raises `DossierRefused`."""
    with _exported(store, row) as folder:
        return verify(folder, key)


def export(store: BundleStore, row: DossierRow, folder: Path) -> None:
    """Write bundle and dossier of `row` to `folder`, which must not exist. Raises `DossierRefused`."""
    if folder.exists():
        raise DossierRefused(f"{folder} exists: choose a new folder, so that it has the signed files only")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exported(store, row, folder.parent) as made:
        made.rename(folder)


def why_no_dossier(
    rules: DossierSection, evaluation: EvaluationRow, log: ModelLog, store: BundleStore
) -> str:
    """Return the reason why no valid dossier allows a promotion on `evaluation`; empty if nothing is missing."""
    of_evaluation = [
        one for one in log.dossiers(evaluation.model) if one.evaluation_digest == evaluation.evaluation_digest
    ]
    if not of_evaluation:
        return f"release.dossier in defs.yaml asks for a dossier of its evaluation {evaluation.name}, and there is none"
    keys = {one.name: one for one in rules.keys}
    # Anybody can record a dossier of a key that counts for nothing, so it must not hide those that count.
    newest = next((one for one in reversed(of_evaluation) if one.signed_by in keys), None)
    if newest is None:
        newest = of_evaluation[-1]
        return (
            f"its dossier {newest.dossier_digest[:12]} was signed with key {newest.signed_by[:12]}, which is not among "
            "release.dossier.signed_by in defs.yaml"
        )
    try:
        found = verify_stored(store, newest, keys[newest.signed_by])
    except (DossierRefused, ArtifactsError, BundleMissing) as error:
        return f"its dossier {newest.dossier_digest[:12]} is not valid: {error}"
    if (found.bundle, found.evaluation) != (evaluation.bundle_digest, evaluation.evaluation_digest):
        return f"its dossier {newest.dossier_digest[:12]} is about another bundle or evaluation"
    return ""


@contextmanager
def _exported(store: BundleStore, row: DossierRow, parent: Path | None = None) -> Generator[Path]:
    """Yield a folder with the bundle and the dossier of `row`; delete it after the block.

    With `parent` it is made there and has copies only: a person may change them. Raises `DossierRefused` if the dossier
    is gone.
    """
    name, artifacts = dossier_name(row.model, row.dossier_digest), store.artifacts
    files = artifacts.files(name)
    if SIGNATURE not in files:
        raise DossierRefused(
            f"the dossier {row.dossier_digest[:12]} of {row.model} {row.version} is gone from "
            f"{artifacts.address(name)}: write it again with ml-assets dossier write {row.model} {row.version}"
        )
    with tempfile.TemporaryDirectory(prefix=".ml-assets-", dir=parent) as scratch:
        folder = Path(scratch) / f"{row.model}-{row.version}"
        lay_out(store.open(row.bundle_digest), folder, links=parent is None)
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            artifacts.fetch(name, file, folder / file)
        if hashlib.sha256((folder / SIGNATURE).read_bytes()).hexdigest() != row.dossier_digest:
            raise DossierRefused(
                f"{SIGNATURE} in {artifacts.address(name)} is not that of the dossier {row.dossier_digest[:12]} in the "
                "ledger: it was altered or replaced"
            )
        yield folder


def lay_out(bundle: Bundle, folder: Path, *, links: bool) -> None:
    """Place the bundle's files in `folder`. With `links`, as hard links if the disk is the same: weights are large."""
    (folder / BUNDLE).mkdir(parents=True)
    listing = Path(LISTING).name
    for name in (*listed((bundle.folder / listing).read_text()), listing):
        if links:
            try:
                os.link(bundle.folder / name, folder / BUNDLE / name)
                continue
            except OSError:  # another disk
                pass
        shutil.copyfile(bundle.folder / name, folder / BUNDLE / name)
