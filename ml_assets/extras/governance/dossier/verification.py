"""Verification of an exported dossier: a folder and a public key are enough.

The signature covers every file, so it finds each change. The other checks find documents that were signed but do not
belong together, such as the provenance of another version. Not here: the comparison with a ledger (`ledger_rows`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_assets.extras.governance.dossier.contents import (
    BILL,
    BUNDLE,
    DECISIONS,
    EVALUATION,
    FACTS,
    LISTING,
    LOCK,
    PROVENANCE,
)
from ml_assets.extras.governance.dossier.envelope import opened
from ml_assets.extras.governance.dossier.errors import DossierRefused
from ml_assets.extras.governance.dossier.keys import PublicKey
from ml_assets.extras.governance.dossier.ledger_rows import rows_in_order
from ml_assets.extras.governance.dossier.provenance import PREDICATE, STATEMENT, listed
from ml_assets.extras.governance.dossier.signature import SIGNATURE, require_signed


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
    built, dependencies = stated["predicate"]["buildDefinition"], _by_name(stated)
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
            "code version": (dependencies["code"]["annotations"]["version"], lineage["code_version"]),
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


def _require_same(document: str, facts: Mapping[str, tuple[Any, Any]]) -> None:
    """Raise `DossierRefused` for facts whose value in `document` differs from that of the bundle or the decisions."""
    for what, (found, expected) in facts.items():
        if found != expected:
            raise DossierRefused(
                f"{document} names another {what} than the bundle: {found}, expected {expected}"
            )


def _by_name(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for one in stated["predicate"]["buildDefinition"]["resolvedDependencies"]}


def _json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
