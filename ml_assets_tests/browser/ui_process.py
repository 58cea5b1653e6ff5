"""A running UI for one test: `ml-assets ui` on a free loopback port, with a home of its own, ended for sure.

Starting, waiting for readiness and ending belong here; what is asked of it lives in `graphql.py`, what is
clicked in `dagster_pages.py`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployment.testbed.processes import free_port
from ml_assets_tests.browser.graphql import Dagster, NotAnswering

READY_SECONDS = 600
END_SECONDS = 60


@contextmanager
def running_ui(home: Path, module: str | None = None) -> Iterator[Dagster]:
    """`ml-assets ui` with everything under `home`; yields its GraphQL once the definitions are loaded and
    the daemons beat. Output goes to `home/ui.log`, whose end is part of the error if it does not come up.

    With `module`, Dagster's own command serves the definitions of that module instead of the project's.
    """
    home.mkdir(parents=True, exist_ok=True)
    log = home / "ui.log"
    port = free_port()
    own = ["ml-assets", "ui", "--port", str(port)]
    program, *arguments = own if module is None else ["dagster", "dev", "-m", module, "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [Path(sys.executable).with_name(program), *arguments],
            env=os.environ | {"ML_ASSETS_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        dagster = Dagster(f"http://127.0.0.1:{port}")
        _wait_until_ready(dagster, process, log)
        yield dagster
    finally:
        _end(process)


def _wait_until_ready(dagster: Dagster, process: subprocess.Popen[bytes], log: Path) -> None:
    """Poll until the location is loaded and every required daemon is healthy."""
    deadline = time.monotonic() + READY_SECONDS
    why = "nothing was asked yet"
    while time.monotonic() < deadline and process.poll() is None:
        try:
            why = dagster.why_not_ready()
        except NotAnswering as error:
            why = str(error)
        if not why:
            return
        time.sleep(0.5)
    logs = [log, *sorted(log.parent.glob("dagster/ui-*.log"))]
    ends = [f"{one} ends:\n" + "\n".join(one.read_text(errors="replace").splitlines()[-40:]) for one in logs]
    raise AssertionError(
        f"ml-assets ui is not ready ({why}); exit status {process.poll()}. " + "\n".join(ends)
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask politely as Ctrl-C does, then end whatever is left of the session we started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
