"""`ml-assets accounts`, and the commands that need an account once the ledger has one."""

import pytest

from ml_assets.model.release.rules import NO_RULES, Rules
from ml_assets.model.release.rules_in_force import as_json
from ml_assets_tests.cli.terminal import Terminal
from ml_assets_tests.resources.ledger_writer import EVALUATION, with_account
from ml_assets_tests.resources.oidc_issuer import AUDIENCE, running_issuer
from resources.ledger import Ledger, Person


def token_in(out: str) -> str:
    (token,) = [line for line in out.splitlines() if line.startswith("mla_")]
    return token


def test_from_the_first_account_on_a_person_needs_one(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert terminal("accounts", "list").out.startswith("No account: nobody checks names.")
    assert "must be an administrator's" in terminal("accounts", "add", "bob").err
    root = token_in(terminal("accounts", "add", "ada", "--administrator").out)
    ledger = Ledger(f"sqlite:///{terminal.home}/ledger.db")
    ledger.models.record_evaluation(EVALUATION)
    ledger.models.promote(
        "m",
        "1",
        "production",
        by=with_account(ledger, "ada"),
        reason="better",
        bundle_digest="b",
        evaluation_digest="e",
    )
    demote = ("demote", "m", "--reason", "prices were wrong")
    refused = terminal(*demote)
    assert refused.status == 1
    assert "nobody checked that you are ada, and this ledger has accounts: set ML_ASSETS_TOKEN" in refused.err

    monkeypatch.setenv("ML_ASSETS_TOKEN", f" {root}\n")
    assert terminal(*demote).status == 0
    history = terminal("history", "m").out
    assert "by ada (checked by token): prices were wrong" in history
    assert history.endswith("Nobody checked names without “(checked by …)”.\n")

    bob = token_in(terminal("accounts", "add", "bob", "--reason", "reviews").out)
    assert "bob has an account since" in terminal("accounts", "add", "Bob").err
    monkeypatch.setenv("ML_ASSETS_TOKEN", bob)
    assert "bob is not an administrator" in terminal("accounts", "revoke", "ada", "--reason", "why not").err
    monkeypatch.setenv("ML_ASSETS_TOKEN", root)
    revoked = terminal("accounts", "revoke", "bob", "--reason", "left").out
    assert revoked.startswith("The account of bob is revoked.")
    listed = terminal("accounts", "list").out
    assert "ada  token, administrator, added " in listed
    assert "by ada (checked by token): reviews\n    revoked " in listed
    assert "by ada (checked by token): left" in listed
    monkeypatch.setenv("ML_ASSETS_TOKEN", bob)
    assert "Error: ML_ASSETS_TOKEN: the account of bob was revoked" in terminal(*demote).err
    assert not any(
        one in path.read_bytes().decode(errors="ignore")
        for one in (root, bob)
        for path in terminal.home.rglob("*")
        if path.is_file()
    ), "a token is stored nowhere"


DECISIONS = (
    ("accept", "datasets/flights", "2013-07-04", "--reason", "r"),
    ("approve", "flight_delay", "1", "--reason", "r"),
    ("reject", "flight_delay", "1", "--reason", "r"),
    ("promote", "flight_delay", "1", "--reason", "r"),
    ("rollback", "flight_delay", "--reason", "r"),
    ("demote", "flight_delay", "--reason", "r"),
    ("archive", "flight_delay", "1", "--reason", "r"),
    ("rules", "accept", "flight_delay", "--reason", "r"),
    ("quarantine", "readmit", "datasets/flights"),
    ("accounts", "add", "dan"),
    ("accounts", "revoke", "ada", "--reason", "r"),
)


def test_a_revoked_account_makes_no_decision(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of a revoked account, and a name without a token, are refused before a command looks at anything."""
    root = token_in(terminal("accounts", "add", "ada", "--administrator").out)
    monkeypatch.setenv("ML_ASSETS_TOKEN", root)
    eve = token_in(terminal("accounts", "add", "eve", "--administrator").out)
    assert terminal("accounts", "revoke", "eve", "--reason", "left").status == 0
    assert token_in(terminal("accounts", "add", "eve", "--administrator").out) != eve
    ledger = Ledger(f"sqlite:///{terminal.home}/ledger.db")
    before = ledger.models.head()
    for token, why in ((eve, "the account of eve was revoked"), ("", "nobody checked that you are ada")):
        monkeypatch.setenv("ML_ASSETS_TOKEN", token)
        for command in DECISIONS:
            refused = terminal(*command)
            assert (refused.status, why in refused.err) == (1, True), (command, refused)
    assert ledger.models.head() == before


def test_an_account_by_oidc_acts_with_an_id_token(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_issuer() as issuer:
        oidc = ("--oidc", issuer.address, "248289", AUDIENCE)
        unproved = terminal("accounts", "add", "ada", "--administrator", *oidc)
        assert "first account ada: set ML_ASSETS_OIDC_TOKEN to an ID token of it" in unproved.err
        monkeypatch.setenv("ML_ASSETS_OIDC_TOKEN", issuer.id_token("248289"))
        mistyped = ("--oidc", issuer.address, "248298", AUDIENCE)
        refused = terminal("accounts", "add", "ada", "--administrator", *mistyped)
        assert "no account has the subject '248289'" in refused.err
        monkeypatch.delenv("ML_ASSETS_OIDC_TOKEN")
        assert terminal("accounts", "list").out.startswith("No account")
        monkeypatch.setenv("ML_ASSETS_OIDC_TOKEN", issuer.id_token("248289"))
        added = terminal("accounts", "add", "ada", "--administrator", *oidc)
        assert f"{issuer.address} proves ada:\nexport ML_ASSETS_OIDC_TOKEN=" in added.out
        assert token_in(terminal("accounts", "add", "bob").out)
        monkeypatch.setenv("ML_ASSETS_OIDC_TOKEN", issuer.id_token("248289", aud="shop"))
        refused = terminal("accounts", "add", "cyd")
    assert refused.err.startswith("Error: ML_ASSETS_OIDC_TOKEN: it is for the audience 'shop'")
    listed = terminal.named("eve")("accounts", "list")
    assert f"ada  OIDC, 248289 of {issuer.address}, administrator, added" in listed.out
    assert "by ada (checked by OIDC)" in listed.out


def test_an_author_that_claims_a_proof_is_refused(terminal: Terminal) -> None:
    refused = terminal.named("ada (Checked by token)")("history", "m")
    assert refused.status == 1
    assert "a name does not say that somebody checked it: leave out" in refused.err


@pytest.mark.parametrize("name", ["ada\nbob", "ada\x1b[2K", "\u202eada"])
def test_an_author_that_does_not_print_is_refused_by_its_variable(terminal: Terminal, name: str) -> None:
    refused = terminal.named(name)("history", "m")
    assert refused.status == 1
    assert refused.err.startswith("Error: ML_ASSETS_AUTHOR: ")
    assert "a name has no line breaks, no control characters and no broken encoding" in refused.err
    assert refused.err.count("\n") == 1


def test_rules_that_nobody_checked_are_named_until_a_person_confirms(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first account somebody dropped the approval, under a name that nobody checked."""
    log = Ledger(f"sqlite:///{terminal.home}/ledger.db").models
    approval = as_json(Rules.model_validate({"approval": {"by": ["ada"]}}))
    log.record_first_rules("flight_delay", approval, Person.unchecked("ada"))
    log.accept_rules(
        "flight_delay", as_json(NO_RULES), Person.unchecked("zed"), reason="simpler", allow=lambda: None
    )
    assert "do not count" not in terminal("rules", "show", "flight_delay").out
    monkeypatch.setenv("ML_ASSETS_TOKEN", token_in(terminal("accounts", "add", "ada", "--administrator").out))
    for command in (("rules", "show", "flight_delay"), ("history", "flight_delay")):
        said = terminal(*command).out
        assert "do not count: nobody checked that it was zed, and they may be weaker than rules" in said
        assert "ml-assets rules accept flight_delay --reason" in said
    assert "do not count: nobody checked that it was zed" in terminal("doctor").out
    assert terminal("rules", "accept", "flight_delay", "--reason", "I agree").status == 0
    said = terminal("rules", "show", "flight_delay").out
    assert "recorded by ada (checked by token): I agree" in said
    assert "do not count" not in said
