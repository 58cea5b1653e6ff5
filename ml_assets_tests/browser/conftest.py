"""One browser for the tests of a module."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's own Chromium, headless. Not for the whole session: while Playwright runs, the thread has
    a running event loop, in which Dagster's automation cannot be evaluated by tests that come later."""
    assert CHROMIUM, "no Chromium here: deployment/install-system-packages.sh deployment/system-packages.txt"
    # Chromium's sandbox refuses to start for root, which is who runs tests in containers.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def screenshots(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Folder of pictures: `--screenshots`, or the test's temporary folder."""
    return request.config.getoption("--screenshots") or tmp_path / "screenshots"
