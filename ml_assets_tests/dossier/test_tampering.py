"""More than fifty tamperings with a dossier, its signature or the ledger behind it: each is refused by name."""

import base64
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from ml_assets.cli.look import verify as verify_command
from ml_assets.extras.governance.dossier.signature import DossierRefused, PublicKey, sign
from ml_assets.extras.governance.dossier.verification import require_in_ledger, verify
from ml_assets.model.release.history import since
from ml_assets.model.release.signing_keys import create_keys
from ml_assets_tests.dossier.conftest import Signed
from ml_assets_tests.resources.ledger_chains import attacker
from resources.ledger import Head, Ledger, LedgerChanged, Person, row_digest

Change = Callable[[Path, Signed], object]


def flip(name: str, at: int = -1) -> Change:
    """Flip the lowest bit of a byte."""

    def change(folder: Path, _: Signed) -> None:
        content = bytearray((folder / name).read_bytes())
        content[at] ^= 1
        (folder / name).write_bytes(content)

    return change


def text(name: str, old: str, new: str) -> Change:
    """Replace a text in a file."""

    def change(folder: Path, _: Signed) -> None:
        content = (folder / name).read_text()
        assert old in content
        (folder / name).write_text(content.replace(old, new, 1))

    return change


def payload(name: str, old: str, new: str, *path: str) -> Change:
    """Replace a text in the signed payload of an envelope; `path` leads to the envelope."""

    def change(folder: Path, _: Signed) -> None:
        document = json.loads((folder / name).read_text())
        envelope = document
        for key in path:
            envelope = envelope[key]
        content = base64.b64decode(envelope["payload"]).decode()
        assert old in content
        envelope["payload"] = base64.b64encode(content.replace(old, new, 1).encode()).decode()
        (folder / name).write_text(json.dumps(document, indent=1))

    return change


def swap(name: str) -> Change:
    """Take a file or folder from the dossier of version 2."""

    def change(folder: Path, signed: Signed) -> None:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
            shutil.copytree(signed.second / name, folder / name)
        else:
            shutil.copyfile(signed.second / name, folder / name)

    return change


def remove(name: str) -> Change:
    return lambda folder, _: (folder / name).unlink()


def add(name: str) -> Change:
    def change(folder: Path, _: Signed) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("added\n")

    return change


def rename(name: str, new: str) -> Change:
    return lambda folder, _: (folder / name).rename(folder / new)


def signature(**changes: Any) -> Change:
    """Change parts of the signature's file in the form in which it is written; `x__y` is the part y of x."""

    def change(folder: Path, _: Signed) -> None:
        document = json.loads((folder / "model.sig").read_text())
        for path, value in changes.items():
            part, *parents = document, *path.split("__")
            for parent in parents[:-1]:
                part = part[parent]
            part[parents[-1]] = value(part[parents[-1]]) if callable(value) else value
        (folder / "model.sig").write_text(json.dumps(document, separators=(",", ":")))

    return change


def link(name: str) -> Change:
    """Replace a file or folder by a link to a copy of it."""

    def change(folder: Path, _: Signed) -> None:
        elsewhere = folder.parent / "elsewhere"
        (folder / name).rename(elsewhere)
        (folder / name).symlink_to(elsewhere)

    return change


def exchange(name: str, other: str) -> Change:
    def change(folder: Path, _: Signed) -> None:
        one, two = (folder / name).read_bytes(), (folder / other).read_bytes()
        (folder / name).write_bytes(two)
        (folder / other).write_bytes(one)

    return change


