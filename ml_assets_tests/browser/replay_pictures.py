"""A replay as a person watches it: the command in a terminal, and each address that it prints opened in a browser.

`python -m ml_assets_tests.browser.replay_pictures 14d FOLDER` writes the pictures of the page about the replay.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from deployment.testbed.processes import free_port

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_EVENT = re.compile(r"\d\d:\d\d:\d\d  (.{15}) (.*)")
_ADDRESS = re.compile(r"\s+(http://127\.0\.0\.1:\d+/\S+)$")
_SIZE: ViewportSize = {"width": 1280, "height": 800}
_DRAWN_SECONDS = 60
_STAYS = "the pages stay until Ctrl-C"
_AT_THE_END = {
    "runs": "runs",
    "automation": "automation",
    "lineage": "asset-groups",
    "production": "assets/flight_delay_nightly/production",
}
"""Name of a picture → page of Dagster that shows the whole replay."""
END_SECONDS = 60
"""Longest wait for the end of a command that was stopped."""


@dataclass
class Watched:
    """Lines that a replay printed, and what was seen."""

    lines: list[str] = field(default_factory=list[str])
    kinds: list[str] = field(default_factory=list[str])
    """Kind of each event, in their order."""
    opened: dict[str, str] = field(default_factory=dict[str, str])
    """Kind of an event → text of the page at the address of its first one."""
    status: int | None = None
    """Exit status."""
    errors: str = ""


@contextmanager
def replaying(days: str, home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command with its output as a pipe, and errors in a file beside `home`; end it after the block."""
    with Path(f"{home}.errors").open("w") as errors:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("ml-assets"), "demo", "--replay", days, *arguments],
            env=os.environ | {"ML_ASSETS_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(END_SECONDS)


def watch(browser: Browser, days: str, home: Path, pictures: Path, *arguments: str) -> Watched:
    """Run a replay to its end; open the first address of each kind of event, and leave a picture of its page.

    With `--stay` among the arguments, look around at the end, and then stop it.
    """
    seen = Watched()
    page = browser.new_page(viewport=_SIZE)
    pictures.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with replaying(days, home, "--port", str(port), *arguments) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen.lines.append(line.rstrip("\n"))
            print(line, end="", flush=True)
            if line.startswith(_STAYS):
                for name, path in _AT_THE_END.items():
                    address = f"http://127.0.0.1:{port}/{path}"
                    seen.opened[name] = _picture(page, address, pictures / f"replay-{name}.png")
                process.send_signal(signal.SIGINT)
            elif event := _EVENT.match(line):
                seen.kinds.append(event[1].strip())
            elif (address := _ADDRESS.match(line)) and seen.kinds and seen.kinds[-1] not in seen.opened:
                kind = seen.kinds[-1]
                seen.opened[kind] = _picture(
                    page, address[1], pictures / f"replay-{kind.replace(' ', '-')}.png"
                )
        seen.status = process.wait()
    seen.errors = Path(f"{home}.errors").read_text()
    page.close()
    return seen


def _picture(page: Page, address: str, file: Path) -> str:
    """Open a page, leave a picture of it, and return its text."""
    answer = page.goto(address, wait_until="domcontentloaded", timeout=_DRAWN_SECONDS * 1000)
    assert answer is not None
    assert answer.ok, f"{address} answered {answer.status}"
    page.locator("h1, table, [role='tab'], a[href^='/runs']").first.wait_for(timeout=_DRAWN_SECONDS * 1000)
    page.wait_for_timeout(3000 if "/reports/" not in address else 500)
    page.screenshot(path=file, animations="disabled")
    text = page.locator("body").inner_text()
    page.goto("about:blank")
    return text


def main(days: str, folder: str) -> None:
    """Watch a replay in a temporary home, and write its pictures."""
    with (
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory(prefix="ml-assets-", ignore_cleanup_errors=True) as home,
    ):
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        seen = watch(browser, days, Path(home) / "home", Path(folder), "--stay")
        browser.close()
    print(seen.status, seen.errors)


if __name__ == "__main__":
    main(*sys.argv[1:])
