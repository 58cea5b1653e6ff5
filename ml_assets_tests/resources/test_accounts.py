"""Accounts: from the first one on, a person decides only with a proof, and all of it stands in the chain."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from ml_assets_tests.resources.ledger_chains import attacker
from ml_assets_tests.resources.ledger_writer import EVALUATION, NEW
from resources.acting import acting_person
from resources.ledger import (
    AccountRefused,
    EvaluationRow,
    IdentityNeeded,
    IdentityRefused,
    Ledger,
    LedgerChanged,
    NotPrintable,
    Person,
    Promotion,
)
from resources.settings import Settings

NOBODY = Person(name="ada")
ROOT = Person(name="root", checked_by="token")
BOB = Person(name="bob", checked_by="token")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Ledger:
    """A ledger with an evaluation, a promotion and a rejected verdict; `root` administrates, `bob` has an account."""
    ledger = Ledger(url)
    ledger.models.record_evaluation(EVALUATION)
    ledger.record_verdicts([NEW])
    promote(ledger, NOBODY)
    ledger.accounts.add_by_token("root", NOBODY, is_administrator=True)
    ledger.accounts.add_by_token("bob", ROOT)
    return ledger


def promote(ledger: Ledger, by: Person) -> Promotion:
    return ledger.models.promote(
        "m",
        "1",
        "production",
        author=by.name,
        checked_by=by.checked_by,
        reason="better",
        bundle_digest="b",
        evaluation_digest="e",
    )


def newest(ledger: Ledger) -> EvaluationRow:
    found = ledger.models.newest_evaluation("m", "b")
    assert found is not None
    return found


def said(by: Person) -> dict[str, str]:
    return {"author": by.name, "checked_by": by.checked_by, "reason": "r"}


DECISIONS: dict[str, Callable[[Ledger, Person], object]] = {
    "promote": promote,
    "demote": lambda ledger, by: ledger.models.demote(ledger.models.promotions("m")[0], **said(by)),
    "archive": lambda ledger, by: ledger.models.archive("m", "1", bundle_digest="b", **said(by)),
    "review": lambda ledger, by: ledger.models.review(newest(ledger), "1", approves=True, **said(by)),
    "accept": lambda ledger, by: ledger.accept(NEW.table, NEW.key, 1, **said(by)),
}


@pytest.mark.parametrize("what", DECISIONS)
def test_each_decision_of_a_person_needs_a_proof(ledger: Ledger, what: str) -> None:
    before = ledger.models.verify()
    with pytest.raises(IdentityNeeded, match=r"nobody checked that you are ada.* ask an administrator: root"):
        DECISIONS[what](ledger, NOBODY)
    with pytest.raises(IdentityNeeded, match="the account of eve was revoked meanwhile"):
        DECISIONS[what](ledger, Person(name="eve", checked_by="token"))
    assert ledger.models.verify() == before
    DECISIONS[what](ledger, BOB)
    assert ledger.models.verify().place == before.place + 1


def test_proofs_stand_in_the_rows(ledger: Ledger, url: str) -> None:
    assert promote(ledger, BOB).checked_by == "token"
    ledger.models.record_evaluation(EVALUATION)  # no person decides: a service may have no account
    assert [one.checked_by for one in Ledger(url).models.promotions("m")] == ["nobody", "token"]
    promote(ledger, Person(name="canary", checked_by="platform"))


def test_a_token_proves_its_account_until_it_is_revoked(ledger: Ledger) -> None:
    token = ledger.accounts.add_by_token("cyd", ROOT)
    assert token not in str(ledger.accounts.all())
    settings = Settings(author="eve", token=token)
    assert token not in repr(settings)
    person = acting_person(settings, ledger.accounts)
    assert person == Person(name="cyd", checked_by="token")
    ledger.accounts.revoke("Cyd", ROOT, reason="left")
    with pytest.raises(
        IdentityRefused, match=r"ML_ASSETS_TOKEN: the account of cyd was revoked .* by root: left"
    ):
        acting_person(settings, ledger.accounts)
    with pytest.raises(IdentityNeeded, match="the account of cyd was revoked meanwhile"):
        promote(ledger, person)
    assert ledger.accounts.add_by_token("cyd", ROOT) != token


@pytest.mark.parametrize("token", ["", "mla_", "bob", "mla_" + "A" * 43])
def test_other_tokens_prove_nothing(ledger: Ledger, token: str) -> None:
    with pytest.raises(IdentityRefused, match="the token belongs to no account of this ledger"):
        ledger.accounts.of_token(token)


def test_without_accounts_the_name_counts_unchecked(url: str) -> None:
    ledger = Ledger(url)
    ledger.models.record_evaluation(EVALUATION)
    assert acting_person(Settings(author="ada"), ledger.accounts) == NOBODY
    assert promote(ledger, NOBODY).checked_by == "nobody"


def test_the_first_account_is_an_administrators(url: str) -> None:
    accounts = Ledger(url).accounts
    with pytest.raises(AccountRefused, match=r"must be an administrator's.* add ada --administrator"):
        accounts.add_by_token("ada", NOBODY)
    assert accounts.all() == []
    accounts.add_by_token("ada", NOBODY, is_administrator=True)
    ada = Person(name="ada", checked_by="token")
    accounts.add_by_oidc(
        "bob", ada, issuer="https://i.example", subject="mistyped", audience="a", is_administrator=True
    )
    with pytest.raises(
        AccountRefused, match=r"another administrator, who proves an account, must revoke ada"
    ):
        accounts.revoke("ada", ada, reason="lost")


def test_only_administrators_change_accounts(ledger: Ledger) -> None:
    """Otherwise a person could give herself a second name and approve her own model."""
    for by, refused in (
        (NOBODY, IdentityNeeded),
        (Person(name="root"), IdentityNeeded),
        (BOB, AccountRefused),
    ):
        with pytest.raises(refused, match="root"):
            ledger.accounts.add_by_token("second", by)
        with pytest.raises(refused, match="root"):
            ledger.accounts.revoke("bob", by, reason="x")
    assert [one.name for one in ledger.accounts.in_force()] == ["root", "bob"]


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("\uff42OB ", AccountRefused, "bob has an account since"),
        (" ", AccountRefused, "needs a name"),
        ("b\u043eb", AccountRefused, r"may have letters from A to Z"),
        ("bob\u034f", AccountRefused, "may have letters from A to Z"),
        ("cyd (checked by token)", AccountRefused, "may have letters from A to Z"),
        ("bob, root", AccountRefused, "may have letters from A to Z"),
        ("b\nob", NotPrintable, "does not print"),
    ],
)
def test_names_that_mislead_get_no_account(
    ledger: Ledger, name: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        ledger.accounts.add_by_token(name, ROOT)


def test_two_persons_who_are_first_at_once_make_one_administrator(url: str) -> None:
    def add(name: str) -> str:
        try:
            Ledger(url).accounts.add_by_token(name, Person(name=name), is_administrator=True)
        except IdentityNeeded:
            return "refused"
        return name

    with ThreadPoolExecutor(4) as both:
        answers = list(both.map(add, ("ada", "bob", "cyd", "dan")))
    assert answers.count("refused") == 3
    (first,) = Ledger(url).accounts.all()
    assert first.name in answers


@pytest.mark.parametrize("kind", ["account", "revocation", "acceptance"])
def test_changed_accounts_and_acceptances_are_named(ledger: Ledger, url: str, kind: str) -> None:
    ledger.accounts.revoke("bob", ROOT, reason="left")
    ledger.accept(NEW.table, NEW.key, 1, "root", "a strike", checked_by="token")
    ledger.models.verify()
    assert ledger.models.models() == ["m"]
    with attacker(url) as connection:
        changed = sa.text(f"UPDATE ledger_decisions SET author = 'eve' WHERE kind = '{kind}'")
        assert connection.execute(changed).rowcount
    with pytest.raises(LedgerChanged, match=rf"^row \d+ \({kind} of , "):
        ledger.models.verify()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE ledger_acceptances SET author = 'eve'", r"differs from row \d+ of the chain: author"),
        ("DELETE FROM ledger_acceptances", r"is missing, and row \d+ of the chain has it"),
        (
            "INSERT INTO ledger_acceptances SELECT \"table\", '2014-01-01', number, content_digest, author, reason, at "
            "FROM ledger_acceptances",
            "is in no row of the chain",
        ),
    ],
)
def test_an_acceptance_unlike_its_row_of_the_chain_is_named(
    ledger: Ledger, url: str, change: str, named: str
) -> None:
    """The table of acceptances decides about a partition."""
    ledger.accept(NEW.table, NEW.key, 1, "root", "a strike", checked_by="token")
    ledger.models.verify()
    with attacker(url) as connection:
        assert connection.execute(sa.text(change)).rowcount
    with pytest.raises(LedgerChanged, match=rf"the acceptance of verdict 1 on {NEW.table} \S+ {named}"):
        ledger.models.verify()