PROVENANCE, BILL = "dossier/provenance.intoto.json", "dossier/bom.cdx.json"
DECISIONS, LOCK = "dossier/decisions.json", "dossier/requirements.txt"
EVALUATION = "dossier/evaluation.json"
OUTSIDER: dict[str, tuple[Change, str]] = {
    "weights, first bit": (flip("bundle/model.safetensors", 0), "altered: bundle/model.safetensors."),
    "weights, last bit": (flip("bundle/model.safetensors"), "bundle/model.safetensors"),
    "weights of another version": (swap("bundle/model.safetensors"), "bundle/model.safetensors"),
    "graph": (flip("bundle/model.onnx", 100), "bundle/model.onnx"),
    "graph of another version": (swap("bundle/model.onnx"), "bundle/model.onnx"),
    "golden rows": (flip("bundle/golden.parquet", 10), "bundle/golden.parquet"),
    "metric in the facts": (text("bundle/bundle.json", "0.75", "0.95"), "bundle/bundle.json"),
    "seed in the facts": (text("bundle/bundle.json", '"seed": 1', '"seed": 2'), "bundle/bundle.json"),
    "code of the runtime": (text("bundle/runtime.py", "# code", "import os  # code"), "bundle/runtime.py"),
    "MLflow's file": (text("bundle/MLmodel", "{}", "{a: b}"), "bundle/MLmodel"),
    "listing": (flip("bundle/files.sha256", 0), "bundle/files.sha256"),
    "two files of the bundle": (
        exchange("bundle/model.onnx", "bundle/golden.parquet"),
        "bundle/golden.parquet",
    ),
    "card": (text("dossier/card.md", "Model card", "Model cart"), "dossier/card.md"),
    "page of the card": (text("dossier/card.html", "m", "n"), "dossier/card.html"),
    "report": (text(EVALUATION, "0.75", "0.95"), EVALUATION),
    "report of another version": (swap(EVALUATION), EVALUATION),
    "version in the lock": (text(LOCK, "2.4.0", "2.4.1"), LOCK),
    "hash in the lock": (text(LOCK, "1" * 64, "4" * 64), LOCK),
    "line ends of the lock": (text(LOCK, "\n", "\r\n"), LOCK),
    "bill: a package": (text(BILL, '"numpy"', '"numpi"'), BILL),
    "bill: a hash": (text(BILL, "2" * 64, "4" * 64), BILL),
    "bill: a data set": (text(BILL, "datasets/flights", "datasets/others"), BILL),
    "bill of another version": (swap(BILL), BILL),
    "provenance: commit of the data": (payload(PROVENANCE, "1" * 40, "f" * 40), PROVENANCE),
    "provenance: commit of the code": (payload(PROVENANCE, "c" * 40, "d" * 40), PROVENANCE),
    "provenance: clean tree": (payload(PROVENANCE, '"dirty": true', '"dirty": false'), PROVENANCE),
    "provenance: builder": (payload(PROVENANCE, "urn:ml-assets:launcher", "urn:other"), PROVENANCE),
    "provenance: signature": (text(PROVENANCE, '"sig": "', '"sig": "AAAA'), PROVENANCE),
    "provenance of another version": (swap(PROVENANCE), PROVENANCE),
    "difference of the code": (text("dossier/code.diff", "a difference", ""), "dossier/code.diff"),
    "decisions: gate": (text(DECISIONS, "blessed", "undecided"), DECISIONS),
    "decisions: approver": (text(DECISIONS, '"bob"', '"eve"'), DECISIONS),
    "decisions: head": (text(DECISIONS, '"head": "', '"head": "9'), DECISIONS),
    "decisions of another version": (swap(DECISIONS), DECISIONS),
    "all documents of another version": (swap("dossier"), EVALUATION),
    "bundle of another version": (swap("bundle"), "bundle/bundle.json"),
    "signature of another version": (swap("model.sig"), "bundle/model.onnx"),
    "signature: signed digest": (payload("model.sig", "sha256", "sha512", "dsseEnvelope"), "model.sig"),
    "signature: a bit": (flip("model.sig", 300), "model.sig"),
    "signature: another key's name": (text("model.sig", '"hint":"', '"hint":"0'), "model.sig"),
    "signature: a space": (text("model.sig", "{", "{ "), "model.sig"),
    "signature: cut off": (lambda folder, _: (folder / "model.sig").write_bytes(b"{"), "model.sig"),
    "signature: empty": (lambda folder, _: (folder / "model.sig").write_bytes(b""), "model.sig"),
    "signature: name of a signer": (
        signature(dsseEnvelope__signatures=lambda one: [one[0] | {"keyid": "regulator"}]),
        "model.sig was altered",
    ),
    "signature: a second one": (
        signature(dsseEnvelope__signatures=lambda one: [*one, {"sig": "AAAA", "keyid": ""}]),
        "model.sig was altered",
    ),
    "signature: time stamp": (
        signature(
            verificationMaterial__timestampVerificationData={
                "rfc3161Timestamps": [{"signedTimestamp": "QUFB"}]
            }
        ),
        "model.sig was altered",
    ),
    "signature: no name of the key": (signature(verificationMaterial__publicKey__hint=""), "it names no key"),
    "added: empty folder": (
        lambda folder, _: (folder / "dossier/new").mkdir(),
        "dossier/new, an empty folder",
    ),
    "added: name with a line end": (add("x\nm 1: all as signed"), r"added: 'x\nm 1: all as signed'"),
    "added: name with an escape": (add("\x1b[2Jm 1: all as signed"), r"added: '\x1b[2Jm 1: all as signed'"),
    "signature: removed": (remove("model.sig"), "model.sig"),
    "removed: weights": (remove("bundle/model.safetensors"), "bundle/model.safetensors"),
    "removed: lock": (remove(LOCK), f"missing: {LOCK}"),
    "removed: card": (remove("dossier/card.md"), "dossier/card.md"),
    "added: code in the bundle": (add("bundle/decode.py"), "bundle/decode.py"),
    "added: document": (add("dossier/approval.txt"), "dossier/approval.txt"),
    "added: file beside": (add("README.md"), "README.md"),
    "added: hidden file": (add(".hidden"), "added: .hidden"),
    "added: git's file": (add("bundle/.gitattributes"), "bundle/.gitattributes"),
    "added: git's folder": (add(".git/config"), ".git/config"),
    "renamed: weights": (
        rename("bundle/model.safetensors", "bundle/Model.safetensors"),
        "bundle/Model.safetensors",
    ),
    "renamed: lock": (rename(LOCK, "dossier/lock.txt"), "dossier/lock.txt"),
    "link to the same weights": (link("bundle/model.safetensors"), "bundle/model.safetensors is a link"),
    "link to the same documents": (link("dossier"), "dossier is a link"),
    "added: pipe": (lambda folder, _: os.mkfifo(folder / "bundle/pipe"), "bundle/pipe is neither a file"),
    "card is a pipe": (
        lambda folder, _: [(folder / "dossier/card.md").unlink(), os.mkfifo(folder / "dossier/card.md")],
        "dossier/card.md is neither a file",
    ),
    "added: bytecode": (add("bundle/__pycache__/runtime.cpython-311.pyc"), "bundle/__pycache__/runtime"),
    "signature: a key twice": (text("model.sig", "{", '{"mediaType":"x",'), "model.sig was altered"),
    "signature: nested deeply": (
        lambda folder, _: (folder / "model.sig").write_text("[" * 100_000),
        "model.sig cannot be read",
    ),
}
"""Changes by somebody without the key → the name in the error."""


