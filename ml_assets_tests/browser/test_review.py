"""The reviewer's page in a browser: sign in, read, approve, reject; of two reviewers one wins, the other is told."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect
from pydantic import SecretStr

from ml_assets.components import TrainingPipeline
from ml_assets.extras.governance.review.desk import ReviewDesk
from ml_assets.extras.governance.review.review_pages import review_app
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import releases_of
from ml_assets.model.release.reviews import review
from ml_assets_tests.components.installation import Installation, approved_readings
from ml_assets_tests.components.readings_pipeline import MODEL, WINDOW, days
from ml_assets_tests.resources.ledger_writer import with_account
from resources.acting import launched_in_terminal
from resources.ledger import Person

pytestmark = [pytest.mark.browser, pytest.mark.nightly, pytest.mark.timeout(1200)]

FIRST, SECOND = days(2, start=WINDOW)
PATIENCE_MILLISECONDS = 120_000


@pytest.fixture(scope="module")
def before_accounts(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Version 1 in production, from a time in which nobody had an account."""
    components = approved_readings()
    installation = Installation(tmp_path_factory.mktemp("home"), components).with_tables(2)
    installation.trained(FIRST)
    [rules] = [one.spec.rules for one in components if isinstance(one, TrainingPipeline)]
    releases = releases_of(installation.platform)
    review(releases, MODEL, 1, approves=True, by=Person.unchecked("eve"), reason="the first", rules=rules)
    promote(releases, MODEL, 1, by=Person.unchecked("ada"), reason="the first", rules=rules)
    return installation


@pytest.fixture(scope="module")
def tokens(before_accounts: Installation) -> dict[str, str]:
    """Name → token."""
    ledger = before_accounts.platform.ledger
    root = with_account(ledger, "root")
    return {name: ledger.accounts.add_by_token(name, root) for name in ("ada", "bob", "cyd")}


@pytest.fixture(scope="module")
def installation(before_accounts: Installation, tokens: dict[str, str]) -> Installation:
    """Version 2, trained by `ada` a day later with her token in a terminal, waits for an approval."""
    before = before_accounts.settings
    settings = before.model_copy(update={"token": SecretStr(tokens["ada"])})
    installation = Installation(before.home, before_accounts._components, settings)
    with launched_in_terminal():
        second = installation.trained(SECOND)
    assert second[f"{MODEL}/registered_model"]["next"] == (
        f"ml-assets approve {MODEL} 2 --reason '…', or on the page of reviews: ml-assets review"
    )
    return installation


@pytest.fixture(scope="module")
def address(installation: Installation) -> Iterator[str]:
    """Address of the running page."""
    specs = {one.spec.name: one.spec for one in installation._components if isinstance(one, TrainingPipeline)}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        app = review_app(ReviewDesk(installation.platform, specs), address)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield address
        server.should_exit = True
        thread.join()


@contextmanager
def reviewing(browser: Browser, address: str, token: str) -> Iterator[Page]:
    """A browser of its own, signed in with `token`, on the page of version 2."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(f"{address}/models/{MODEL}/2")
    page.get_by_label("Token of your account").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name=f"{MODEL} version 2").wait_for()
    yield page
    assert wrong == []
    context.close()


def test_a_person_reviews_in_the_browser(
    browser: Browser,
    address: str,
    tokens: dict[str, str],
    installation: Installation,
    screenshots: Path,
) -> None:
    screenshots.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with (
        reviewing(browser, address, tokens["ada"]) as ada,
        reviewing(browser, address, tokens["bob"]) as bob,
        reviewing(browser, address, tokens["cyd"]) as cyd,
    ):
        expect(ada.get_by_text("not_by in defs.yaml excludes the author, and ada ran")).to_be_visible()
        expect(ada.get_by_role("button", name="Approve")).to_have_count(0)
        ada.screenshot(path=screenshots / "review-own-model.png", full_page=True)

        bob.screenshot(path=screenshots / "review.png", full_page=True)
        bob.get_by_role("link", name="Evaluation report").click()
        expect(bob.get_by_text("beats the baseline").first).to_be_visible()
        bob.go_back()
        bob.get_by_role("link", name="Difference to version 1").click()
        expect(bob.get_by_role("heading", name="version 1 (1.0.0) to version 2")).to_be_visible()
        bob.go_back()
        bob.get_by_label("Reason").fill("holds on every machine")
        bob.get_by_role("button", name="Approve").click()
        expect(bob.get_by_role("status")).to_contain_text("The version is approved by bob (checked by token)")
        expect(bob.get_by_text(f"ml-assets promote {MODEL} 2 --reason")).to_be_visible()
        bob.screenshot(path=screenshots / "review-approved.png", full_page=True)

        cyd.get_by_label("Reason").fill("me too")
        cyd.get_by_role("button", name="Approve").click()
        expect(cyd.get_by_role("status")).to_contain_text(
            "Nothing was recorded: the version was approved before, by"
        )
        cyd.get_by_label("Reason").fill("the press stood still")
        cyd.get_by_role("button", name="Take the approval back").click()
        expect(cyd.get_by_role("status")).to_contain_text("The version is rejected by cyd")
        cyd.get_by_role("link", name="all reviews").click()
        expect(cyd.get_by_text(f"No version of {MODEL} waits for an approval.")).to_be_visible()
        cyd.screenshot(path=screenshots / "reviews.png", full_page=True)
    reviews = installation.platform.ledger.models.reviews(MODEL)
    of_second = [(one.author, one.approves, one.checked_by) for one in reviews if one.version == "2"]
    assert of_second == [
        ("bob", True, "token"),
        ("cyd", False, "token"),
    ]
