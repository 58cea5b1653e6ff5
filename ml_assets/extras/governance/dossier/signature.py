"""Signatures of dossiers: DSSE envelopes of statements, and the OpenSSF model signature over a whole folder.

Envelopes have the form of the DSSE protocol 1.0 (secure-systems-lab/dsse), which
in-toto's and SLSA's tools read. `python -m model_signing verify key FOLDER --signature FOLDER/model.sig --public-key
KEY` accepts what `sign` writes. Not here: what the signed documents say (`verification`).
"""

# pyright: reportUnknownMemberType=false
# (model-signing is typed in part)

import ast
import base64
import binascii
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from model_signing import hashing, signing, verifying

from ml_assets.model.release.signing_keys import PublicKey, SigningKey


class DossierRefused(Exception):
    """A dossier does not prove its bundle. The message names the altered part and the remedy."""


PAYLOAD_TYPE = "application/vnd.in-toto+json"


def enveloped(statement: Mapping[str, Any], key: SigningKey) -> str:
    """Return the envelope of a statement, signed by `key`, as JSON."""
    body = json.dumps(statement, sort_keys=True).encode()
    signature = key.loaded.sign(_encoded(PAYLOAD_TYPE, body), ec.ECDSA(hashes.SHA256()))
    return json.dumps(
        {
            "payload": base64.b64encode(body).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": key.public.name, "sig": base64.b64encode(signature).decode()}],
        },
        indent=1,
    )


def opened(text: str, key: PublicKey, name: str) -> dict[str, Any]:
    """Return the statement in an envelope. `name` is its file, for errors.

    Raises `DossierRefused` unless `key` signed it.
    """
    try:
        envelope: dict[str, Any] = json.loads(text)
        kind: str = envelope["payloadType"]
        body = base64.b64decode(envelope["payload"], validate=True)
        signatures = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise DossierRefused(f"{name} is not an envelope in the form of DSSE: {error}") from error
    for signature in signatures:
        try:
            key.loaded.verify(signature, _encoded(kind, body), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            continue
        if kind != PAYLOAD_TYPE:
            raise DossierRefused(f"{name} holds {kind}, not an in-toto statement")
        return json.loads(body)
    raise DossierRefused(f"{name} was not signed with the key {key.name[:12]}, or was altered since")


def _encoded(kind: str, body: bytes) -> bytes:
    """Return the pre-authentication encoding (PAE) of DSSE: the bytes that are signed."""
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(body)).encode(), body])


SIGNATURE = "model.sig"
"""File of the signature in the folder: the only one that it does not cover."""
_FORM = "application/vnd.dev.sigstore.bundle.v0.3+json"
"""Media type of the bundle that `model-signing` writes."""
_MISMATCH = "Signature mismatch: "
"""Beginning of the error of `model-signing`; a list of differences follows, as Python writes it."""


def sign(folder: Path, key: SigningKey) -> None:
    """Write `model.sig`, a signature over all other files of `folder`."""
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