def test_an_untouched_copy_passes(signed: Signed, copied: Path, ledger_file: Path) -> None:
    """The folder has another name, and the ledger has grown since."""
    for folder in (copied, signed.second):
        found = verify(folder, signed.key.public)
        require_in_ledger(found.decisions, Ledger(f"sqlite:///{ledger_file}"))
    assert (found.model, found.number, found.status, found.is_dirty) == ("m", "2", "blessed", True)
    assert (found.lake_commit, found.code_commits) == ("2" * 40, ("c" * 40,))


def test_a_link_to_the_folder_passes(signed: Signed, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(signed.first)
    assert verify(tmp_path / "link", signed.key.public) == verify(signed.first, signed.key.public)


@pytest.mark.parametrize("case", OUTSIDER)
def test_a_tampered_file_is_refused_by_name(signed: Signed, copied: Path, case: str) -> None:
    change, name = OUTSIDER[case]
    change(copied, signed)
    with pytest.raises(DossierRefused, match=re.escape(name)):
        verify(copied, signed.key.public)


def test_a_dossier_of_another_key_is_refused(signed: Signed, copied: Path, tmp_path: Path) -> None:
    other = create_keys(tmp_path / "keys")
    with pytest.raises(DossierRefused, match=r"model\.sig was made with another key"):
        verify(copied, other.public)
    (copied / "model.sig").unlink()
    sign(copied, other)
    with pytest.raises(DossierRefused, match=r"model\.sig was made with another key"):
        verify(copied, signed.key.public)
    with pytest.raises(DossierRefused, match=r"provenance\.intoto\.json was not signed with the key"):
        verify(copied, other.public)


def row(number: int, **values: Any) -> Change:
    """Change columns of a row of the decisions, and give it the right digest."""

    def change(folder: Path, _: Signed) -> None:
        document = json.loads((folder / DECISIONS).read_text())
        changed = document["rows"][number] | values
        document["rows"][number] = changed | {"digest": row_digest(changed)}
        (folder / DECISIONS).write_text(json.dumps(document))

    return change


def moved(folder: Path, _: Signed) -> None:
    document = json.loads((folder / DECISIONS).read_text())
    document["rows"].reverse()
    (folder / DECISIONS).write_text(json.dumps(document))


INSIDER: dict[str, tuple[Change, str]] = {
    "provenance of another version": (swap(PROVENANCE), "provenance.intoto.json is about another bundle"),
    "bill of another version": (swap(BILL), "bom.cdx.json names another bundle"),
    "report of another version": (swap(EVALUATION), "is not an evaluation that dossier/decisions.json names"),
    "decisions of another version": (swap(DECISIONS), "is about another bundle"),
    "lock": (text(LOCK, "2.4.0", "2.4.1"), "provenance.intoto.json names another lock"),
    "no lock": (remove(LOCK), "provenance.intoto.json names another lock"),
    "golden rows": (flip("bundle/golden.parquet"), "bundle/golden.parquet differs from bundle/files.sha256"),
    "file added to the bundle": (add("bundle/decode.py"), "bundle has other files than"),
    "changed decision": (text(DECISIONS, "reads well", "reads bad"), "(review of m"),
    "commit of the data in the decisions": (
        row(0, facts=json.dumps({"status": "blessed", "trained_on": {"commit": "f" * 40}})),
        "names another lake commit",
    ),
    "moved decisions": (moved, "was moved: it follows row"),
    "head before the rows": (
        lambda folder, _: (folder / DECISIONS).write_text(
            json.dumps(json.loads((folder / DECISIONS).read_text()) | {"head": f"1:{'0' * 64}"})
        ),
        "is before their row",
    ),
    "payload of the provenance": (payload(PROVENANCE, "c" * 40, "d" * 40), "was not signed with the key"),
}
"""Changes that the key signs although the documents no longer belong together → the words of the error."""


@pytest.mark.parametrize("case", INSIDER)
def test_signed_documents_must_belong_together(signed: Signed, copied: Path, case: str) -> None:
    change, words = INSIDER[case]
    change(copied, signed)
    (copied / "model.sig").unlink()
    sign(copied, signed.key)
    with pytest.raises(DossierRefused, match=re.escape(words)):
        verify(copied, signed.key.public)


LEDGER: dict[str, tuple[str, str]] = {
    "gate decision": ("UPDATE ledger_decisions SET facts = replace(facts, 'blessed', 'rejected') WHERE place = 1",
                      r"row 1 \(evaluation of m, .* of the ledger was changed since: facts differ"),
    "approver": ("UPDATE ledger_decisions SET author = 'eve' WHERE place = 3",
                 r"row 3 \(review of m, .* was changed since: author differ"),
    "reason": ("UPDATE ledger_decisions SET reason = 'worse' WHERE place = 4",
               r"row 4 \(promotion of m, .* was changed since: reason differ"),
    "time": ("UPDATE ledger_decisions SET at = '2020-01-01T00:00:00.000000' WHERE place = 4",
             r"row 4 \(promotion of m, .* was changed since: at differ"),
    "removed approval": ("DELETE FROM ledger_decisions WHERE place = 3",
                         r"row 3 \(review of m, .* is missing in the ledger"),
    "moved promotion": ("UPDATE ledger_decisions SET place = 99 WHERE place = 4",
                        r"row 4 \(promotion of m, .* is missing in the ledger"),
    "bundle": ("UPDATE ledger_decisions SET bundle_digest = 'mine' WHERE place = 2",
               r"row 2 \(name of m, .* is missing in the ledger"),
    "digest": ("UPDATE ledger_decisions SET digest = 'mine' WHERE place = 2",
               r"row 2 \(name of m, .* was changed since: digest differ"),
    "row of another version": ("UPDATE ledger_decisions SET author = 'eve' WHERE place = 7",
                               r"row 7 \(review of m, .* was changed, inserted or moved"),
    "removed row of another version": ("DELETE FROM ledger_decisions WHERE place = 6", "row 6 is missing"),
}  # fmt: skip
"""Statement of somebody who dropped the triggers → the error."""


@pytest.mark.parametrize("case", LEDGER)
def test_a_changed_ledger_is_refused_by_row(signed: Signed, ledger_file: Path, case: str) -> None:
    statement, words = LEDGER[case]
    with attacker(f"sqlite:///{ledger_file}") as connection:
        assert connection.execute(sa.text(statement)).rowcount == 1
    found = verify(signed.first, signed.key.public)
    with pytest.raises((DossierRefused, LedgerChanged), match=words):
        require_in_ledger(found.decisions, Ledger(f"sqlite:///{ledger_file}"))


def test_a_chain_written_anew_is_refused(signed: Signed, ledger_file: Path) -> None:
    """Somebody changes the last row under the head and computes all digests again."""
    rows = json.loads((signed.second / DECISIONS).read_text())["rows"]
    forged = rows[-1] | {"reason": "worse"}
    with attacker(f"sqlite:///{ledger_file}") as connection:
        connection.execute(sa.text("DELETE FROM ledger_decisions WHERE place > 8"))
        connection.execute(
            sa.text("UPDATE ledger_decisions SET reason = 'worse', digest = :digest WHERE place = 8"),
            {"digest": row_digest(forged)},
        )
    Ledger(f"sqlite:///{ledger_file}").models.verify()
    found = verify(signed.second, signed.key.public)
    with pytest.raises(DossierRefused, match=r"row 8 .* was changed since: digest, reason differ"):
        require_in_ledger(found.decisions, Ledger(f"sqlite:///{ledger_file}"))


def test_the_cases_are_fifty_and_more() -> None:
    assert len(OUTSIDER) + len(INSIDER) + len(LEDGER) >= 50


def test_a_public_key_is_enough(signed: Signed) -> None:
    public = PublicKey.read(signed.first.parent / "keys" / "signing.pub.pem")
    assert verify(signed.first, public) == verify(signed.first, signed.key.public)


def test_decisions_after_the_dossier_are_told(
    signed: Signed, ledger_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejected, demoted or replaced version is not to be taken for one in production."""
    models = Ledger(f"sqlite:///{ledger_file}").models
    found = verify(signed.second, signed.key.public)
    place = Head.parse(found.decisions["head"]).place
    evaluation = models.newest_evaluation("m", found.bundle)
    assert evaluation is not None
    models.review(evaluation, "2", approves=False, by=Person.unchecked("bob"), reason="leak found")
    models.archive("m", "2", by=Person.unchecked("cy"), reason="wrong", bundle_digest=found.bundle)
    told = list(since(models.decisions("m"), place, found.bundle))
    words = (r" promoted: .*by cy", r" rejected: .*by bob", r" archived: .*by cy")
    assert [bool(re.search(*one)) for one in zip(words, told, strict=True)] == [True] * 3, told
    monkeypatch.setenv("ML_ASSETS_HOME", str(ledger_file.parent))
    key = str(signed.first.parent / "keys" / "signing.pub.pem")
    said = CliRunner().invoke(verify_command, [str(signed.second), "--key", key, "--ledger"])
    assert [f"  since then: {line}" for line in told] == said.output.splitlines()[-3:], said.output
