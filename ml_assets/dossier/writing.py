"""Writing of a dossier: all documents beside the bundle, then one signature over both."""

import json
from collections.abc import Mapping
from pathlib import Path

from ml_assets.dossier.bill_of_materials import bill_of_materials
from ml_assets.dossier.contents import BILL, DECISIONS, DOSSIER, LOCK, PROVENANCE, DossierFacts
from ml_assets.dossier.envelope import enveloped
from ml_assets.dossier.keys import SigningKey
from ml_assets.dossier.provenance import provenance
from ml_assets.dossier.signature import SIGNATURE, sign
from ml_assets.dossier.verification import verify


def write(folder: Path, facts: DossierFacts, documents: Mapping[str, str], key: SigningKey) -> list[str]:
    """Write the dossier of the bundle in `folder / bundle`; return the paths of its files.

    `documents` are the card and the evaluation, by their paths. Raises `DossierRefused` if facts and documents do not
    belong together.
    """
    texts = {
        **documents,
        PROVENANCE: enveloped(provenance(facts), key),
        BILL: json.dumps(bill_of_materials(facts), indent=1),
        DECISIONS: json.dumps(facts.decisions, indent=1, sort_keys=True),
        **({LOCK: facts.lock} if facts.lock else {}),
    }
    (folder / DOSSIER).mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    for name, content in facts.files.items():
        (folder / name).write_bytes(content)
    sign(folder, key)
    verify(folder, key.public)
    return [*texts, *facts.files, SIGNATURE]
