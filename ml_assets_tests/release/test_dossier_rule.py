"""Promotion with `release.dossier`: a valid dossier of the deciding evaluation, signed with a known key."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from ml_assets.extras.governance.dossier.documents import BUNDLE, CARD, CARD_PAGE, EVALUATION
from ml_assets.extras.governance.dossier.signature import DossierRefused, SigningKey
from ml_assets.extras.governance.dossier.stored import (
    dossier_name,
    export,
    lay_out,
    newest_dossier,
    verify_stored,
)
from ml_assets.extras.governance.dossier.verification import write
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.releases import NotPromotable, Releases
from ml_assets.model.release.rules import Rules
from ml_assets.model.release.signing_keys import create_keys
from ml_assets_tests.dossier.conftest import evaluation_text, facts_of
from ml_assets_tests.release.conftest import Evaluate, refuses
from resources.ledger import DossierRow, Ledger, Person

Sign = Callable[[], DossierRow]


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return create_keys(tmp_path / "keys")


@pytest.fixture
def rules(key: SigningKey) -> Rules:
    return Rules.model_validate({"dossier": {"signed_by": [key.public.pem]}})


@pytest.fixture
def version(releases: Releases, evaluate: Evaluate, run_id: str, bundle: Bundle) -> Bundle:
    """Version 1, blessed by an evaluation with a document."""
    evaluate(bundle, digest=hashlib.sha256(evaluation_text(bundle.digest).encode()).hexdigest())
    register(releases, bundle, run_id=run_id, links={})
    return bundle


@pytest.fixture
def sign(version: Bundle, ledger: Ledger, store: BundleStore, key: SigningKey, tmp_path: Path) -> Sign:
    """Write, store and record a dossier of version 1."""

    def sign() -> DossierRow:
        folder = tmp_path / "dossier"
        lay_out(version, folder, links=False)
        facts, documents = facts_of(folder / BUNDLE, 1, ledger, "small")
        names = write(folder, facts, documents, key)
        digest = hashlib.sha256((folder / "model.sig").read_bytes()).hexdigest()
        for name in names:
            with store.artifacts.create(dossier_name("small", digest), name) as stream:
                stream.write((folder / name).read_bytes())
        row = ledger.models.newest_evaluation("small", version.digest)
        assert row is not None
        return ledger.models.record_dossier(
            row, "1", digest, signed_by=key.public.name, by=Person.unchecked("ada")
        )

    return sign


def test_a_promotion_needs_the_dossier_that_its_rule_asks_for(
    releases: Releases, rules: Rules, sign: Sign
) -> None:
    with refuses(NotPromotable, "dossier", r"its evaluation \w{12}", "ml-assets dossier write small 1"):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=rules)
    sign()
    assert (
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=rules).version == "1"
    )
    kinds = [type(one).__name__ for one in releases.log.decisions("small")]
    assert kinds[-3:] == ["DossierRow", "RulesRow", "Promotion"]


def test_a_dossier_of_an_earlier_evaluation_does_not_count(
    releases: Releases, rules: Rules, sign: Sign, evaluate: Evaluate, version: Bundle
) -> None:
    sign()
    evaluate(version, told="again")
    with refuses(NotPromotable, "dossier", r"its evaluation \w{12}", "there is none"):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=rules)


def test_a_key_that_leaves_the_declaration_is_revoked(
    releases: Releases, sign: Sign, key: SigningKey, tmp_path: Path
) -> None:
    """Its dossiers stop to count, whenever they were signed."""
    sign()
    new = create_keys(tmp_path / "new").public.pem
    without, both = (
        Rules.model_validate({"dossier": {"signed_by": keys}}) for keys in ([new], [new, key.public.pem])
    )
    others = (
        f"key {key.public.name[:12]}",
        r"release\.dossier\.signed_by",
        "ml-assets dossier write small 1",
    )
    with refuses(NotPromotable, "dossier", *others):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=without)
    assert promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=both).version == "1"


def test_a_dossier_of_an_unknown_key_hides_no_other(
    releases: Releases, rules: Rules, sign: Sign, ledger: Ledger, version: Bundle
) -> None:
    """Otherwise anybody could block a promotion."""
    sign()
    row = ledger.models.newest_evaluation("small", version.digest)
    assert row is not None
    ledger.models.record_dossier(row, "1", "f" * 64, signed_by="e" * 64, by=Person.unchecked("mallory"))
    assert (
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=rules).version == "1"
    )


@pytest.mark.parametrize("file", [CARD, CARD_PAGE, EVALUATION, "model.sig"])
def test_an_altered_stored_dossier_does_not_count(
    releases: Releases, rules: Rules, sign: Sign, store: BundleStore, file: str
) -> None:
    row = sign()
    path = store.artifacts.folder(dossier_name("small", row.dossier_digest)) / file
    path.write_bytes(path.read_bytes() + b" ")
    with refuses(NotPromotable, "dossier", rf"\w{{12}} is not valid: .*{file}"):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=rules)
    path.unlink()
    with refuses(NotPromotable, "dossier", r"is not valid: .*(is gone from|missing)"):
        promote(releases, "small", 1, by=Person.unchecked("ada"), reason="good", rules=rules)


def test_an_exported_dossier_shares_no_file_with_the_store(
    ledger: Ledger, sign: Sign, store: BundleStore, version: Bundle, key: SigningKey, tmp_path: Path
) -> None:
    """Whoever edits the export does not damage the store."""
    with pytest.raises(DossierRefused, match="has no dossier yet"):
        newest_dossier(ledger.models, "small", version.digest)
    row = sign()
    assert newest_dossier(ledger.models, "small", version.digest) == row
    folder = tmp_path / "out" / "dossier"
    export(store, row, folder)
    assert (folder / BUNDLE / "model.onnx").stat().st_nlink == 1
    assert verify_stored(store, row, key.public).bundle == version.digest
    with pytest.raises(DossierRefused, match="choose a new folder"):
        export(store, row, folder)


def test_a_wrong_key_in_the_declaration_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"signed_by is not a public key of the curve P-256"):
        Rules.model_validate({"dossier": {"signed_by": ["required"]}})
    with pytest.raises(ValidationError, match="signed_by"):
        Rules.model_validate({"dossier": {"signed_by": []}})
