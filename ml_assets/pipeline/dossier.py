"""Dossier of a registered version: gathering its facts, signing and storing it, exporting it with its bundle.

Not here: forms, signature and verification (`ml_assets.dossier`).
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Set
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ml_assets.dossier.contents import (
    BUNDLE,
    CARD,
    CARD_PAGE,
    CODE_DIFFERENCE,
    EVALUATION,
    LISTING,
    DossierFacts,
    TableBehind,
)
from ml_assets.dossier.errors import DossierRefused
from ml_assets.dossier.keys import PublicKey, SigningKey
from ml_assets.dossier.ledger_rows import decisions_about
from ml_assets.dossier.provenance import listed
from ml_assets.dossier.signature import SIGNATURE
from ml_assets.dossier.verification import Verified, verify
from ml_assets.dossier.writing import write
from ml_assets.pipeline.launches import DIFFERENCE, read_launches, source
from ml_assets.pipeline.launches import LOCK as LOCK_FILE
from ml_assets.pipeline.model_card import card_of, report_of
from resources.platform import Platform

if TYPE_CHECKING:
    from ml_assets.release.bundle_store import Bundle
    from ml_assets.release.registry import RegisteredVersion
    from resources.ledger import DossierRow

DOSSIERS = "dossiers"
"""Folder of all dossiers among the artifacts. Each has a folder of its own, named by its digest."""


def write_dossier(platform: Platform, version: "RegisteredVersion", key: SigningKey) -> "DossierRow":
    """Make, sign, verify and store the dossier of a version as it stands now; record it in the ledger.

    Earlier dossiers stay. Raises `ReportUnavailable`, `LaunchUnknown`, `InputsUnknown`, and the bundle store's errors.
    """
    from ml_assets.release.of_platform import bundles_of

    bundle = bundles_of(platform).open(version.bundle_digest)
    row, report = report_of(platform, version)
    card = card_of(platform, version)
    facts = _facts(platform, version, bundle)
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as scratch:
        folder = Path(scratch) / f"{version.model}-{version.number}"
        _lay_out(bundle, folder, links=True)
        documents = {CARD: card.to_markdown(), CARD_PAGE: card.to_html(), EVALUATION: report.to_json()}
        names = write(folder, facts, documents, key)
        digest = hashlib.sha256((folder / SIGNATURE).read_bytes()).hexdigest()
        place = f"{DOSSIERS}/{version.model}/{digest}"
        for name in names:
            with platform.artifacts.create(place, name) as stream:
                stream.write((folder / name).read_bytes())
    return platform.ledger.models.record_dossier(
        row,
        str(version.number),
        digest,
        signed_by=key.public.name,
        author=platform.acting.name,
        checked_by=platform.acting.checked_by,
    )


@contextmanager
def exported(platform: Platform, row: "DossierRow", parent: Path | None = None) -> Generator[Path]:
    """Yield a folder with the bundle and the dossier of `row`; delete it after the block.

    With `parent` it is made there and has copies only: a person may change them. Raises `DossierRefused` if the dossier
    is gone.
    """
    from ml_assets.release.of_platform import bundles_of

    name = f"{DOSSIERS}/{row.model}/{row.dossier_digest}"
    files = platform.artifacts.files(name)
    if SIGNATURE not in files:
        raise DossierRefused(
            f"the dossier {row.dossier_digest[:12]} of {row.model} {row.version} is gone from "
            f"{platform.artifacts.address(name)}: write it again with ml-assets dossier write {row.model} {row.version}"
        )
    with tempfile.TemporaryDirectory(prefix=".ml-assets-", dir=parent) as scratch:
        folder = Path(scratch) / f"{row.model}-{row.version}"
        _lay_out(bundles_of(platform).open(row.bundle_digest), folder, links=parent is None)
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            platform.artifacts.fetch(name, file, folder / file)
        if hashlib.sha256((folder / SIGNATURE).read_bytes()).hexdigest() != row.dossier_digest:
            raise DossierRefused(
                f"{SIGNATURE} in {platform.artifacts.address(name)} is not that of the dossier "
                f"{row.dossier_digest[:12]} in the ledger: it was altered or replaced"
            )
        yield folder


def newest_dossier(platform: Platform, model: str, bundle: str) -> "DossierRow":
    """Return the newest dossier of a bundle. Raises `DossierRefused` if it has none."""
    found = [one for one in platform.ledger.models.dossiers(model) if one.bundle_digest == bundle]
    if not found:
        raise DossierRefused(
            f"the bundle {bundle[:12]} of {model} has no dossier yet: write one with ml-assets dossier write {model}"
        )
    return found[-1]


def verify_stored(platform: Platform, row: "DossierRow", key: PublicKey) -> Verified:
    """Verify a stored dossier with its bundle. Raises `DossierRefused`."""
    with exported(platform, row) as folder:
        return verify(folder, key)


def export(platform: Platform, row: "DossierRow", folder: Path) -> None:
    """Write bundle and dossier of `row` to `folder`, which must not exist. Raises `DossierRefused`."""
    if folder.exists():
        raise DossierRefused(f"{folder} exists: choose a new folder, so that it has the signed files only")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exported(platform, row, folder.parent) as made:
        made.rename(folder)


def _lay_out(bundle: "Bundle", folder: Path, *, links: bool) -> None:
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


def _facts(platform: Platform, version: "RegisteredVersion", bundle: "Bundle") -> DossierFacts:
    from ml_assets.release.rows_behind import contents_of

    row, report = report_of(platform, version)
    facts, lineage = bundle.facts, bundle.facts.lineage
    launches = read_launches(platform, version.model, lineage.fingerprint, row.launches)
    last = launches[-1] if launches else None
    difference = source(platform, last.difference, DIFFERENCE) if last and last.difference else b""
    behind = contents_of(platform.lake, platform.ledger.models, row.trained_on)
    evaluation = {**asdict(row), "at": row.at.isoformat()}
    return DossierFacts(
        model=version.model,
        number=version.number,
        semantic=version.semantic,
        partition=row.partition,
        description=report.model.description,
        objective=facts.objective,
        label=lineage.label,
        inputs=tuple(column.name for column in facts.inputs),
        metrics=report.evaluation.values(),
        intended_use=report.model.card.intended_use or "",
        not_intended_for=tuple(report.model.card.not_intended_for),
        bundle=bundle.digest,
        listing=(bundle.folder / Path(LISTING).name).read_text(),
        lineage=json.loads((bundle.folder / "bundle.json").read_text())["lineage"],
        evaluation=evaluation,
        lake=platform.settings.environment,
        tables=tuple(
            TableBehind(name=table, partitions=len(rows), digest=_digest(rows))
            for table, rows in sorted(behind.items())
        ),
        launches=tuple(asdict(one) for one in launches),
        decisions=decisions_about(platform.ledger, version.model, bundle.digest),
        lock=source(platform, last.lock, LOCK_FILE).decode() if last and last.lock else "",
        files={CODE_DIFFERENCE: difference} if difference else {},
    )


def _digest(rows: Set[tuple[str, str]]) -> str:
    return hashlib.sha256("".join(f"{key} {digest}\n" for key, digest in sorted(rows)).encode()).hexdigest()
