"""Writing a dossier, and verifying an exported one with a folder and a public key alone.

The signature covers every file, so it finds each change. The other checks find documents that were signed but do not
belong together, such as the provenance of another version. Each decision is a row of the ledger as it is stored, with
its own digest, so a changed row shows without the ledger. With the ledger, its rows are compared, too.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_assets.extras.governance.dossier.documents import (
    BILL,
    BUNDLE,
    DECISIONS,
    DOSSIER,
    EVALUATION,
    FACTS,
    LISTING,
    LOCK,
    PREDICATE,
    PROVENANCE,
    SENT_DOCUMENT,
    SENT_GRAPH,
    STATEMENT,
    DossierFacts,
    bill_of_materials,
    listed,
    provenance,
)
from ml_assets.extras.governance.dossier.signature import (
    SIGNATURE,
    DossierRefused,
    PublicKey,
    SigningKey,
    enveloped,
    opened,
    require_signed,
    sign,
)
from ml_assets.model.release.bundle_store import TRAINED_ELSEWHERE
from resources.ledger import Head, Ledger, row_digest
from resources.secrets import holds_secret


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A dossier that proves its bundle."""

    model: str
    number: str
    bundle: str
    """Digest of the bundle."""
    evaluation: str
    """Digest of its evaluation."""
    status: str
    """Decision of the gates."""
    lake_commit: str
    code_commits: tuple[str, ...]
    is_dirty: bool
    """True if code differed from its commit."""
    decisions: Mapping[str, Any]
    """`head` and `rows` of the ledger."""
    files: int
    """Number of signed files."""


def verify(folder: Path, key: PublicKey) -> Verified:
    """Verify the dossier in `folder`, as `ml-assets dossier export` wrote it.

    Raises `DossierRefused`, which names the file or fact that differs, and `SigningKeyRefused`.
    """
    if not folder.is_dir():
        raise DossierRefused(
            f"{folder} is not a folder: give the folder that `ml-assets dossier export` wrote"
        )
    folder = folder.resolve()  # the folder itself may be reached through a link
    require_signed(folder, key)
    try:
        return _consistent(folder, key)
    except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
        raise DossierRefused(
            f"a signed document of {folder} lacks a part of a dossier ({type(error).__name__}: {error}): write it again"
        ) from error


def _consistent(folder: Path, key: PublicKey) -> Verified:
    listing = (folder / LISTING).read_bytes()
    bundle, files = hashlib.sha256(listing).hexdigest(), listed(listing.decode())
    for name, sha in files.items():
        if _sha(folder / BUNDLE / name) != sha:
            raise DossierRefused(f"{BUNDLE}/{name} differs from {LISTING}")
    present = {path.name for path in (folder / BUNDLE).iterdir()} - {Path(LISTING).name}
    if present != files.keys():
        raise DossierRefused(
            f"{BUNDLE} has other files than {LISTING}: {', '.join(sorted(present ^ files.keys()))}"
        )
    lineage = _json(folder, FACTS)["lineage"]

    rows = rows_in_order(_json(folder, DECISIONS), bundle)
    measured = _sha(folder / EVALUATION)
    of_file = (row for row in rows if row["kind"] == "evaluation" and row["evaluation_digest"] == measured)
    evaluation = next(of_file, None)
    if evaluation is None:
        raise DossierRefused(f"{EVALUATION}, {measured[:12]}, is not an evaluation that {DECISIONS} names")
    facts = json.loads(evaluation["facts"])
    if evaluation["model"] != lineage["model"]:
        raise DossierRefused(f"{DECISIONS} is about {evaluation['model']}, the bundle is {lineage['model']}")
    if _json(folder, EVALUATION)["lineage"]["bundle"] != bundle:
        raise DossierRefused(f"{EVALUATION} is about another bundle than {bundle[:12]}")

    stated = opened((folder / PROVENANCE).read_text(), key, PROVENANCE)
    if (stated["_type"], stated["predicateType"]) != (STATEMENT, PREDICATE):
        raise DossierRefused(f"{PROVENANCE} is not a statement of provenance in the form of SLSA 1.0")
    subjects = {one["name"]: one["digest"]["sha256"] for one in stated["subject"]}
    (named,) = (name for name in subjects if not name.startswith(f"{BUNDLE}/"))
    expected = {f"{BUNDLE}/{name}": sha for name, sha in files.items()} | {named: bundle}
    if subjects != expected:
        raise DossierRefused(f"{PROVENANCE} is about another bundle than {bundle[:12]}: {named}")
    built = stated["predicate"]["buildDefinition"]
    dependencies = {one["name"]: one for one in built["resolvedDependencies"]}
    made = {one["name"]: one.get("digest", {}) for one in stated["predicate"]["runDetails"]["byproducts"]}
    lock = {"sha256": _sha(folder / LOCK)} if (folder / LOCK).is_file() else None
    _require_same(
        PROVENANCE,
        {
            "model": (named.rpartition("/")[0], lineage["model"]),
            "configuration": (built["externalParameters"]["configuration"], lineage["configuration"]),
            "fingerprint": (built["internalParameters"]["fingerprint"], lineage["fingerprint"]),
            "snapshot": (dependencies["snapshot"]["digest"]["sha256"], lineage["snapshot_digest"]),
            "lake commit": (dependencies["lake"]["annotations"]["commit"], facts["trained_on"]["commit"]),
            **_origin(dependencies, lineage),
            "weights": (made["weights"]["sha256"], lineage["weights_sha256"]),
            "evaluation": (made["evaluation"]["sha256"], evaluation["evaluation_digest"]),
            "lock": (dependencies.get("requirements.txt", {}).get("digest"), lock),
        },
    )

    described = _json(folder, BILL)["metadata"]["component"]
    properties = {one["name"].partition(":")[2]: one["value"] for one in described["properties"]}
    _require_same(
        BILL,
        {
            "model": (described["name"], lineage["model"]),
            "bundle": (described["hashes"][0]["content"], bundle),
            "number": (properties["number"], named.rpartition("/")[2]),
            "fingerprint": (properties["fingerprint"], lineage["fingerprint"]),
            "snapshot": (properties["snapshot"], lineage["snapshot_digest"]),
            "lock": (properties["lock"], lock["sha256"] if lock else hashlib.sha256(b"").hexdigest()),
        },
    )
    code = [one for one in built["resolvedDependencies"] if one["name"] == "code"]
    return Verified(
        model=lineage["model"],
        number=named.rpartition("/")[2],
        bundle=bundle,
        evaluation=evaluation["evaluation_digest"],
        status=facts["status"],
        lake_commit=facts["trained_on"]["commit"],
        code_commits=tuple(
            one["digest"]["gitCommit"] for one in code if "gitCommit" in one.get("digest", {})
        ),
        is_dirty=any(one["annotations"].get("dirty", False) for one in code),
        decisions=_json(folder, DECISIONS),
        files=sum(path.is_file() for path in folder.rglob("*")) - len([SIGNATURE]),
    )


