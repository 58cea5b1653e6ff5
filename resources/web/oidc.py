"""Check of an ID token of OpenID Connect: signed by the issuer of an account, for its audience, not expired.

Issuer, subject and audience come from the account in the ledger; keys from the issuer's discovery document. Import
this late: the extra `governance` brings `jwt`. Not here: the sign-in at the issuer, which gives the token.
"""

import json
import time
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import jwt

from resources.addresses import NoRedirects
from resources.ledger import Account, AccountRefused, IdentityRefused, require_safe_address

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a private key. `none` and those with a shared secret prove nothing."""
LEEWAY_SECONDS = 60
"""Difference between our clock and the issuer's."""
LONGEST_SECONDS = 24 * 3600
"""Longest time until an ID token expires. A leaked one must not prove a person for years."""
PATIENCE_SECONDS = 10.0
LARGEST_ANSWER = 1_000_000
"""Bytes of a document of the issuer."""
_REQUIRED = ["exp", "iat", "aud", "iss", "sub"]


def account_of(id_token: str, accounts: Sequence[Account]) -> Account:
    """Return the account, among those in force, that an ID token proves. Raise `IdentityRefused` with the reason.

    Asks the issuer for its keys, but only the issuer of an account: the token alone names no server to trust.
    """
    try:
        header = jwt.get_unverified_header(id_token)
        claimed: dict[str, Any] = jwt.decode(id_token, options={"verify_signature": False})
    except jwt.InvalidTokenError as error:
        raise IdentityRefused(f"not a JSON web token ({error})") from None
    issuer, subject, algorithm = claimed.get("iss"), claimed.get("sub"), header.get("alg")
    if algorithm not in ALGORITHMS:
        raise IdentityRefused(
            f"it is signed with {algorithm!a}; a signature with a private key is needed: {', '.join(ALGORITHMS)}"
        )
    issued = [one for one in accounts if one.issuer and one.issuer == issuer]
    if not issued:
        raise IdentityRefused(f"its issuer is {issuer!a}, and no account is of that issuer")
    account = next((one for one in issued if one.subject == subject), None)
    if account is None:
        raise IdentityRefused(
            f"no account has the subject {subject!a} of {issuer}: an administrator can add one: ml-assets accounts add "
            "NAME --oidc ISSUER SUBJECT AUDIENCE"
        )
    ends, party = claimed.get("exp"), claimed.get("azp")
    if isinstance(ends, int | float) and not 0 <= ends <= time.time() + LONGEST_SECONDS:
        raise IdentityRefused(f"its expiry is not within {LONGEST_SECONDS // 3600} hours")
    if party is not None and party != account.audience:
        raise IdentityRefused(
            f"it was issued to {party!a} (claim azp), and the account of {account.name} is for {account.audience!a}"
        )
    key = _key(account.issuer, header.get("kid"))
    try:
        jwt.decode(
            id_token,
            key,
            algorithms=list(ALGORITHMS),
            audience=account.audience,
            issuer=account.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": _REQUIRED},
        )
    except jwt.ExpiredSignatureError:
        ended = datetime.fromtimestamp(int(claimed["exp"]), UTC)
        raise IdentityRefused(
            f"it expired at {ended:%Y-%m-%d %H:%M} UTC: get a new one from {account.issuer}"
        ) from None
    except jwt.InvalidAudienceError:
        raise IdentityRefused(
            f"it is for the audience {claimed.get('aud')!a}, and the account of {account.name} for {account.audience!a}"
        ) from None
    except jwt.InvalidSignatureError:
        raise IdentityRefused(f"its signature does not belong to a key of {account.issuer}") from None
    except (jwt.PyJWTError, OverflowError) as error:
        raise IdentityRefused(f"it is not valid: {error}") from None
    return account


def _key(issuer: str, name: object) -> jwt.PyJWK:
    """Return the issuer's public key with this name; without a name, its only key."""
    about = _document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if about.get("issuer") != issuer:
        raise IdentityRefused(
            f"the discovery document of {issuer} is of another issuer, {about.get('issuer')!a}"
        )
    try:
        keys = jwt.PyJWKSet.from_dict(_document(str(about.get("jwks_uri")))).keys
    except jwt.PyJWTError as error:
        raise IdentityRefused(f"the keys of {issuer} cannot be read: {error}") from None
    found = [one for one in keys if name is None or one.key_id == name]
    if len(found) != 1:
        raise IdentityRefused(f"it names the key {name!a}, and {issuer} publishes no such key")
    return found[0]


def _document(address: str) -> dict[str, Any]:
    try:
        require_safe_address(address)
        opener = _DIRECT if urlsplit(address).scheme == "http" else _OPENER
        with opener.open(address, timeout=PATIENCE_SECONDS) as answer:
            content = answer.read(LARGEST_ANSWER + 1)
        document: object = json.loads(content) if len(content) <= LARGEST_ANSWER else None
    except (AccountRefused, OSError, HTTPException, ValueError) as error:
        raise IdentityRefused(
            f"{urlsplit(address).netloc} did not answer with its keys ({error}): check that it runs and can be reached"
        ) from None
    if not isinstance(document, dict):
        raise IdentityRefused(f"{address} is not a JSON object of at most {LARGEST_ANSWER} bytes")
    return document  # pyright: ignore[reportUnknownVariableType] - of JSON


_OPENER = urllib.request.build_opener(NoRedirects)
_DIRECT = urllib.request.build_opener(NoRedirects, urllib.request.ProxyHandler({}))
"""For http, which only loopback may use: a proxy of the environment could answer in place of the issuer."""
