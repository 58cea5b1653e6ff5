"""Writing of a dossier: all documents beside the bundle, then one signature over both."""

import json
from collections.abc import Mapping
from pathlib import Path

from ml_assets.extras.governance.dossier.bill_of_materials import bill_of_materials
from ml_assets.extras.governance.dossier.contents import (
    BILL,
    DECISIONS,
    DOSSIER,
    LOCK,
    PROVENANCE,
    DossierFacts,
)
from ml_assets.extras.governance.dossier.envelope import enveloped
from ml_assets.extras.governance.dossier.errors import DossierRefused
from ml_assets.extras.governance.dossier.keys import SigningKey
from ml_assets.extras.governance.dossier.provenance import provenance
from ml_assets.extras.governance.dossier.signature import SIGNATURE, sign
from ml_assets.extras.governance.dossier.verification import verify
from resources.secrets import holds_secret


def write(folder: Path, facts: DossierFacts, documents: Mapping[str, str], key: SigningKey) -> list[str]:
    """Write the dossier of the bundle in `folder / bundle`; return the paths of its files.

    `documents` are the card and the evaluation, by their paths. Raises `DossierRefused` if facts and documents do not
    belong together, or one holds a private key or a token.
    """
    texts = {
        **documents,
        PROVENANCE: enveloped(provenance(facts), key),
        BILL: json.dumps(bill_of_materials(facts), indent=1),
        DECISIONS: json.dumps(facts.decisions, indent=1, sort_keys=True),
        **({LOCK: facts.lock} if facts.lock else {}),
    }
    contents = {name: text.encode() for name, text in texts.items()} | dict(facts.files)
    if secret := [name for name, content in contents.items() if holds_secret(content)]:
        raise DossierRefused(
            f"{', '.join(secret)} would hold a private key or a token, and a dossier is given to others: revoke that "
            "key or token, and train again without it in the source tree"
        )
    (folder / DOSSIER).mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    for name, content in facts.files.items():
        (folder / name).write_bytes(content)
    sign(folder, key)
    verify(folder, key.public)
    return [*texts, *facts.files, SIGNATURE]
