"""ID tokens of a real issuer on loopback: only one that is signed, current, and for this audience proves a person."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ml_assets_tests.resources.ledger_writer import with_account
from ml_assets_tests.resources.oidc_issuer import AUDIENCE, OidcIssuer, running_issuer
from resources.acting import acting_person
from resources.ledger import AccountRefused, Accounts, IdentityRefused, Ledger, Person
from resources.settings import Settings


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def accounts(tmp_path: Path, issuer: OidcIssuer) -> Accounts:
    """Accounts of `root` and, by the issuer, of `bob`."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    root, accounts = with_account(ledger, "root"), ledger.accounts
    accounts.add_by_oidc("bob", root, issuer=issuer.address, subject="248289", audience=AUDIENCE)
    return accounts


@pytest.fixture
def acting(accounts: Accounts) -> Callable[[str], Person]:
    """`(ID token) -> Person` of an environment with this token."""
    return lambda token: acting_person(Settings(author="eve", oidc_token=token), accounts)


def test_an_id_token_proves_the_account_of_its_subject(
    issuer: OidcIssuer, acting: Callable[[str], Person], accounts: Accounts
) -> None:
    root, account = accounts.in_force()
    bob = Person.proved(account, "oidc")
    assert acting(issuer.id_token("248289")) == bob
    assert acting(issuer.id_token("248289", aud=["other", AUDIENCE])) == bob
    accounts.revoke("bob", Person.proved(root, "token"), reason="left")
    with pytest.raises(IdentityRefused, match="no account is of"):
        acting(issuer.id_token("248289"))


OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
LONG_AGO = int(time.time()) - 100_000
REFUSED: dict[str, tuple[Callable[[OidcIssuer], str], str]] = {
    "audience": (
        lambda issuer: issuer.id_token("248289", aud="shop"),
        "for the audience 'shop', and the account of bob for 'ml-assets'",
    ),
    "expired": (
        lambda issuer: issuer.id_token("248289", exp=LONG_AGO),
        r"it expired at 20.* UTC: get a new one from http://127",
    ),
    "never expires": (
        lambda issuer: issuer.id_token("248289", exp=10**300),
        "its expiry is not within 24 hours",
    ),
    "infinite": (
        lambda issuer: issuer.id_token("248289", exp=float("inf")),
        "its expiry is not within 24 hours",
    ),
    "another client": (
        lambda issuer: issuer.id_token("248289", aud=["shop", AUDIENCE], azp="shop"),
        "it was issued to 'shop'",
    ),
    "not yet": (
        lambda issuer: issuer.id_token("248289", nbf=int(time.time()) + 100_000),
        "it is not valid: The token is not yet valid",
    ),
    "no expiry": (
        lambda issuer: issuer.id_token("248289", exp=None),
        'it is not valid: Token is missing the "exp" claim',
    ),
    "other key": (
        lambda issuer: issuer.id_token("248289", key=OTHER_KEY),
        "its signature does not belong to a key of http://127",
    ),
    "none": (
        lambda issuer: issuer.id_token("248289", key="", algorithm="none"),
        "it is signed with 'none'; a signature with a private key is needed",
    ),
    "public key as secret": (
        lambda issuer: issuer.id_token("248289", key=_as_secret(issuer), algorithm="HS256"),
        "it is signed with 'HS256'; a signature with a private key is needed",
    ),
    "subject": (
        lambda issuer: issuer.id_token("1"),
        "no account has the subject '1' of http://127",
    ),
    "no subject": (
        lambda issuer: issuer.id_token("1", sub=None),
        "no account has the subject None of",
    ),
    "issuer": (
        lambda issuer: issuer.id_token("248289", iss="https://issuer.example"),
        "its issuer is 'https://issuer.example', and no account is of that issuer",
    ),
    "changed": (
        lambda issuer: _with_another_subject(issuer),
        "its signature does not belong to a key of http://127",
    ),
    "cut": (
        lambda issuer: issuer.id_token("248289").rpartition(".")[0] + ".",
        "its signature does not belong to a key of http://127",
    ),
    "no token": (lambda issuer: "a.b.c", "not a JSON web token"),
}


def _as_secret(issuer: OidcIssuer) -> str:
    """The public key as text: who verifies with the algorithm of the header takes it for a shared secret."""
    point = issuer.key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    return point.hex()


def _with_another_subject(issuer: OidcIssuer) -> str:
    """A token of somebody else with bob's claims put in."""
    header, _, signature = issuer.id_token("1").split(".")
    return f"{header}.{issuer.id_token('248289').split('.')[1]}.{signature}"


