"""DSSE envelopes around in-toto statements: sign and open them.

The form is that of the DSSE protocol 1.0 (secure-systems-lab/dsse), which in-toto's and SLSA's tools read.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from ml_assets.extras.governance.dossier.errors import DossierRefused
from ml_assets.extras.governance.dossier.keys import PublicKey, SigningKey

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
