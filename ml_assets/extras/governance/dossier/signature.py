"""Signatures of dossiers: keys, DSSE envelopes of statements, and the OpenSSF model signature over a whole folder.

Keys are of the curve P-256 in PEM, as `model-signing` and openssl read them. A private key is a file of its owner
alone; no artifact contains it. Envelopes have the form of the DSSE protocol 1.0 (secure-systems-lab/dsse), which
in-toto's and SLSA's tools read. `python -m model_signing verify key FOLDER --signature FOLDER/model.sig --public-key
KEY` accepts what `sign` writes. Not here: what the signed documents say (`verification`).
"""

# pyright: reportUnknownMemberType=false
# (model-signing is typed in part)

import ast
import base64
import binascii
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec


class DossierRefused(Exception):
    """A dossier does not prove its bundle. The message names the altered part and the remedy."""


class SigningKeyRefused(Exception):
    """A key cannot be used. The message has the reason and the remedy."""


PRIVATE, PUBLIC = "signing.pem", "signing.pub.pem"
"""Names of the two files that `create_keys` writes."""
_HEAD, _TAIL = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"
_P256 = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
"""Beginning of each public key of the curve P-256 in DER (RFC 5480), up to the point, which has 64 more bytes."""


@dataclass(frozen=True)
class PublicKey:
    """Key that verifies signatures."""

    pem: str

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Read PEM. `where` names its place for the error. Raises `SigningKeyRefused` for anything but a P-256 key."""
        if text.startswith("\ufeff"):
            raise SigningKeyRefused(
                f"{where} begins with a byte order mark, which an editor added: save it as UTF-8 without one"
            )
        body = text.strip().removeprefix(_HEAD).removesuffix(_TAIL)
        try:
            der = base64.b64decode("".join(body.split()), validate=True)
        except (binascii.Error, ValueError):
            der = b""
        if not der.startswith(_P256) or len(der) != len(_P256) + 64:
            raise SigningKeyRefused(
                f"{where} is not a public key of the curve P-256 in PEM: give the file {PUBLIC} that `ml-assets "
                "dossier keygen` wrote, or make one with openssl (ecparam -name prime256v1; ec -pubout)"
            )
        lines = base64.encodebytes(der).decode().replace("\n", "")
        wrapped = "\n".join(lines[at : at + 64] for at in range(0, len(lines), 64))
        return cls(f"{_HEAD}\n{wrapped}\n{_TAIL}\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a PEM file. Raises `SigningKeyRefused`."""
        try:
            return cls.parse(path.read_text(errors="replace"), str(path))
        except OSError as error:
            raise SigningKeyRefused(f"the public key {path} cannot be read: {error.strerror}") from error

    @property
    def name(self) -> str:
        """SHA-256 of the PEM, 64 hex digits: the hint by which `model-signing` finds a key."""
        return hashlib.sha256(self.pem.encode()).hexdigest()

    @cached_property
    def loaded(self) -> "ec.EllipticCurvePublicKey":
        """The key for `cryptography`. Raises `SigningKeyRefused` if its point is not on the curve."""
        from cryptography.hazmat.primitives import serialization

        try:
            key = serialization.load_pem_public_key(self.pem.encode())
        except ValueError as error:
            raise SigningKeyRefused(
                f"the public key {self.name[:12]} is not on the curve P-256: copy it again"
            ) from error
        return key  # pyright: ignore[reportReturnType]  # `parse` accepts no other kind


@dataclass(frozen=True)
class SigningKey:
    """Private key."""

    path: Path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Check the file of a private key. Raises `SigningKeyRefused` if others may read it, or it is not one."""
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise SigningKeyRefused(
                f"the private key {path} cannot be read ({error.strerror}): check ML_ASSETS_SIGNING_KEY, or make a key "
                "with: ml-assets dossier keygen FOLDER"
            ) from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SigningKeyRefused(
                f"other users may read the private key {path} (mode {stat.S_IMODE(mode):o}): run chmod 600 {path}, and "
                "make a new key if it may have been copied"
            )
        key = cls(path)
        _ = key.loaded
        return key

    @cached_property
    def loaded(self) -> "ec.EllipticCurvePrivateKey":
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            key = serialization.load_pem_private_key(self.path.read_bytes(), None)
        except (ValueError, TypeError) as error:  # TypeError: it has a password
            raise SigningKeyRefused(
                f"{self.path} is not a private key in PEM without a password: make one with ml-assets dossier keygen"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise SigningKeyRefused(
                f"{self.path} is not a key of the curve P-256: make one with ml-assets dossier keygen"
            )
        return key

    @cached_property
    def public(self) -> PublicKey:
        from cryptography.hazmat.primitives import serialization

        pem = self.loaded.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return PublicKey.parse(pem.decode(), str(self.path))


def create_keys(folder: Path) -> SigningKey:
    """Write `signing.pem` and `signing.pub.pem` into `folder`, which git then ignores.

    Raises `SigningKeyRefused` if there is a key.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    private = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        descriptor = os.open(folder / PRIVATE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise SigningKeyRefused(
            f"{folder / PRIVATE} exists: choose another folder, keys are not replaced"
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(private)
    ignored = folder / ".gitignore"
    if not ignored.exists():  # a folder in a checkout: git must not offer the key for a commit
        ignored.write_text("*\n")
    key = SigningKey.read(folder / PRIVATE)
    (folder / PUBLIC).write_text(key.public.pem)
    return key


PAYLOAD_TYPE = "application/vnd.in-toto+json"


def enveloped(statement: Mapping[str, Any], key: SigningKey) -> str:
    """Return the envelope of a statement, signed by `key`, as JSON."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

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
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

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