def _origin(dependencies: Mapping[str, Any], lineage: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what provenance and bundle say about the origin of the weights: the code, or what was sent."""
    elsewhere = lineage["configuration"].get(TRAINED_ELSEWHERE)
    if elsewhere is None:
        return {"code version": (dependencies["code"]["annotations"]["version"], lineage["code_version"])}
    sent = dependencies[SENT_DOCUMENT]
    return {
        "code": (dependencies.get("code"), None),
        "document": (sent["digest"]["sha256"], elsewhere["document"]),
        "ONNX file": (dependencies[SENT_GRAPH]["digest"]["sha256"], elsewhere["onnx"]),
        "days": (sent["annotations"]["declared_days"], elsewhere["declared_days"]),
    }


def _require_same(document: str, facts: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise `DossierRefused` for facts whose value in `document` differs from that of the bundle or the decisions."""
    for what, (found, expected) in facts.items():
        if found != expected:
            raise DossierRefused(
                f"{document} names another {what} than the bundle: {found}, expected {expected}"
            )


def _json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decisions_about(ledger: Ledger, model: str, bundle: str) -> dict[str, Any]:
    """Return the decisions about a bundle, read as one state: `head` of the chain, and `rows`, oldest first."""
    head, rows = ledger.models.stored(model, bundle)
    return {"head": str(head), "rows": rows}


def rows_in_order(decisions: Mapping[str, Any], bundle: str) -> list[dict[str, Any]]:
    """Return the rows of a dossier. Raises `DossierRefused` for a changed or moved row, and one of another bundle."""
    rows: list[dict[str, Any]] = decisions["rows"]
    last = 0
    for row in rows:
        if row["digest"] != row_digest(row):
            raise DossierRefused(
                f"{named(row)} of the decisions was changed: its digest belongs to other content"
            )
        if row["bundle_digest"] != bundle:
            raise DossierRefused(
                f"{named(row)} of the decisions is about another bundle, {row['bundle_digest'][:12]}"
            )
        if row["place"] <= last:
            raise DossierRefused(f"{named(row)} of the decisions was moved: it follows row {last}")
        last = row["place"]
    if Head.parse(decisions["head"]).place < last:
        raise DossierRefused(f"the head {decisions['head']} of the decisions is before their row {last}")
    return rows


def require_in_ledger(decisions: Mapping[str, Any], ledger: Ledger) -> None:
    """Raise `DossierRefused` if a row of the dossier is missing in `ledger` or differs there.

    Then check the chain up to the dossier's head: raises `LedgerChanged` for any other row that was changed since.
    """
    rows: list[dict[str, Any]] = decisions["rows"]
    for row in rows:
        _, stored = ledger.models.stored(row["model"], row["bundle_digest"])
        found = next((one for one in stored if one["place"] == row["place"]), None)
        if found is None:
            raise DossierRefused(f"{named(row)} is missing in the ledger: it was removed or moved since")
        changed = [name for name, value in row.items() if found[name] != value]
        if changed:
            raise DossierRefused(f"{named(row)} of the ledger was changed since: {', '.join(changed)} differ")
    ledger.models.verify(Head.parse(decisions["head"]))


def named(row: Mapping[str, Any]) -> str:
    return f"row {row['place']} ({row['kind']} of {row['model']}, {row['at']})"


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
