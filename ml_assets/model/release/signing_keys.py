"""Keys of the curve P-256 in PEM, as `model-signing` and openssl read them. Rules name public keys.

A private key is a file of its owner alone; no artifact contains it. Not here: signatures, which are an extra
(`ml_assets.extras.governance.dossier.signature`).
"""

import base64
import binascii
import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec


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
