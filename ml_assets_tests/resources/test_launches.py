"""Roles of accounts and launches of persons, as rows of the chain."""

import uuid
from pathlib import Path

import pytest

from ml_assets_tests.resources.ledger_writer import with_account
from resources.acting import author_of_run, launched_in_terminal
from resources.ledger import AccountRefused, IdentityNeeded, Ledger, Person, Role, Standing


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path}/ledger.db")


def test_a_run_belongs_to_whoever_launched_it_and_no_tag_changes_that(ledger: Ledger) -> None:
    """A run with a row of its own is never a part of what its tags name."""
    ada, bob, svc = (with_account(ledger, name) for name in ("ada", "bob", "svc"))
    own, other, backfill = (str(uuid.uuid4()) for _ in range(3))
    ledger.launches.record([own], ada, "launchRun")
    ledger.launches.record([backfill], bob, "launchPartitionBackfill")
    launches = ledger.launches
    assert author_of_run([own, backfill], launches, svc) == (ada, "pages")
    assert author_of_run([other, backfill], launches, svc) == (bob, "pages")
    assert author_of_run([other], launches, svc) == (svc, "dagster")
    with launched_in_terminal():
        assert author_of_run([own], launches, svc) == (svc, "terminal")
    ledger.launches.record([own], bob, "launchRun")
    assert launches.launcher([own]) == ada
    assert launches.launcher([own[:-1]]) is launches.launcher(['"']) is launches.launcher(["%"]) is None
    assert ledger.models.verify().place > 0


def test_who_stops_a_run_did_not_launch_it(ledger: Ledger) -> None:
    ada, bob = with_account(ledger, "ada"), with_account(ledger, "bob")
    ledger.launches.record_stop("run", ada)
    ledger.launches.record_stop("run", bob)
    assert ledger.launches.launcher(["run"]) is None
    stop = ledger.launches.stop_of("run")
    assert stop is not None
    assert (stop.stopped, stop.by) == ("run", ada)
    assert ledger.launches.stop_of("ru") is ledger.launches.stop_of("%") is None
    assert ledger.models.verify().place > 0


def test_the_launch_of_a_revoked_account_counts_for_nobody(ledger: Ledger) -> None:
    root, ada = with_account(ledger, "root"), with_account(ledger, "ada")
    ledger.launches.record(["run"], ada, "launchRun")
    ledger.accounts.revoke("ada", root, reason="left")
    assert ledger.launches.launcher(["run"]) is None
    with_account(ledger, "ada")  # another account of the same name
    assert ledger.launches.launcher(["run"]) is None
    with pytest.raises(IdentityNeeded):
        ledger.launches.record(["again"], ada, "launchRun")


def test_a_role_is_of_one_account_until_it_gets_another(ledger: Ledger) -> None:
    root, ada = with_account(ledger, "root"), with_account(ledger, "ada")
    accounts = ledger.accounts

    def standing(of: Person) -> Standing | None:
        return accounts.standings().get(of.account or 0)

    assert (standing(root), standing(ada)) == (Standing("admin"), Standing("viewer"))
    accounts.set_role("ada", "operator", root, groups=["b", "a", "a"], reason="team")
    assert standing(ada) == Standing("operator", ("a", "b"))
    accounts.set_role("ada", "approver", root, reason="leads")
    assert standing(ada) == Standing("approver")
    accounts.revoke("ada", root, reason="left")
    again = with_account(ledger, "ada")
    assert (standing(ada), standing(again)) == (None, Standing("viewer"))


@pytest.mark.parametrize(
    ("name", "role", "groups", "reason", "why"),
    [
        ("ada", "operator", [], " ", "needs a reason"),
        ("ada", "viewer", ["a"], "x", "leave out --group"),
        ("ada", "admin", [], "x", "ml-assets accounts add ada --administrator"),
        ("root", "viewer", [], "x", "root is an administrator"),
        ("eve", "operator", [], "x", "no account in force is named 'eve'"),
    ],
)
def test_a_role_that_cannot_be_is_refused(
    ledger: Ledger, name: str, role: Role, groups: list[str], reason: str, why: str
) -> None:
    root, _ = with_account(ledger, "root"), with_account(ledger, "ada")
    with pytest.raises(AccountRefused, match=why):
        ledger.accounts.set_role(name, role, root, groups=groups, reason=reason)


def test_only_administrators_give_roles(ledger: Ledger) -> None:
    ada = with_account(ledger, "ada")
    with pytest.raises(AccountRefused, match="ada is not an administrator"):
        ledger.accounts.set_role("ada", "operator", ada, reason="mine")
    with pytest.raises(IdentityNeeded):
        ledger.accounts.set_role("ada", "operator", Person.unchecked("root"), reason="mine")
