"""Two people in Dagster's pages behind the proxy: one is refused in words, the other launches and is the author."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ml_assets_tests.proxy.conftest import serving_dagster, serving_proxy
from ml_assets_tests.resources.ledger_writer import with_account
from resources.acting import author_of_run
from resources.ledger import Ledger

pytestmark = [pytest.mark.browser, pytest.mark.nightly, pytest.mark.timeout(600)]

PATIENCE_MILLISECONDS = 120_000


@contextmanager
def visiting(browser: Browser, address: str, token: str) -> Iterator[Page]:
    """A browser of its own that asked for an asset, and got it after the sign-in."""
    context = browser.new_context(viewport={"width": 1000, "height": 440})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    page.goto(f"{address}/assets/airports?view=overview")
    page.get_by_label("Token of your account").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/assets/airports?view=overview")
    yield page
    context.close()


def materialize(page: Page) -> None:
    page.locator("button:has-text('Materialize'):not([disabled])").first.click()


def test_two_people_have_two_roles_in_the_pages(browser: Browser, tmp_path: Path, screenshots: Path) -> None:
    screenshots.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    root, svc = with_account(ledger, "root"), with_account(ledger, "svc")
    tokens = {name: ledger.accounts.add_by_token(name, root) for name in ("vera", "finn")}
    ledger.accounts.set_role("finn", "operator", root, groups=["flights"], reason="team flights")
    with serving_dagster(tmp_path) as webserver, serving_proxy(ledger, webserver) as address:
        with visiting(browser, address, tokens["vera"]) as vera:
            materialize(vera)
            expect(vera.get_by_role("dialog")).to_contain_text(
                "needs the role operator, and vera is a viewer"
            )
            vera.screenshot(path=screenshots / "sign-in-refused.png", animations="disabled")
        with visiting(browser, address, tokens["finn"]) as finn:
            materialize(finn)
            toast = finn.get_by_text(re.compile("Launched run [0-9a-f]{8}")).first
            toast.wait_for()
            finn.get_by_text("View", exact=True).last.click()
            finn.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
            run = re.findall(r"/runs/([0-9a-f-]{36})", finn.url)[0]
            # Events arrive over the websocket. Without a daemon the run waits.
            expect(finn.get_by_text("Run queued").first).to_be_visible()
            finn.goto(f"{address}/-/")
            finn.get_by_role("button", name="Sign out").click()
            expect(finn.get_by_role("heading", name="Sign in to Dagster")).to_be_visible()
    author, where = author_of_run([run], ledger.launches, svc)
    assert (author.name, author.checked_by, where) == ("finn", "token", "pages")
