"""Accounts: from the first one on, a person decides only with a proof, and all of it stands in the chain."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ml_assets_tests.resources.ledger_chains import attacker
from ml_assets_tests.resources.ledger_writer import EVALUATION, NEW, with_account
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
from resources.ledger.decision_rows import KINDS
from resources.ledger.rows import Authored
from resources.settings import Settings

NOBODY = Person.unchecked("ada")


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
    with_account(ledger, "bob")
    return ledger


@pytest.fixture
def root(ledger: Ledger) -> Person:
    return with_account(ledger, "root")


@pytest.fixture
def bob(ledger: Ledger) -> Person:
    return with_account(ledger, "bob")


def promote(ledger: Ledger, by: Person) -> Promotion:
    return ledger.models.promote(
        "m",
        "1",
        "production",
        by=by,
        reason="better",
        bundle_digest="b",
        evaluation_digest="e",
    )


def newest(ledger: Ledger) -> EvaluationRow:
    found = ledger.models.newest_evaluation("m", "b")
    assert found is not None
    return found


def said(by: Person) -> dict[str, Any]:
    return {"by": by, "reason": "r"}


DECISIONS: dict[str, Callable[[Ledger, Person], object]] = {
    "rules": lambda ledger, by: ledger.models.accept_rules("m", "{}", allow=lambda: None, **said(by)),
    "promote": promote,
    "demote": lambda ledger, by: ledger.models.demote(ledger.models.promotions("m")[0], **said(by)),
    "archive": lambda ledger, by: ledger.models.archive("m", "1", bundle_digest="b", **said(by)),
    "review": lambda ledger, by: ledger.models.review(newest(ledger), "1", approves=True, **said(by)),
    "accept": lambda ledger, by: ledger.accept(NEW.table, NEW.key, 1, **said(by)),
}
ROWS = DECISIONS | {
    "redating": lambda ledger, by: ledger.models.redate("m", by, reason="r"),
    "evaluation": lambda ledger, by: ledger.models.record_evaluation(
        replace(EVALUATION, evaluation_digest="2", by=by)
    ),
    "dossier": lambda ledger, by: ledger.models.record_dossier(
        newest(ledger), "1", "d", signed_by="k", by=by
    ),
    "account": lambda ledger, by: ledger.accounts.add_by_token("dan", by),
    "revocation": lambda ledger, by: ledger.accounts.revoke("root", by, reason="r"),
    "role": lambda ledger, by: ledger.accounts.set_role("bob", "operator", by, reason="r"),
    "launch": lambda ledger, by: ledger.launches.record(["a run"], by, "launchRun"),
    "stop": lambda ledger, by: ledger.launches.record_stop("a run", by),
    "first rules": lambda ledger, by: ledger.models.record_first_rules("other", "{}", by),
}
"""Each way to write a row that names its author."""


@pytest.mark.parametrize("what", DECISIONS)
def test_each_decision_of_a_person_needs_a_proof(ledger: Ledger, bob: Person, what: str) -> None:
    before = ledger.models.verify()
    with pytest.raises(IdentityNeeded, match=r"ML_ASSETS_TOKEN .* root") as refused:
        DECISIONS[what](ledger, NOBODY)
    assert (refused.value.name, refused.value.is_revoked) == ("ada", False)
    assert ledger.models.verify() == before
    DECISIONS[what](ledger, bob)
    assert ledger.models.verify().place == before.place + 1


@pytest.mark.parametrize("what", ROWS)
@pytest.mark.parametrize("is_added_again", [False, True])
def test_a_revoked_account_writes_nothing(
    ledger: Ledger, root: Person, what: str, is_added_again: bool
) -> None:
    """A process that began before the revocation keeps its person. A new account of the same name is another one."""
    ledger.accounts.add_by_token("eve", root, is_administrator=True)
    eve = with_account(ledger, "eve")
    ledger.accounts.revoke("eve", root, reason="left")
    if is_added_again:
        ledger.accounts.add_by_token("eve", root, is_administrator=True)
    before = ledger.models.verify()
    with pytest.raises(IdentityNeeded) as refused:
        ROWS[what](ledger, eve)
    assert (refused.value.name, refused.value.is_revoked) == ("eve", True)
    assert ledger.models.verify() == before


def test_each_kind_of_row_with_an_author_is_tried() -> None:
    """A new kind needs a line in `ROWS`."""
    assert sum(issubclass(kind, Authored) for kind in KINDS.values()) == len(ROWS) - len({"first rules"})


@pytest.mark.parametrize(
    ("checked_by", "account"), [("token", None), ("oidc", None), ("nobody", 3), ("platform", 3)]
)
def test_a_proof_and_its_account_come_together(checked_by: Any, account: int | None) -> None:
    with pytest.raises(ValueError, match="'eve' is checked by"):
        Person(name="eve", checked_by=checked_by, account=account)


def test_proofs_stand_in_the_rows(ledger: Ledger, bob: Person, url: str) -> None:
    assert promote(ledger, bob).checked_by == "token"
    ledger.models.record_evaluation(EVALUATION)  # no person decides: a service may have no account
    assert [one.checked_by for one in Ledger(url).models.promotions("m")] == ["nobody", "token"]


@pytest.mark.parametrize("what", DECISIONS)
@pytest.mark.parametrize("forged", ["another's account", "another kind of proof", "no name", "a rule"])
def test_a_person_who_was_put_together_decides_nothing(
    ledger: Ledger, bob: Person, what: str, forged: str
) -> None:
    """A program makes its persons itself. Name, kind of proof and account belong together, and rules only demote."""
    person = {
        "another's account": replace(bob, name="root"),
        "another kind of proof": replace(bob, checked_by="oidc"),
        "no name": replace(bob, name=" "),
        "a rule": Person.by_rule("canary"),
    }[forged]
    if forged == "a rule" and what == "demote":
        DECISIONS[what](ledger, person)
        return
    before = ledger.models.verify()
    with pytest.raises(IdentityNeeded) as refused:
        DECISIONS[what](ledger, person)
    assert (refused.value.name, refused.value.is_revoked) == (person.name, False)
    assert ledger.models.verify() == before


def test_a_token_proves_its_account_until_it_is_revoked(ledger: Ledger, root: Person) -> None:
    token = ledger.accounts.add_by_token("cyd", root)
    assert token not in str(ledger.accounts.all())
    settings = Settings(author="eve", token=token)
    assert token not in repr(settings)
    person = acting_person(settings, ledger.accounts)
    assert person == with_account(ledger, "cyd")
    ledger.accounts.revoke("Cyd", root, reason="left")
    with pytest.raises(IdentityRefused, match=r"ML_ASSETS_TOKEN: .*cyd.*root: left"):
        acting_person(settings, ledger.accounts)
    with pytest.raises(IdentityNeeded) as refused:
        promote(ledger, person)
    assert (refused.value.name, refused.value.is_revoked) == ("cyd", True)
    assert ledger.accounts.add_by_token("cyd", root) != token


@pytest.mark.parametrize("token", ["", "mla_", "bob", "mla_" + "A" * 43])
def test_other_tokens_prove_nothing(ledger: Ledger, token: str) -> None:
    with pytest.raises(IdentityRefused, match="belongs to no account"):
        ledger.accounts.of_token(token)


def test_without_accounts_the_name_counts_unchecked(url: str) -> None:
    ledger = Ledger(url)
    ledger.models.record_evaluation(EVALUATION)
    assert acting_person(Settings(author="ada"), ledger.accounts) == NOBODY
    assert promote(ledger, NOBODY).checked_by == "nobody"


def test_the_first_account_is_an_administrators(url: str) -> None:
    accounts = Ledger(url).accounts
    with pytest.raises(AccountRefused, match="accounts add ada --administrator"):
        accounts.add_by_token("ada", NOBODY)
    assert accounts.all() == []
    accounts.add_by_token("ada", NOBODY, is_administrator=True)
    ada = Person.proved(accounts.in_force()[0], "token")
    accounts.add_by_oidc(
        "bob", ada, issuer="https://i.example", subject="mistyped", audience="a", is_administrator=True
    )
    with pytest.raises(AccountRefused, match=r"another administrator.* revoke ada"):
        accounts.revoke("ada", ada, reason="lost")


def test_only_administrators_change_accounts(ledger: Ledger, bob: Person) -> None:
    """Otherwise a person could give herself a second name and approve her own model."""
    for by, refused in (
        (NOBODY, IdentityNeeded),
        (Person.unchecked("root"), IdentityNeeded),
        (bob, AccountRefused),
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
    ledger: Ledger, name: str, error: type[Exception], why: str, root: Person
) -> None:
    with pytest.raises(error, match=why):
        ledger.accounts.add_by_token(name, root)


def test_two_persons_who_are_first_at_once_make_one_administrator(url: str) -> None:
    def add(name: str) -> str:
        try:
            Ledger(url).accounts.add_by_token(name, Person.unchecked(name), is_administrator=True)
        except IdentityNeeded:
            return "refused"
        return name

    with ThreadPoolExecutor(4) as both:
        answers = list(both.map(add, ("ada", "bob", "cyd", "dan")))
    assert answers.count("refused") == 3
    (first,) = Ledger(url).accounts.all()
    assert first.name in answers


@pytest.mark.parametrize("kind", ["account", "revocation", "acceptance"])
def test_changed_accounts_and_acceptances_are_named(
    ledger: Ledger, url: str, kind: str, root: Person
) -> None:
    ledger.accounts.revoke("bob", root, reason="left")
    ledger.accept(NEW.table, NEW.key, 1, root, "a strike")
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
        ("UPDATE ledger_acceptances SET author = 'eve'", r"row \d+ .*: author"),
        ("DELETE FROM ledger_acceptances", r"missing, .* row \d+ "),
        (
            "INSERT INTO ledger_acceptances SELECT \"table\", '2014-01-01', number, content_digest, author, reason, at "
            "FROM ledger_acceptances",
            "in no row",
        ),
    ],
)
def test_an_acceptance_unlike_its_row_of_the_chain_is_named(
    ledger: Ledger, url: str, change: str, named: str, root: Person
) -> None:
    """The table of acceptances decides about a partition."""
    ledger.accept(NEW.table, NEW.key, 1, root, "a strike")
    ledger.models.verify()
    with attacker(url) as connection:
        assert connection.execute(sa.text(change)).rowcount
    with pytest.raises(LedgerChanged, match=rf"verdict 1 on {NEW.table} .*{named}") as found:
        ledger.models.verify()
    assert found.value.how == "acceptance"
