"""Dossier of a registered version: gathering its facts, signing and storing it.

Not here: forms, signature and verification (`ml_assets.extras.governance.dossier`), reading stored dossiers
(`dossier.stored`).
"""

import hashlib
import json
import tempfile
from collections.abc import Set
from dataclasses import asdict
from pathlib import Path

from ml_assets.extras.governance.dossier.documents import (
    CARD,
    CARD_PAGE,
    CODE_DIFFERENCE,
    EVALUATION,
    LISTING,
    DossierFacts,
    TableBehind,
)
from ml_assets.extras.governance.dossier.signature import SIGNATURE, SigningKey
from ml_assets.extras.governance.dossier.stored import dossier_name, lay_out
from ml_assets.extras.governance.dossier.verification import decisions_about, write
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.registry import RegisteredVersion
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.standing import contents_of
from ml_assets.model.steps.record import card_of, report_of
from ml_assets.model.steps.train import DIFFERENCE, read_launches, source
from ml_assets.model.steps.train import LOCK as LOCK_FILE
from resources.ledger import DossierRow
from resources.platform import Platform


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
