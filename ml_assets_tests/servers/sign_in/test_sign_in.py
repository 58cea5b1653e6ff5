"""Sign-in at an OIDC issuer, in front of Dagster's pages: the form, the session, the role behind it, and its end."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from playwright.sync_api import Browser
from websockets.sync.client import connect

from ml_assets_tests.proxy.test_roles import launch
from ml_assets_tests.proxy.test_ways_around import SUBSCRIPTION
from ml_assets_tests.servers.sign_in.sign_in_pages import (
    CLIENT,
    PASSWORD,
    PROGRAM,
    SUBJECTS,
    SignInPages,
    chart_options,
    signing_in,
)

pytestmark = pytest.mark.timeout(600)

PATIENCE_MILLISECONDS = 120_000
REPORT = """mutation { reportRunlessAssetEvents(eventParams:
    {eventType: ASSET_OBSERVATION, assetKey: {path: ["airports"]}}) { __typename } }"""
FORGED = {
    "x-forwarded-user": "root",
    "x-forwarded-email": "root@example.com",
    "x-forwarded-preferred-username": "root",
    "x-auth-request-user": "root",
    "x-forwarded-access-token": "root",
}
"""Headers by which some proxies name a person."""


def asked(browser: httpx.Client, query: str, variables: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send GraphQL as Dagster's pages do; return its answer."""
    answer = browser.post(
        "/graphql", json={"query": query, "variables": variables or {}}, headers={"accept": "*/*"}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def role_in(browser: httpx.Client) -> str:
    """Return name and role that the pages show of whoever signed in."""
    page = browser.get("/-/")
    [role] = re.findall(r"Role: <b>(\w+)</b>", page.text)
    [name] = re.findall(r"<h1>(\w+)", page.text)
    return f"{name}: {role}"


def test_a_viewer_reads_and_is_refused_a_launch(pages: SignInPages) -> None:
    with pages.signed_in("eve") as eve:
        assert "/_next/" in eve.get("/runs").text
        assert role_in(eve) == "eve: viewer"
        assert asked(eve, "{ version }")["data"]["version"]
        refused = asked(eve, *launch(["departures"]))["data"]["launchRun"]
        assert "needs the role operator, and eve is a viewer" in refused["message"]


def test_the_run_of_an_operator_has_the_launcher_and_live_logs(pages: SignInPages) -> None:
    with pages.signed_in("bob") as bob:
        run = asked(bob, *launch(["departures"]))["data"]["launchRun"]["run"]["runId"]
        row = pages.ledger.launches.of(run)
        assert row is not None
        assert (row.by.name, row.by.checked_by) == ("bob", "oidc")
        other = asked(bob, *launch(["timetable"]))["data"]["launchRun"]
        assert "timetable is of the group trains" in other["message"]
        cookies = "; ".join(f"{one.name}={one.value}" for one in bob.cookies.jar if one.path == "/")
    sent = {"cookie": cookies, "origin": pages.address}
    address = pages.address.replace("http", "ws") + "/graphql"
    with connect(address, additional_headers=sent, subprotocols=["graphql-ws"], proxy=None) as opened:  # pyright: ignore[reportArgumentType]
        opened.send('{"type": "connection_init", "payload": {}}')
        assert json.loads(opened.recv(30)) == {"type": "connection_ack"}
        started = {"type": "start", "id": "7", "payload": {"query": SUBSCRIPTION.replace("RUN", run)}}
        opened.send(json.dumps(started))
        assert json.loads(opened.recv(60))["type"] == "data"


def test_an_approver_reports_an_asset_and_an_operator_does_not(pages: SignInPages) -> None:
    with pages.signed_in("ada") as ada, pages.signed_in("bob") as bob:
        assert asked(ada, REPORT)["data"]["reportRunlessAssetEvents"]["__typename"].endswith("Success")
        refused = asked(bob, REPORT)["data"]["reportRunlessAssetEvents"]
        assert "needs the role approver, and bob is an operator" in refused["message"]


def test_a_person_without_account_learns_the_command_that_adds_one(pages: SignInPages) -> None:
    """The issuer proves a person, and only the ledger gives a role: nobody gets in by a group of the issuer."""
    with pages.browser() as browser:
        page = pages.sign_in(browser, "kim")
        assert page.status_code == 401
        assert SUBJECTS["kim"] in page.text
        assert "ml-assets accounts add NAME --oidc ISSUER SUBJECT AUDIENCE" in page.text
        token = pages.ledger.accounts.add_by_token("second", pages.root, is_administrator=True)
        subprocess.run(
            [PROGRAM, "accounts", "add", "kim", "--oidc", pages.issuer, SUBJECTS["kim"], CLIENT],
            env={"ML_ASSETS_HOME": str(pages.home), "ML_ASSETS_TOKEN": token, "PATH": "/usr/bin:/bin"},
            check=True,
            timeout=120,
        )
        assert role_in(browser) == "kim: viewer"
        pages.ledger.accounts.revoke("kim", pages.root, reason="left")
        assert browser.post("/graphql", json={"query": REPORT}).status_code == 401


def test_a_wrong_password_does_not_sign_in(pages: SignInPages) -> None:
    with pages.browser() as browser:
        again = pages.sign_in(browser, "bob", "wrong")
        assert "login/username" in str(again.url)
        assert asked_without_session(browser) == 401


def asked_without_session(browser: httpx.Client) -> int:
    """Return the status of a request of Dagster's pages in a browser without a session."""
    return browser.post(
        "/graphql", json={"query": "{ version }"}, headers={"accept": "*/*"}, follow_redirects=False
    ).status_code


def test_headers_of_a_client_that_name_a_person_are_dropped(pages: SignInPages) -> None:
    administrator = pages.ledger.accounts.add_by_token("third", pages.root, is_administrator=True)
    forged = {**FORGED, "authorization": f"Bearer {administrator}"}
    with pages.signed_in("eve") as eve:
        eve.headers.update(forged)
        assert role_in(eve) == "eve: viewer"
        refused = asked(eve, *launch(["departures"]))["data"]["launchRun"]
        assert "eve is a viewer" in refused["message"]
    with pages.browser(forged) as nobody:
        assert asked_without_session(nobody) == 401
        assert "login/username" in str(nobody.get("/runs").url)


def test_a_forged_host_does_not_lead_the_sign_in_away(pages: SignInPages) -> None:
    forged = {"x-forwarded-host": "thief.example", "x-forwarded-proto": "https"}
    with pages.browser(forged) as browser:
        begun = browser.get("/runs", follow_redirects=False)
        assert (
            f"redirect_uri={pages.address.replace(':', '%3A').replace('/', '%2F')}%2F"
            in begun.headers["location"]
        )
        away = browser.get("/oauth2/sign_out?rd=https://thief.example/", follow_redirects=False)
        assert away.headers["location"] == "/"


def test_another_site_cannot_use_a_session(pages: SignInPages) -> None:
    with pages.signed_in("bob") as bob:
        [session] = [one for one in bob.cookies.jar if one.name == "_oauth2_proxy"]
        assert "--cookie-secure" not in chart_options(), "its default is true"
        assert session.has_nonstandard_attr("HttpOnly")
        bob.headers["origin"] = "https://thief.example"
        query, variables = launch(["departures"])
        answer = bob.post("/graphql", json={"query": query, "variables": variables})
        assert "a page of another site sent this" in answer.text


def test_after_the_sign_out_the_issuer_asks_again(pages: SignInPages) -> None:
    with pages.signed_in("eve") as eve:
        assert "/oauth2/sign_out" in eve.get("/-/").text
        eve.get("/oauth2/sign_out", follow_redirects=False)
        assert asked_without_session(eve) == 401
        assert "login/username" in str(eve.get("/runs").url)


def test_a_session_that_is_over_leads_to_the_issuer(tmp_path_factory: pytest.TempPathFactory) -> None:
    ended = {"--cookie-expire": "4s", "--cookie-refresh": "0"}
    with signing_in(tmp_path_factory.mktemp("over"), ended) as pages:
        account_of(pages, "eve")
        with pages.signed_in("eve") as eve:
            assert asked(eve, "{ version }")["data"]
            time.sleep(5)
            assert asked_without_session(eve) == 401
            assert "login/username" in str(eve.get("/runs").url)
            assert pages.sign_in(eve, "eve").url == f"{pages.address}/runs"


def test_a_refresh_token_prolongs_the_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    often = {"--cookie-refresh": "2s", "--set-authorization-header": "true"}
    with signing_in(tmp_path_factory.mktemp("prolonged"), often, "openid email offline_access") as pages:
        account_of(pages, "eve")
        with pages.signed_in("eve") as eve:
            first = issued_at(eve)
            time.sleep(4)
            assert asked(eve, "{ version }")["data"]
            assert issued_at(eve) > first


def account_of(pages: SignInPages, name: str) -> None:
    """Add a person of the issuer."""
    pages.ledger.accounts.add_by_oidc(
        name, pages.root, issuer=pages.issuer, subject=SUBJECTS[name], audience=CLIENT
    )


def issued_at(browser: httpx.Client) -> int:
    """Return the time at which the issuer made the ID token of a session: oauth2-proxy shows it on request."""
    proof = browser.get("/oauth2/auth").headers["authorization"].partition(" ")[2]
    return jwt.decode(proof, options={"verify_signature": False})["iat"]


@pytest.mark.nightly
def test_a_person_signs_in_with_a_browser(pages: SignInPages, browser: Browser, screenshots: Path) -> None:
    """The form of the issuer leads to the asked page; live events come through; the sign-out leads to the form."""
    screenshots.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(viewport={"width": 1000, "height": 440})
    person = context.new_page()
    person.set_default_timeout(PATIENCE_MILLISECONDS)
    person.goto(f"{pages.address}/assets/airports?view=overview")
    person.get_by_label("Username").fill("bob")
    person.get_by_label("Password").fill(PASSWORD)
    person.get_by_role("button", name="Login").click()
    person.wait_for_url("**/assets/airports?view=overview")
    person.locator("button:has-text('Materialize'):not([disabled])").first.click()
    person.get_by_text(re.compile("Launched run [0-9a-f]{8}")).first.wait_for()
    person.screenshot(path=screenshots / "sign-in-launched.png", animations="disabled")
    person.get_by_text("View", exact=True).last.click()
    person.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    person.get_by_text("Run queued").first.wait_for()
    person.goto(f"{pages.address}/-/")
    person.get_by_role("link", name="Sign out").click()
    person.get_by_label("Username").wait_for()
    context.close()
