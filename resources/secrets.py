"""Secrets that no record, artifact or document may contain: private keys and tokens of accounts.

Here: finding them in bytes. Not here: what a caller does then.
"""

import re

TOKEN_PREFIX = "mla_"
"""Beginning of each token of an account, by which scanners of secrets find it."""
_SECRET = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|\b%s[\w-]{16,}" % TOKEN_PREFIX.encode()
)


def holds_secret(content: bytes) -> bool:
    """Return True if `content` has a private key in PEM or a token of an account."""
    return _SECRET.search(content) is not None
