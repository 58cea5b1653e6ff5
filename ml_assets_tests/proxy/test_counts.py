"""Counts of the proxy's requests, as a Prometheus reads them: few labels, no names, for an account alone."""

import sqlite3
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from ml_assets.extras.governance.counted_requests import RecentAccounts
from ml_assets.extras.governance.proxy.dagster_proxy import proxy_app
from ml_assets_tests.proxy.conftest import GuardedDagster
from resources.ledger import IdentityRefused, Ledger, LedgerError, Person

METRICS = "/-/metrics"
RELOAD = 'mutation { reloadRepositoryLocation(repositoryLocationName: "two_groups.py") { __typename } }'


def counts(guarded: GuardedDagster) -> dict[tuple[str, str, str], float]:
    """Return (method, path, status) → requests."""
    answer = httpx.get(f"{guarded.address}{METRICS}", headers=guarded.proof("viewer"), timeout=60)
    assert answer.status_code == 200, answer.text
    return {
        (one.labels["method"], one.labels["path"], one.labels["status"]): one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples
        if one.name == "ml_assets_proxy_requests_total"
    }


def test_each_request_counts_by_its_route_and_status(guarded: GuardedDagster) -> None:
    before = counts(guarded)
    for path in ("/runs/one", "/runs/two"):
        assert (
            httpx.get(guarded.address + path, headers=guarded.proof("viewer"), timeout=60).status_code == 200
        )
    httpx.get(f"{guarded.address}/runs/three", timeout=60)
    httpx.get(f"{guarded.address}/-/health", headers={"host": "elsewhere.example"}, timeout=60)
    guarded.post("operator", "{ version }")
    guarded.post("viewer", RELOAD)
    httpx.request("PROPFIND", guarded.address, timeout=60)
    after = counts(guarded)
    grown = {labels: after[labels] - before.get(labels, 0) for labels in after}
    assert {labels: number for labels, number in grown.items() if number} == {
        ("GET", "/{path:path}", "200"): 2,
        ("GET", "/{path:path}", "401"): 1,
        ("GET", "/-/health", "400"): 1,
        ("POST", "/graphql", "200"): 1,
        ("POST", "/graphql", "403"): 1,
        ("other", "/{path:path}", "405"): 1,
        ("GET", METRICS, "200"): 1,
    }


@pytest.mark.parametrize("proof", ["", "Bearer wrong", "Basic abc"])
def test_counts_are_for_an_account_alone(guarded: GuardedDagster, proof: str) -> None:
    answer = httpx.get(f"{guarded.address}{METRICS}", headers={"authorization": proof}, timeout=60)
    assert (answer.status_code, "ml_assets_proxy" in answer.text) == (401, False)


def test_counts_are_given_at_the_address_of_a_pod(guarded: GuardedDagster) -> None:
    """A Prometheus cannot send the host by which browsers reach the proxy."""
    headers = guarded.proof("viewer") | {"host": "10.0.0.7:3000"}
    assert httpx.get(f"{guarded.address}{METRICS}", headers=headers, timeout=60).status_code == 200
    assert httpx.get(f"{guarded.address}/runs", headers=headers, timeout=60).status_code == 400


def test_a_ledger_that_is_away_is_not_named_to_whoever_asks() -> None:
    """The counts are given at any host, and nobody has proved anything yet."""
    away = Ledger("postgresql://team:secret@127.0.0.1:1/ledger", patience_seconds=0.1)
    asking = TestClient(proxy_app(away, "http://127.0.0.1:1", "http://dagster.example"))
    answer = asking.get(METRICS, headers={"authorization": "Bearer wrong"})
    assert answer.status_code == 503
    assert "127.0.0.1" not in answer.text


PAGE = "http://dagster.example"


def test_counts_of_failures_are_given_while_the_ledger_is_away(tmp_path: Path) -> None:
    """Otherwise no Prometheus would learn of them. A sign-in that the ledger cannot check is a failure: 503."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db", patience_seconds=0.1)
    token = ledger.accounts.add_by_token("root", Person.unchecked("root"), is_administrator=True)
    asking, proof = (
        TestClient(proxy_app(ledger, "http://127.0.0.1:1", PAGE), PAGE),
        {"authorization": f"Bearer {token}"},
    )
    assert asking.get(METRICS, headers=proof).status_code == 200
    break_ledger(tmp_path)
    signed_in = asking.post("/-/sign-in", headers={"origin": PAGE}, data={"proof": token})
    assert signed_in.status_code == 503
    assert asking.get("/-/", headers=proof).status_code == 503
    assert asking.get("/runs", headers=proof).status_code == 503
    counted = asking.get(METRICS, headers=proof).text
    for path in ("/-/sign-in", "/-/", "/{path:path}"):
        assert f'path="{path}",status="503"' in counted


def test_accounts_are_read_once_for_all_who_ask_for_counts(tmp_path: Path) -> None:
    """Neither a wrong token nor a ledger that is away makes another read; a new account is known after the next."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db", patience_seconds=0.1)
    root = Person.unchecked("root")
    first = ledger.accounts.add_by_token("first", root, is_administrator=True)
    kept, fresh = RecentAccounts(ledger.accounts, 3600), RecentAccounts(ledger.accounts, 0)
    acting = Person.proved(kept.of_token(first), "token")
    second = ledger.accounts.add_by_token("second", acting)
    with pytest.raises(IdentityRefused):
        kept.of_token(second)
    assert fresh.of_token(second).name == "second"
    ledger.accounts.revoke("second", acting, reason="test")
    with pytest.raises(IdentityRefused):
        fresh.of_token(second)
    break_ledger(tmp_path)
    assert fresh.of_token(first).name == "first"
    with pytest.raises(LedgerError):
        RecentAccounts(ledger.accounts).all()


def break_ledger(folder: Path) -> None:
    """Take away what the ledger reads, as a broken server would."""
    with sqlite3.connect(folder / "ledger.db") as connection:
        connection.execute("ALTER TABLE ledger_decisions RENAME TO away")
