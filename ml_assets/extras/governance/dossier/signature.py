"""OpenSSF model signature over a whole folder: bundle and dossier together, each file by its SHA-256.

`python -m model_signing verify key FOLDER --signature FOLDER/model.sig --public-key KEY` accepts what `sign` writes.
Not here: what the signed documents say (`verification`).
"""

# pyright: reportUnknownMemberType=false
# (model-signing is typed in part)

import ast
import base64
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from ml_assets.extras.governance.dossier.envelope import PAYLOAD_TYPE
from ml_assets.extras.governance.dossier.errors import DossierRefused
from ml_assets.extras.governance.dossier.keys import PublicKey, SigningKey

SIGNATURE = "model.sig"
"""File of the signature in the folder: the only one that it does not cover."""
_FORM = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""Media type of the bundle that `model-signing` writes."""
_MISMATCH = "Signature mismatch: "
"""Beginning of the error of `model-signing`; a list of differences follows, as Python writes it."""


def sign(folder: Path, key: SigningKey) -> None:
    """Write `model.sig`, a signature over all other files of `folder`."""
    from model_signing import hashing, signing

    signature = folder / SIGNATURE
    config = hashing.Config().set_ignored_paths(paths=[signature], ignore_git_paths=False)
    signing.Config().use_elliptic_key_signer(private_key=key.path).set_hashing_config(config).sign(
        folder, signature
    )


def require_signed(folder: Path, key: PublicKey) -> None:
    """Raise `DossierRefused` with the names of files that differ from what `key` signed, are missing or were added."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise DossierRefused(
                f"{printable(path.relative_to(folder))} is a link: copy the files themselves into the folder"
            )
        if not path.is_dir() and not path.is_file():
            raise DossierRefused(
                f"{printable(path.relative_to(folder))} is neither a file nor a folder, but such as a pipe. "
                "Delete it, or get the dossier again from its maker"
            )
        if path.is_dir() and not any(path.iterdir()):
            raise DossierRefused(
                f"files differ from those that were signed: added: {printable(path.relative_to(folder))}, an empty "
                "folder. Delete it, or get the dossier again from its maker"
            )
    if not (folder / SIGNATURE).is_file():
        raise DossierRefused(
            f"{SIGNATURE} is missing in {folder}: it is not a dossier, or its copy is incomplete"
        )

    from cryptography.exceptions import InvalidSignature
    from model_signing import hashing, verifying

    signature = folder / SIGNATURE
    config = hashing.Config().set_ignored_paths(paths=[signature], ignore_git_paths=False)
    with tempfile.TemporaryDirectory(prefix="ml-assets-") as scratch:
        pem = Path(scratch) / "key.pem"
        pem.write_text(key.pem)
        verifier = verifying.Config().use_elliptic_key_verifier(public_key=pem).set_hashing_config(config)
        try:
            # Bytes and fields that a verifier overlooks would otherwise be free to change.
            if _as_written(text := signature.read_text(encoding="utf-8")) != text:
                raise DossierRefused(
                    f"{SIGNATURE} was altered: it differs from the form in which it was written"
                )
            verifier.verify(folder, signature)
        except InvalidSignature as error:
            raise DossierRefused(
                f"{SIGNATURE} was altered: its content is not what the key {key.name[:12]} signed"
            ) from error
        except DossierRefused:
            raise
        except Exception as error:  # the reader of a damaged signature may raise anything
            raise DossierRefused(_in_words(str(error), key)) from error


def _as_written(text: str) -> str:
    """Return the text that `sign` writes for hint, payload and first signature of `text`. May raise anything."""
    found = json.loads(text)
    envelope, hint = found["dsseEnvelope"], found["verificationMaterial"]["publicKey"]["hint"]
    if not hint:
        raise ValueError("it names no key")
    payload, signature = (
        base64.b64encode(base64.b64decode(one, validate=True)).decode()
        for one in (envelope["payload"], envelope["signatures"][0]["sig"])
    )
    written: dict[str, Any] = {
        "mediaType": _FORM,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": payload,
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": signature, "keyid": ""}],
        },
    }
    return json.dumps(written, separators=(",", ":"))


def _in_words(said: str, key: PublicKey) -> str:
    if said.startswith(_MISMATCH):
        files = [_named(one) for one in ast.literal_eval(said.removeprefix(_MISMATCH))]
        return f"files differ from those that were signed: {'; '.join(files)}. Get the dossier again from its maker"
    if said.startswith("Key mismatch"):
        return (
            f"{SIGNATURE} was made with another key than {key.name[:12]}: give the public key of whoever signed the "
            "dossier, or sign it again"
        )
    return f"{SIGNATURE} cannot be read, so it was altered: {printable(said)}"


def _named(difference: str) -> str:
    """Return one difference that `model-signing` found, without its digests."""
    for words, ours in (("Extra files found in model", "added"), ("Missing files in model", "missing")):
        if difference.startswith(words):
            return f"{ours}: {printable(difference.partition(': ')[2])}"
    altered = re.match(r"Hash mismatch for '(.*?)': Expected", difference)
    return f"altered: {printable(altered[1])}" if altered else printable(difference)


def printable(name: object) -> str:
    """Return a name as it is, or with escapes if it has line ends or control characters: they could forge output."""
    return text if (text := str(name)).isprintable() else ascii(text)
