"""No text made from an address holds its credentials, wherever in it they stand."""

import string
from urllib.parse import quote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from resources.addresses import Address, hide_credentials
from resources.lake.lakefs_api import LakeFSApi
from resources.ledger import Ledger, LedgerError
from resources.settings import KubernetesSettings, Settings

SCHEMES = st.sampled_from(["http", "https", "postgresql+psycopg2", "s3", "redis", "sqlite"])
HOSTS = st.sampled_from(["host", "127.0.0.1:5432", "[::1]:5000", "db.example.org"])
PATHS = st.sampled_from(["", "/", "/db", "/a/b.c"])
# Marked, so that a piece of it is found in a text: `p@ss` must not leave `ss`.
SECRETS = st.lists(
    st.tuples(st.sampled_from(["", *"@:/?#&=%+ .;"]), st.text("QXZJ", min_size=4, max_size=6)),
    min_size=1,
    max_size=4,
).map(lambda parts: "".join(f"{sign}{text}" for sign, text in parts))


class Held(BaseModel):
    """An address as settings hold it."""

    address: Address


NAMES = st.sampled_from(["password", "sslpassword", "access_token", "api_key", "X-Amz-Signature"])
USERS = st.sampled_from(["ada:{}", "{}", "ada%40home:{}", ":{}"])


@st.composite
def addresses(draw: st.DrawFn) -> tuple[str, str]:
    """(address, the secret in it): as a password, as a token in the user's place, or as a parameter."""
    secret = draw(SECRETS)
    written = quote(secret, safe="") if draw(st.booleans()) else secret
    start = f"{draw(SCHEMES)}://"
    place = f"{draw(HOSTS)}{draw(PATHS)}"
    if draw(st.booleans()):
        return f"{start}{draw(USERS).format(written)}@{place}", secret
    before = draw(st.sampled_from(["", "sslmode=require&"]))
    after = draw(st.sampled_from(["", "&connect_timeout=5"]))
    return f"{start}{place}?{before}{draw(NAMES)}={written}{after}", secret


def pieces(secret: str) -> list[str]:
    """The marked parts of a secret."""
    return "".join(letter if letter in string.ascii_uppercase else " " for letter in secret).split()


@settings(max_examples=60)
@given(addresses())
def test_no_rendering_holds_a_piece_of_a_credential(made: tuple[str, str]) -> None:
    whole, secret = made
    address = Address(whole)
    shown = Held(address=address)
    texts = (str(address), repr(address), f"{address}", repr(shown), str(shown), shown.model_dump_json())
    for text in texts:
        assert not any(piece in text for piece in pieces(secret)), text
    assert address.reveal() == whole
    assert address.has_credentials


@settings(max_examples=60)
@given(addresses(), st.sampled_from(["connection to {} failed", "({}): no", "'{}'"]))
def test_texts_of_others_lose_the_credentials_of_an_address(made: tuple[str, str], sentence: str) -> None:
    whole, secret = made
    said = Address(whole).hide_in(f"{sentence.format(whole)}; tried {quote(secret, safe='')}")
    assume(not any(sign in secret for sign in "&#; ?"))  # there a server sees another secret than was meant
    assert not any(piece in said for piece in pieces(secret)), said


@given(SCHEMES, HOSTS, PATHS)
def test_an_address_without_credentials_is_shown_as_it_is(scheme: str, host: str, path: str) -> None:
    whole = f"{scheme}://{host}{path}"
    assert str(Address(whole)) == whole
    assert hide_credentials(f"see {whole} first") == f"see {whole} first"


@pytest.mark.parametrize(
    ("whole", "shown"),
    [
        ("http://ada:p@ss@host:80/x", "http://host:80/x"),
        ("postgresql://db/ledger?user=ada&password=secret", "postgresql://db/ledger?***"),
        ("postgresql://ada:a?b@db/ledger", "postgresql://***"),
        ("postgresql://ada:a/b@db/ledger", "postgresql://***@db/ledger"),
        ("sqlite:////home/ada/ledger.db", "sqlite:////home/ada/ledger.db"),
        ("/home/ada/ledger.db", "/home/ada/ledger.db"),
        ("host=db password=secret", "***"),
    ],
)
def test_examples_of_what_is_shown(whole: str, shown: str) -> None:
    assert str(Address(whole)) == shown


def test_errors_and_pages_of_parts_hold_no_credentials() -> None:
    lake = LakeFSApi("http://ada:pl@nted@lake:8000", "local", "key", "secret", patience=0)
    said = [repr(lake), *(str(lake.refused(status, "no")) for status in (403, 404, 429, 500))]
    said.append(str(lake.unreachable(f"{lake.url}/api", OSError())))
    ledger = Ledger("postgresql://127.0.0.1:9/x?password=planted", patience_seconds=0)
    with pytest.raises(LedgerError) as caught:
        ledger.volumes("datasets/none")
    said.append(str(caught.value))
    assert not any("planted" in one or "nted" in one for one in said), said
    assert "127.0.0.1:9/x" in said[-1]


def test_settings_take_credentials_only_where_they_have_a_place() -> None:
    with pytest.raises(ValidationError, match=r"S3 .* no credentials"):
        Settings.model_validate({"artifacts_url": "s3://ada:planted@bucket/x"})
    planted = "postgresql://ada:planted@db/x?password=planted"
    names = ("lake_url", "ledger_url", "tracking_uri", "dagster_url", "s3_endpoint_url", "ui_url")
    settings_of_all = Settings.model_validate(
        {**dict.fromkeys(names, planted), "kubernetes": KubernetesSettings(env={"TOKEN": "planted"})}
    )
    assert "planted" not in repr(settings_of_all) + str(settings_of_all)
