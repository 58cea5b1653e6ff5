"""Dagster's pages as a person uses them: open, click, type, read, take a picture.

Selectors are words on the page wherever possible, for Dagster 1.13. Nothing here waits by the clock: every
wait is for something a person would see.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

PATIENCE_SECONDS = 300.0
"""Longest wait for something on a page, ten times what a busy machine needs."""
expect.set_options(timeout=PATIENCE_SECONDS * 1000)
_ALL_HAVE_POINTS = """() => [...document.querySelectorAll('canvas')].every(chart => {
  const {data} = chart.getContext('2d').getImageData(0, 0, chart.width, chart.height);
  let coloured = 0;  // axes and grid are grey
  for (let i = 0; i < data.length; i += 4) {
    const [red, green, blue, opacity] = data.slice(i, i + 4);
    coloured += opacity > 128 && Math.max(red, green, blue) - Math.min(red, green, blue) > 80;
  }
  return coloured > 20;
})"""


@dataclass(frozen=True)
class Launch:
    """Record of what happened between the click on Materialize and the run."""

    run: str
    """First eight characters of the run's id, as the page shows it."""
    dialogs: list[str] = field(default_factory=list)
    """Text of each dialog on the way, in order."""


@dataclass(frozen=True)
class Pages:
    """The pages of the UI at `url`, in one browser tab."""

    page: Page
    url: str
    screenshots: Path

    def picture(self, name: str) -> None:
        """Leave `name`.png among the screenshots."""
        self.screenshots.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self.screenshots / f"{name}.png", animations="disabled")

    def open_asset(self, key: str, view: str = "overview", partition: str | None = None) -> None:
        """The page of one asset; `view` is a tab: overview, partitions, events, checks, lineage."""
        chosen = f"&partition={partition}" if partition else ""
        self.page.goto(f"{self.url}/assets/{key}?view={view}{chosen}")
        # The first paint knows nothing of the asset yet and shows a disabled button.
        self.page.locator("button:has-text('Materialize'):not([disabled])").first.wait_for()

    def open_run(self, run_id: str) -> None:
        """The page of one run."""
        self.page.goto(f"{self.url}/runs/{run_id}")
        self.page.get_by_text("TIMESTAMP", exact=False).first.wait_for()

    def leave(self) -> None:
        """Look at nothing: a live page keeps a core busy that a run could have."""
        self.page.goto("about:blank")

    def open_lineage(self) -> None:
        """The graph of all assets."""
        self.page.goto(f"{self.url}/asset-groups")
        self.page.get_by_role("button", name=re.compile("Materialize")).first.wait_for()

    def open_group(self, location: str, group: str) -> None:
        """The graph of one group's assets, whose button materializes all of them."""
        self.page.goto(f"{self.url}/locations/{location}/asset-groups/{group}/lineage")
        self.page.locator("button:has-text('Materialize all'):not([disabled])").wait_for()

    def materialize(self, partition: str, picture: str) -> Launch:
        """Click Materialize on an asset's page, confirm every dialog, type the partition, launch."""
        self.page.locator("button:has-text('Materialize'):not([disabled])").first.click()
        dialogs: list[str] = []
        while True:
            dialog = self.page.get_by_role("dialog").filter(visible=True).last
            confirm = dialog.get_by_role("button", name="Confirm")
            typed = dialog.get_by_placeholder("ex: ")
            confirm.or_(typed).first.wait_for()
            if typed.is_visible():
                break
            heading = dialog.inner_text().splitlines()[0]
            dialogs.append(dialog.inner_text())
            self.picture(f"{picture}-{len(dialogs)}")
            confirm.click()
            expect(self.page.get_by_role("dialog").filter(has_text=heading, visible=True)).to_have_count(0)
        typed.fill(partition)
        typed.press("Enter")
        launch = dialog.get_by_role("button", name="Launch 1 run")
        expect(launch).to_be_enabled()
        dialogs.append(dialog.inner_text())
        self.picture(f"{picture}-{len(dialogs)}")
        launch.click()
        toast = self.page.get_by_text(re.compile("Launched run [0-9a-f]{8}")).first
        toast.wait_for()
        return Launch(run=toast.inner_text().split()[2][:8], dialogs=dialogs)

    def open_report(self, picture: str, folder: str = "reports", says: str = "") -> None:
        """Follow the asset page's link to a report, which opens in a tab of its own, whole and with its pictures.

        `folder` begins its address; the report holds the text `says`.
        """
        with self.page.context.expect_page(timeout=PATIENCE_SECONDS * 1000) as opened:
            self.page.locator(f"a[href*='/{folder}/']").first.click()
        report = opened.value
        expect(report.locator("h1")).to_be_visible()
        expect(report.locator("body")).to_contain_text(says)
        drawn = report.locator("figure img").evaluate_all("all => all.map(one => one.naturalWidth > 0)")
        assert drawn
        assert all(drawn), drawn
        self.screenshots.mkdir(parents=True, exist_ok=True)
        report.screenshot(path=self.screenshots / f"{picture}.png", full_page=True)
        report.close()

    def show_markdown(self) -> None:
        """Open the first markdown of the page's metadata: Dagster shows it in a dialog."""
        self.page.get_by_text("[Show Markdown]").first.click()
        self.page.get_by_role("dialog").filter(visible=True).get_by_text("Close").wait_for()

    def show_plots(self, name: str, count: int) -> None:
        """Open the plots of the page's metadata: `count` charts, one of `name`, each with points."""
        self.page.get_by_role("button", name="Plots").click()
        expect(self.page.get_by_text(name, exact=True).first).to_be_visible()
        expect(self.page.locator("canvas")).to_have_count(count)
        self.page.wait_for_function(_ALL_HAVE_POINTS)

    def terminate(self, picture: str) -> None:
        """Click Terminate on a run's page and confirm; return when the request was sent."""
        self.page.get_by_role("button", name="Terminate").first.click()
        dialog = self.page.get_by_role("dialog").filter(visible=True).last
        confirm = dialog.get_by_role("button", name=re.compile("Terminate|Force"))
        confirm.wait_for()
        self.picture(picture)
        confirm.click()

    def shows(self, text: str | re.Pattern[str]) -> None:
        """Wait until the page shows `text`."""
        expect(self.page.get_by_text(text).filter(visible=True).first).to_be_visible()


@contextmanager
def open_pages(browser: Browser, url: str, screenshots: Path) -> Iterator[Pages]:
    """Open a tab that is tall enough for a whole asset page."""
    page = browser.new_page(viewport={"width": 1440, "height": 1300})
    page.set_default_timeout(PATIENCE_SECONDS * 1000)
    yield Pages(page, url, screenshots)
    page.close()
