"""Public tools accept the documents: in-toto's library, CycloneDX's validator, `model-signing`; and the keys."""

import base64
import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from model_signing import verifying

from ml_assets.extras.governance.dossier.documents import (
    BILL,
    CODE_DIFFERENCE,
    PROVENANCE,
    DossierFacts,
    bill_of_materials,
    provenance,
)
from ml_assets.extras.governance.dossier.signature import DossierRefused, PublicKey, SigningKey
from ml_assets.extras.governance.dossier.verification import write
from ml_assets.model.release.signing_keys import SigningKeyRefused, create_keys
from ml_assets_tests.dossier.conftest import Signed
from ml_assets_tests.dossier.in_toto import require_in_toto

MakeFacts = Callable[[], tuple[DossierFacts, dict[str, str]]]


def test_model_signing_accepts_the_folder(signed: Signed, copied: Path, tmp_path: Path) -> None:
    """Also with its default settings, which leave out git's files: there are none."""
    pem = tmp_path / "key.pem"
    pem.write_text(signed.key.public.pem)
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=pem)
    verifier.verify(copied, copied / "model.sig")
    (copied / "dossier" / "card.md").write_text("other")
    with pytest.raises(ValueError, match=r"Hash mismatch for .*dossier/card\.md"):
        verifier.verify(copied, copied / "model.sig")


def test_in_toto_accepts_the_provenance(signed: Signed) -> None:
    """The signature is checked here by the words of DSSE's specification, with nothing of ours."""
    envelope = json.loads((signed.first / PROVENANCE).read_text())
    body, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
    public = serialization.load_pem_public_key(signed.key.public.pem.encode())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    public.verify(
        signature, f"DSSEv1 {len(kind)} {kind} {len(body)} ".encode() + body, ec.ECDSA(hashes.SHA256())
    )
    predicate = require_in_toto((signed.first / PROVENANCE).read_text())
    names = [one.name for one in predicate.build_definition.resolved_dependencies]
    assert names == ["lake", "snapshot", "table datasets/flights", "code", "requirements.txt"]
    assert predicate.run_details.metadata.started_on.ToJsonString() == "2026-11-23T10:00:00.000001Z"


@pytest.mark.parametrize("lacks", ["nothing", "lock", "launches", "words"])
def test_cyclonedx_accepts_the_bill(signed: Signed, facts_of_first: MakeFacts, lacks: str) -> None:
    facts, _ = facts_of_first()
    without = {
        "nothing": {},
        "lock": {"lock": ""},
        "launches": {"lock": "", "launches": ()},
        "words": {"description": "", "intended_use": "", "not_intended_for": ()},
    }[lacks]
    bill = bill_of_materials(replace(facts, **without))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    if lacks == "nothing":
        stored = json.loads((signed.first / BILL).read_text())
        assert bill | {"serialNumber": stored["serialNumber"]} == stored  # the ledger has grown since
        packages = {one["purl"]: len(one["hashes"]) for one in bill["components"] if "purl" in one}
        assert packages == {"pkg:pypi/numpy@2.4.0": 2, "pkg:pypi/torch@2.11.0%2Bcpu": 1}


def test_a_training_without_known_code_says_so(facts_of_first: MakeFacts) -> None:
    facts, _ = facts_of_first()
    stated = provenance(replace(facts, launches=()))
    code = [
        one for one in stated["predicate"]["buildDefinition"]["resolvedDependencies"] if one["name"] == "code"
    ]
    assert code == [{"name": "code", "uri": "urn:ml-assets:code", "annotations": {"version": "abc-def"}}]


def test_keys_are_files_of_their_owner_and_never_replaced(tmp_path: Path) -> None:
    key = create_keys(tmp_path)
    assert stat.S_IMODE(key.path.stat().st_mode) == 0o600
    assert PublicKey.read(tmp_path / "signing.pub.pem") == key.public
    with pytest.raises(SigningKeyRefused, match="exists: choose another folder"):
        create_keys(tmp_path)
    key.path.chmod(0o640)
    with pytest.raises(SigningKeyRefused, match=rf"mode 640\).*chmod 600 {key.path}"):
        SigningKey.read(key.path)
    with pytest.raises(SigningKeyRefused, match="cannot be read"):
        SigningKey.read(tmp_path / "none.pem")


def test_other_keys_are_refused(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP384R1())
    private = tmp_path / "p384.pem"
    private.touch(0o600)
    private.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(SigningKeyRefused, match=rf"^{private} .*P-256.*dossier keygen$"):
        SigningKey.read(private)
    public = other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for text in (public.decode(), private.read_text(), "no key", ""):
        with pytest.raises(SigningKeyRefused, match=r"^defs.yaml .*public key.*P-256.*dossier keygen"):
            PublicKey.parse(text, "defs.yaml")


def test_a_private_key_never_enters_a_dossier(signed: Signed, tmp_path: Path) -> None:
    body = "".join(signed.key.path.read_text().split("\n")[1:-2])
    copied = Path(shutil.copytree(signed.first, tmp_path / "copy"))
    for path in copied.rglob("*"):
        assert not path.is_file() or body[:40].encode() not in path.read_bytes()


def test_a_document_with_a_secret_is_refused(
    signed: Signed, facts_of_first: MakeFacts, tmp_path: Path
) -> None:
    """Also if the difference was stored before such files were left out of it."""
    facts, documents = facts_of_first()
    difference = b"+" + signed.key.path.read_bytes().replace(b"\n", b"\n+")
    with pytest.raises(DossierRefused, match=rf"^{CODE_DIFFERENCE} .*private key"):
        write(tmp_path, replace(facts, files={CODE_DIFFERENCE: difference}), documents, signed.key)
    assert list(tmp_path.iterdir()) == []


def test_a_public_key_with_a_byte_order_mark_says_so(signed: Signed) -> None:
    with pytest.raises(SigningKeyRefused, match=r"^K .*byte order mark.*UTF-8"):
        PublicKey.parse(f"\ufeff{signed.key.public.pem}", "K")
