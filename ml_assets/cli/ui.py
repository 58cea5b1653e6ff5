"""`ml-assets ui`: run webserver and daemon together on loopback, and end them together."""

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import click

from ml_assets.cli.abandoned import end_abandoned
from ml_assets.cli.project import ROOT, Project, say
from ml_assets.model.training.process.stop import end_with_parent


@click.command("ui", short_help="Serve Dagster's pages and run its daemon, on 127.0.0.1.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=3000,
    show_default=True,
    help="Port of the pages on 127.0.0.1.",
)
def command(port: int) -> None:
    """Serve Dagster's pages on http://127.0.0.1:PORT, with schedules and sensors running, until Ctrl-C."""
    project = Project.here()
    end_abandoned(project.settings, project.instance)
    bin_folder = Path(sys.executable).parent
    workspace = ["-w", str(ROOT / "workspace.yaml")]
    webserver = [sys.executable, "-m", "ml_assets.dagster_host.webserver", "-h", "127.0.0.1", "-p", str(port)]
    commands = {
        "webserver": [*webserver, *workspace],
        "daemon": [str(bin_folder / "dagster-daemon"), "run", *workspace],
    }
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    say(f"Pages on http://127.0.0.1:{port} (home {project.settings.home}); Ctrl-C stops pages and daemon.")
    # Each process gets its own session: the terminal's Ctrl-C reaches only this process, which ends them in order.
    # Runs write links to these pages into commits and records.
    environment = os.environ | {"ML_ASSETS_UI_URL": f"http://127.0.0.1:{port}"}
    processes = {
        name: subprocess.Popen(
            line,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            # End the child if this process is killed. Not by SIGTERM: before exec the handler from above would take it,
            # and a SIGTERM while Dagster starts may get lost. A daemon stayed behind that way.
            preexec_fn=partial(end_with_parent, parent=os.getpid()),
        )
        for name, line in commands.items()
    }
    try:
        while not stop.wait(0.5):
            ended = [name for name, process in processes.items() if process.poll() is not None]
            if ended:
                raise click.ClickException(f"the {ended[0]} stopped unexpectedly; its last lines are above")
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
