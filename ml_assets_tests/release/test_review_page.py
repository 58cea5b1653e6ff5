"""The reviewer's page: who is signed in decides, once, about the evaluation on the page, and no other site can."""

import html
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from ml_assets.extras.governance.review.desk import ReviewDesk
from ml_assets.extras.governance.review.review_pages import review_app
from ml_assets.foundation.links import report_name
from ml_assets.model.evaluation.comparison.holdout import evaluate as measure
from ml_assets.model.evaluation.report.report import write_report
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.release.bundle_store import Bundle, BundleStore
from ml_assets.model.release.releases import Releases
from ml_assets.model.release.rules import NO_RULES, Rules
from ml_assets.model.release.rules_in_force import as_json
from ml_assets_tests.evaluation.holdout_case import make_holdout, model_facts
from ml_assets_tests.release.conftest import Evaluate
from ml_assets_tests.resources.ledger_writer import with_account
from ml_assets_tests.tables.orders_table import OrdersTable
from resources.ledger import Person
from resources.platform import Platform
from resources.settings import Settings

ADDRESS = "http://127.0.0.1:3001"
VERSION = "/models/small/2"
MEASURED = {
    "objective": "binary",
    "draws": 200,
    "gates": [{"name": "accurate", "metric": "auc", "at_least": 0.5}],
}
Visit = Callable[..., TestClient]


@pytest.fixture
def desk(
    tmp_path: Path,
    tracking_uri: str,
    orders: OrdersTable,
    store: BundleStore,
    two_versions: tuple[Bundle, Bundle],
) -> ReviewDesk:
    """A desk over the ledger of this test; `ada` ran both evaluations, `bob` starts the page."""
    platform = Platform(Settings(home=tmp_path, author="bob", tracking_uri=tracking_uri))
    parts = {"ledger": orders.ledger, "lake": orders.store, "artifacts": store.artifacts}
    platform.__dict__.update(parts)
    spec: Any = SimpleNamespace(rules=Rules.model_validate({"approval": {}}))
    return ReviewDesk(platform, {"small": spec})


@pytest.fixture
def visit(desk: ReviewDesk) -> Visit:
    """`(token="") -> browser` on the page, signed in with a token, or without one where there are no accounts."""
    app = review_app(desk, ADDRESS)

    def visit(token: str = "") -> TestClient:
        browser = TestClient(app, base_url=ADDRESS)
        if token:
            signed = browser.post("/sign-in", data={"proof": token})
            assert signed.url.path == "/", signed.text
        return browser

    return visit


@pytest.fixture
def tokens(desk: ReviewDesk, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]) -> dict[str, str]:
    """Name → token of the accounts of `root`, `ada`, `bob` and `cyd`. `ada` has proved that she ran the evaluations."""
    ledger, accounts = desk.platform.ledger, desk.platform.ledger.accounts
    first = accounts.add_by_token("root", Person.unchecked("root"), is_administrator=True)
    root = with_account(ledger, "root")
    others = {name: accounts.add_by_token(name, root) for name in ("ada", "bob", "cyd")}
    for one in two_versions:
        evaluate(one, by=with_account(ledger, "ada"))
    return {"root": first} | others


def fields(page: str) -> dict[str, str]:
    """Return the hidden fields of the form on a page."""
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))


def decide(browser: TestClient, decision: str = "approve", reason: str = "read it", **changed: str) -> str:
    """Open the page of version 2, send its form, and return the page after it."""
    form = fields(browser.get(VERSION).text) | {"decision": decision, "reason": reason} | changed
    return browser.post(f"{VERSION}/review", data=form).text


def test_without_accounts_the_page_decides_under_one_name_and_says_so(
    visit: Visit, releases: Releases
) -> None:
    browser = visit()
    first = browser.get("/").text
    assert "Nobody checks that you are bob." in first
    assert all(f'<a href="/models/small/{number}">small {number}</a>' in first for number in (1, 2))
    after = decide(browser)
    assert re.search(r"The version is approved by bob at 20\S+ \S+ UTC: read it", after)
    assert "ml-assets promote small 2 --reason" in after
    assert 'href="/models/small/2">small 2</a> <span class="i">' not in browser.get("/").text
    (review,) = releases.standings("small").of(releases.registry.version("small", 2).bundle_digest).reviews
    assert (review.author, review.checked_by) == ("bob", "nobody")


def test_a_reviewer_signs_in_with_a_token(visit: Visit, tokens: dict[str, str], desk: ReviewDesk) -> None:
    stranger = visit()
    asked = stranger.get(VERSION)
    assert asked.url.path == "/sign-in"
    assert fields(asked.text)["to"] == VERSION
    assert stranger.get("/reports/small/2013-12-31/e/report.html").url.path == "/sign-in"
    wrong = stranger.post("/sign-in", data={"proof": "mla_wrong"})
    assert (wrong.status_code, "the token belongs to no account" in wrong.text) == (403, True)
    bob = visit(tokens["bob"])
    assert "bob (checked by token)" in bob.get("/").text
    led = visit().post("/sign-in", data={"proof": tokens["bob"], "to": VERSION})
    assert led.url.path == VERSION
    assert "The version is approved by bob (checked by token)" in decide(bob)
    accounts = desk.platform.ledger.accounts
    accounts.revoke("bob", with_account(desk.platform.ledger, "root"), reason="left")
    assert bob.get("/").url.path == "/sign-in"