@pytest.mark.parametrize("what", REFUSED)
def test_other_id_tokens_are_refused_by_name(
    issuer: OidcIssuer, acting: Callable[[str], Person], what: str
) -> None:
    make, why = REFUSED[what]
    token = make(issuer)
    with pytest.raises(IdentityRefused, match=f"^ML_ASSETS_OIDC_TOKEN: .*{why}") as refused:
        acting(token)
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "answer", "why"),
    [
        ("/.well-known/openid-configuration", None, "did not answer with its keys"),
        (
            "/.well-known/openid-configuration",
            {"issuer": "https://other"},
            "is of another issuer, 'https://other'",
        ),
        ("/.well-known/openid-configuration", ["no"], "is not a JSON object"),
        ("/.well-known/openid-configuration", "http://127.0.0.1:1/", "did not answer with its keys"),
        ("/keys", {"keys": []}, "cannot be read"),
        ("/keys", {"keys": [{"kty": "oct", "k": "AAAA", "kid": "other"}]}, "publishes no such key"),
    ],
)
def test_an_issuer_that_answers_otherwise_proves_nobody(
    issuer: OidcIssuer, acting: Callable[[str], Person], path: str, answer: Any, why: str
) -> None:
    issuer.documents[path] = answer
    with pytest.raises(IdentityRefused, match=why):
        acting(issuer.id_token("248289"))


def test_a_proxy_of_the_environment_cannot_stand_in_for_an_issuer(
    issuer: OidcIssuer, accounts: Accounts
) -> None:
    """A process of its own: proxies are read when it starts, and whoever is checked sets its environment."""
    with running_issuer() as proxy:
        proxy.documents[f"{issuer.address}/.well-known/openid-configuration"] = {
            "issuer": issuer.address,
            "jwks_uri": f"{issuer.address}/keys",
        }
        public = jwt.algorithms.ECAlgorithm.to_jwk(proxy.key.public_key(), as_dict=True)
        proxy.documents[f"{issuer.address}/keys"] = {"keys": [{**public, "kid": "first"}]}
        token = issuer.id_token("248289", key=proxy.key)
        code = (
            "import sys; from resources.web.oidc import account_of; from resources.ledger import Ledger; "
            "account_of(sys.argv[2], Ledger(sys.argv[1]).accounts.in_force())"
        )
        url = accounts._database._url.render_as_string()
        found = subprocess.run(
            [sys.executable, "-c", code, url, token],
            env=os.environ | {"http_proxy": proxy.address, "no_proxy": ""},
            capture_output=True,
            text=True,
        )
        assert re.search("IdentityRefused: .*signature .*key of", found.stderr)
        assert proxy.asked == []


def test_an_issuer_that_is_away_is_named(issuer: OidcIssuer, accounts: Accounts) -> None:
    with running_issuer() as other:
        token = other.id_token("1")
        accounts.add_by_oidc(
            "cyd",
            Person.proved(accounts.in_force()[0], "token"),
            issuer=other.address,
            subject="1",
            audience=AUDIENCE,
        )
    with pytest.raises(IdentityRefused, match=r"127\.0\.0\.1:\d+ did not answer"):
        acting_person(Settings(oidc_token=token), accounts)


def test_only_issuers_of_accounts_are_asked(issuer: OidcIssuer, acting: Callable[[str], Person]) -> None:
    """A token names its issuer itself: whoever made it must not choose whom we trust."""
    with running_issuer() as other:
        with pytest.raises(IdentityRefused, match="no account is of"):
            acting(other.id_token("248289"))
        assert other.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "http://issuer.example",
        "https://",
        "https://a@issuer.example",
        "https://x/?q",
        "file:///keys",
        "issuer",
    ],
)
def test_addresses_without_protection_are_refused(accounts: Accounts, address: str) -> None:
    with pytest.raises(AccountRefused, match=f"{re.escape(address)}.*use https"):
        accounts.add_by_oidc(
            "cyd",
            Person.proved(accounts.in_force()[0], "token"),
            issuer=address,
            subject="1",
            audience=AUDIENCE,
        )


def test_one_subject_has_one_account_and_one_person_one_proof(issuer: OidcIssuer, accounts: Accounts) -> None:
    with pytest.raises(AccountRefused, match="of bob: one person"):
        accounts.add_by_oidc(
            "cyd",
            Person.proved(accounts.in_force()[0], "token"),
            issuer=issuer.address,
            subject="248289",
            audience="shop",
        )
    both = Settings(token="mla_x", oidc_token=issuer.id_token("248289"))
    with pytest.raises(IdentityRefused, match="ML_ASSETS_TOKEN and ML_ASSETS_OIDC_TOKEN"):
        acting_person(both, accounts)
