"""Stored dossiers of registered versions: making, finding, exporting and verifying them, and the check of a promotion.

Not here: forms, signature and verification of a dossier (`ml_assets.extras.governance.dossier`).
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Generator, Set
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ml_assets.extras.governance.dossier.documents import (
    BUNDLE,
    CARD,
    CARD_PAGE,
    CODE_DIFFERENCE,
    EVALUATION,
    LISTING,
    DossierFacts,
    TableBehind,
    listed,
)
from ml_assets.extras.governance.dossier.signature import SIGNATURE, DossierRefused, PublicKey, SigningKey
from ml_assets.extras.governance.dossier.verification import Verified, decisions_about, verify, write
from ml_assets.model.release.bundle_store import Bundle, BundleMissing, BundleStore
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.rules import DossierSection
from ml_assets.model.release.standing import contents_of
from ml_assets.model.steps.record import card_of, report_of
from ml_assets.model.steps.train import DIFFERENCE, read_launches, source
from ml_assets.model.steps.train import LOCK as LOCK_FILE
from resources.artifacts import Artifacts, ArtifactsError
from resources.files import link_or_copy
from resources.ledger import DossierRow, EvaluationRow, ModelLog
from resources.platform import Platform

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
        place = link_or_copy if links else shutil.copyfile
        place(bundle.folder / name, folder / BUNDLE / name)


def write_dossier(platform: Platform, version: RegisteredVersion, key: SigningKey) -> DossierRow:
    """Make, sign, verify and store the dossier of a version as it stands now; record it in the ledger.

    Earlier dossiers stay. Raises `ReportUnavailable`, `LaunchUnknown`, `InputsUnknown`, and the bundle store's errors.
    """
    bundle = bundles_of(platform).open(version.bundle_digest)
    row, report = report_of(platform, version)
    card = card_of(platform, version)
    facts = _facts(platform, version, bundle)
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as scratch:
        folder = Path(scratch) / f"{version.model}-{version.number}"
        lay_out(bundle, folder, links=True)
        documents = {CARD: card.to_markdown(), CARD_PAGE: card.to_html(), EVALUATION: report.to_json()}
        names = write(folder, facts, documents, key)
        digest = hashlib.sha256((folder / SIGNATURE).read_bytes()).hexdigest()
        place = dossier_name(version.model, digest)
        for name in names:
            with platform.artifacts.create(place, name) as stream:
                stream.write((folder / name).read_bytes())
    return platform.ledger.models.record_dossier(
        row,
        str(version.number),
        digest,
        signed_by=key.public.name,
        by=platform.acting,
    )


def _facts(platform: Platform, version: RegisteredVersion, bundle: Bundle) -> DossierFacts:
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