def test_the_page_names_rules_that_do_not_count_and_untrusted_processes(
    visit: Visit, desk: ReviewDesk, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    """Rules without an approval were accepted before the first account, and the process ran the evaluation."""
    log, accounts = desk.platform.ledger.models, desk.platform.ledger.accounts
    strict = as_json(Rules.model_validate({"approval": {}}))
    log.record_first_rules("small", strict, Person.unchecked("ada"))
    log.accept_rules(
        "small", as_json(NO_RULES), Person.unchecked("zed"), reason="simpler", allow=lambda: None
    )
    token = accounts.add_by_token("root", Person.unchecked("root"), is_administrator=True)
    evaluate(
        two_versions[1], told="nightly", by=with_account(desk.platform.ledger, "svc"), launched_in="dagster"
    )
    page = html.unescape(visit(token).get(VERSION).text)
    assert "that it was zed," in page
    assert "the account of svc ran" in page
    assert 'value="approve"' not in page


def test_a_session_does_not_survive_a_new_account_of_its_name(
    visit: Visit, tokens: dict[str, str], desk: ReviewDesk, releases: Releases
) -> None:
    """A token was stolen, so the administrator revoked the account and added it again."""
    thief, accounts = visit(tokens["bob"]), desk.platform.ledger.accounts
    form = fields(thief.get(VERSION).text) | {"decision": "approve", "reason": "mine"}
    accounts.revoke("bob", with_account(desk.platform.ledger, "root"), reason="token was stolen")
    bob = visit(accounts.add_by_token("bob", with_account(desk.platform.ledger, "root")))
    thief.post(f"{VERSION}/review", data=form)
    assert not releases.log.reviews("small")
    assert thief.get("/").url.path == "/sign-in"
    assert "is approved by bob" in decide(bob)


def test_the_author_of_the_evaluation_is_refused_with_the_rule(
    visit: Visit, tokens: dict[str, str], releases: Releases
) -> None:
    ada, bob = visit(tokens["ada"]), visit(tokens["bob"])
    page = ada.get(VERSION).text
    assert "release.approval.not_by in defs.yaml excludes" in page
    assert "<textarea" not in page
    form = {"form_token": fields(page)["form_token"], "read": fields(bob.get(VERSION).text)["read"]}
    sent = ada.post(f"{VERSION}/review", data=form | {"decision": "approve", "reason": "mine"}).text
    assert "Nothing was recorded." in sent
    assert "ada ran its evaluation" in sent
    assert not releases.log.reviews("small")


def test_of_two_reviewers_one_wins_and_the_other_is_told(visit: Visit, tokens: dict[str, str]) -> None:
    bob, cyd = visit(tokens["bob"]), visit(tokens["cyd"])
    late = fields(cyd.get(VERSION).text) | {"decision": "approve", "reason": "me too"}
    assert "is approved by bob" in decide(bob)
    told = cyd.post(f"{VERSION}/review", data=late).text
    assert "Nothing was recorded:" in told
    assert "by bob (checked by token)" in told
    assert "is rejected by cyd" in decide(cyd, "reject", "prices look wrong")
    assert "was rejected by cyd" in decide(bob, "approve", read=late["read"])
    assert "rejection of an evaluation stands" in bob.get(VERSION).text


def test_a_review_is_about_the_evaluation_on_the_page(
    visit: Visit, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    browser = visit()
    form = fields(browser.get(VERSION).text) | {"decision": "approve", "reason": "read it"}
    evaluate(two_versions[1], told="again", by=Person.unchecked("eve"))
    told = browser.post(f"{VERSION}/review", data=form).text
    assert "Nothing was recorded." in told
    assert "small 2 (1.0.1) was evaluated" in told
    assert "is approved by bob" in decide(browser)


REFUSED: list[tuple[dict[str, str], dict[str, str], int]] = [
    ({"form_token": ""}, {}, 403),
    ({"form_token": "é"}, {}, 403),
    ({}, {"origin": "http://evil.example"}, 403),
    ({}, {"origin": "null"}, 403),
    ({}, {"host": "evil.example"}, 400),
    ({"decision": "both"}, {}, 400),
    ({"reason": "x" * 70_000}, {}, 413),
]
"""Changed fields of a form, changed headers, and the status of the answer."""


def test_only_a_form_of_this_page_decides(visit: Visit, releases: Releases) -> None:
    browser = visit()
    form = fields(browser.get(VERSION).text) | {"decision": "approve", "reason": "read it"}
    for changed, headers, status in REFUSED:
        answer = browser.post(f"{VERSION}/review", data=form | changed, headers=headers)
        assert (answer.status_code, changed, headers) == (status, changed, headers)
    assert visit().post(f"{VERSION}/review", data=form).status_code == 403, "no cookie"
    assert browser.post(f"{VERSION}/review", content=b"\xff=1").status_code == 400
    assert releases.log.reviews("small") == []
    assert browser.post(f"{VERSION}/review", data=form | {"more": "%ff"}).status_code == 200
    assert len(releases.log.reviews("small")) == 1


def test_a_session_is_for_this_site_alone(visit: Visit, tokens: dict[str, str]) -> None:
    browser = visit()
    signed = browser.post("/sign-in", data={"proof": tokens["bob"]}, follow_redirects=False)
    cookie = signed.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert tokens["bob"] not in cookie
    page = browser.get(VERSION)
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert (
        browser.post("/sign-in", data={"proof": tokens["bob"]}, headers={"origin": "http://evil"}).status_code
        == 403
    )
    assert browser.post("/sign-out", data=fields(page.text)).url.path == "/sign-in"
    assert browser.get(VERSION).url.path == "/sign-in"


def test_text_of_persons_and_data_is_escaped(
    visit: Visit, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle]
) -> None:
    evaluate(two_versions[1], told="again", summary="<img src=x onerror=alert(1)>")
    told = decide(visit(), reason="<script>alert(2)</script>\"'")
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in told
    assert "&lt;img src=x onerror=alert(1)&gt;" in told
    assert "<script>" not in told
    assert "<img src=x" not in told


def test_unknown_versions_are_named(visit: Visit) -> None:
    browser = visit()
    for path, said in (
        ("/models/smal/1", "no model is named &#39;smal&#39;; there are: small"),
        ("/models/small/7", "small has no version 7; it has 1 (1.0.0)"),
        (f"{VERSION}/difference", "no version of small is in production"),
    ):
        found = browser.get(path)
        assert (found.status_code, said in found.text) == (404, True), found.text
    form = fields(browser.get(VERSION).text) | {"decision": "approve", "reason": "read it"}
    sent = browser.post("/models/small/7/review", data=form)
    assert (sent.status_code, "small has no version 7" in sent.text) == (404, True)
    for elsewhere in ("//evil.example/models/", "https://evil.example", "/models/\\evil", "/sign-out"):
        led = browser.get("/sign-in", params={"to": elsewhere}, follow_redirects=False)
        assert led.headers["location"] == "/", elsewhere


@pytest.mark.parametrize("file", ["report.html", "evaluation.json", "model_card.html"])
def test_a_reviewer_is_shown_only_what_the_ledger_knows(
    visit: Visit, desk: ReviewDesk, evaluate: Evaluate, two_versions: tuple[Bundle, Bundle], file: str
) -> None:
    """Whoever writes to the store could show another report than the one that the approval binds to."""
    case = make_holdout()
    found = measure(case.holdout, case.predictions(champion=False), EvaluationSpec.model_validate(MEASURED))
    report = Report(title="small", partition="2013-12-31", lineage={}, model=model_facts(), evaluation=found)
    row = evaluate(two_versions[1], digest=report.digest)
    store = desk.platform.artifacts
    name = report_name(row.model, row.partition, row.evaluation_digest)
    written = write_report(report, store.folder(name))
    store.push(name, last=written.json.name)
    browser = visit()
    browser.get("/")
    written.html.write_text("<p>All rules passed.</p>")
    shown = browser.get(f"/{name}/{file}")
    assert (shown.status_code, "All rules passed." in shown.text) == (200, False)
    written.json.write_text(written.json.read_text().replace("2013-12-31", "2013-12-30"))
    refused = visit().get(f"/{name}/model_card.md")
    assert refused.status_code == 404
    assert "this report is not shown: its SHA-256 is" in html.unescape(refused.text)


@pytest.mark.parametrize(
    "path",
    [
        f"/reports/{'a' * 5000}/report.html",
        "/reports/small/" + "a/" * 3000 + "report.html",
        f"/models/small/{'9' * 23}",
        f"/models/small/{'9' * 23}/difference",
    ],
)
def test_addresses_of_nothing_are_not_found(visit: Visit, path: str) -> None:
    browser = visit()
    browser.get("/")
    found = browser.get(path)
    assert found.status_code == 404
    assert "/studies" not in found.text


def test_requests_count_for_the_token_of_an_account_alone(visit: Visit, tokens: dict[str, str]) -> None:
    browser = visit(tokens["bob"])
    browser.get(VERSION)
    browser.get("/models/small/99")
    assert browser.get("/metrics").status_code == 401, "a cookie is no proof here"
    proof = {"authorization": f"Bearer {tokens['bob']}", "host": "10.0.0.7:3001"}
    said = browser.get("/metrics", headers=proof).text
    for status in ("200", "404"):
        path = "/models/{model}/{number:int}"
        assert f'requests_total{{method="GET",path="{path}",status="{status}"}} 1.0' in said
