"""`ml-assets ui`: Dagster's pages and daemon in processes of their own, and the news of runs in the terminal.

Also `ml-assets proxy` and `ml-assets api`, which serve persons and programs with an account.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import click

from ml_assets.cli.opened import writing
from ml_assets.cli.terminal import Problem, require_free, say
from ml_assets.foundation.checkout import ROOT
from ml_assets.model.training.process.stop import end_with_parent
from resources.extras import require

if TYPE_CHECKING:
    from ml_assets.context.news import RunNews
    from resources.ledger import Ledger

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 1.0
END_SECONDS = 2.5
"""Seconds for which pages and daemon may end by themselves. A step that runs is not theirs to wait for."""
SOCKET_BYTES = 103
"""Longest path of a socket, on macOS; Linux takes four more."""
CODE_SERVER = "code-server"
LAST_LINES = 5
"""Lines of a log to show for a process that stopped."""


@dataclass(frozen=True, slots=True)
class Location:
    """Code location that a code server loads."""

    module: str
    name: str


LOCATION = Location("ml_assets.definitions", "ml_assets")


@click.command("ui")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=3000,
    show_default=True,
    help="Port of the pages on 127.0.0.1.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Show this model or table, and all tables behind it, without other pipelines. May be given several times.",
)
def ui(port: int, only: tuple[str, ...]) -> None:
    """Serve Dagster's pages on http://127.0.0.1:PORT, with schedules and sensors running, until Ctrl-C.

    Prints a line when the pages answer, when a run starts, ends or fails, and for each registered version. What pages
    and daemon say goes to log files in Dagster's folder of the home.
    """
    require("dagster_webserver")
    from ml_assets.context.launch import end_abandoned
    from ml_assets.context.news import RunNews

    require_free(LOOPBACK, port)
    project = writing().project
    for name in only:
        project.declared.require(name)
    end_abandoned(project)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    url, logs = f"http://{LOOPBACK}:{port}", project.settings.dagster_home
    # Runs write links to these pages, or to a proxy before them, into commits and records.
    environment = {"ML_ASSETS_UI_URL": os.environ.get("ML_ASSETS_UI_URL", url)}
    environment |= {"ML_ASSETS_ONLY": json.dumps(only)} if only else {}
    with pages_and_daemon(port, logs, LOCATION, os.environ | environment, stop) as processes:
        news = RunNews(project.instance, datetime.now(UTC))
        if not stop.is_set():
            say(
                f"ready: {url} (home {project.settings.home}); logs {logs}/ui-*.log; Ctrl-C stops pages and daemon"
            )
        while not stop.wait(POLL_SECONDS):
            require_running(processes, logs)
            _tell(news)


@click.command("proxy")
@click.option(
    "--webserver", required=True, metavar="URL", help="Dagster's webserver, which nobody else may reach."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="Port of the pages."
)
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen on.")
def proxy(webserver: str, port: int, host: str) -> None:
    """Serve Dagster's pages to persons with an account, each with the rights of their role, until Ctrl-C.

    A person signs in with the token of an account, or an OIDC proxy in front passes `Authorization: Bearer` with an ID
    token. `ml-assets accounts role` gives roles. The ledger records who launched a run. ML_ASSETS_UI_URL is the address
    of the pages in browsers, if it is not http://HOST:PORT: only pages of that address may write.
    """
    require("dagster_webserver")
    from ml_assets.extras.governance.proxy import dagster_proxy, documents

    settings, ledger = (platform := writing().project.platform).settings, platform.ledger
    require_server(webserver)
    _require_accounts(ledger)
    is_set = "ui_url" in settings.model_fields_set
    if host != LOOPBACK and not is_set:
        raise Problem(
            f"on {host} the pages need their address in browsers: set ML_ASSETS_UI_URL to https://…"
        )
    address = str(settings.ui_url) if is_set else f"http://{host}:{port}"
    require_free(host, port)
    documents.dagster_schema()  # seconds, which nobody should wait for at a click
    say(f"Dagster's pages on {address}, from {webserver}; your role: {address}/-/; Ctrl-C stops the proxy.")
    dagster_proxy.serve(dagster_proxy.proxy_app(ledger, webserver, address), host, port)
    _leave()


@click.command("api")
@click.option(
    "--webserver", required=True, metavar="URL", help="Dagster's webserver, which launches and stops runs."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=3002, show_default=True, help="Port of the API."
)
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen on, without TLS.")
def api(webserver: str, port: int, host: str) -> None:
    """Answer requests of programs at http://HOST:PORT/api/v1, until Ctrl-C.

    A request has the token of an account in `Authorization: Bearer`. `ml-assets accounts role` gives roles: a viewer
    reads, an operator launches and stops, an approver promotes, rejects and archives. /openapi.json describes all.
    """
    require("dagster_webserver")
    from ml_assets.extras.api import app
    from ml_assets.extras.governance.proxy import documents

    context = writing()
    require_server(webserver)
    _require_accounts(context.project.platform.ledger)
    require_free(host, port)
    documents.dagster_schema()  # seconds, which nobody should wait for at a request
    _ = context.project.defs
    say(f"API on http://{host}:{port}/api/v1, launching at {webserver}; Ctrl-C stops the API.")
    app.serve(app.api_app(context, webserver), host, port)
    _leave()


def _leave() -> NoReturn:
    """End this process. Python would wait for each thread that waits for the webserver, up to five minutes."""
    sys.stdout.flush()
    os._exit(0)


def _require_accounts(ledger: "Ledger") -> None:
    """Raise `Problem` if nobody could prove who asks."""
    if not ledger.accounts.in_force():
        raise Problem(
            "this ledger has no accounts, so nobody could sign in: first ml-assets accounts add NAME --administrator"
        )


def require_server(address: str) -> None:
    """Raise `Problem` unless `address` is that of a server, without path, password or query."""
    try:
        parts = urlsplit(address)
        is_server = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is none
        parts, is_server = urlsplit(""), False
    if not is_server or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise Problem(
            f"--webserver {address!a} is not http://HOST:PORT or https://HOST:PORT, without path or password"
        )


def _tell(news: "RunNews") -> None:
    for line in news.lines():
        say(line)


@contextmanager
def pages_and_daemon(
    port: int,
    logs: Path,
    location: Location,
    environment: Mapping[str, str],
    stop: threading.Event,
    *,
    with_runs: bool = False,
) -> Iterator[Mapping[str, subprocess.Popen[bytes]]]:
    """Start a code server, then pages and daemon; yield name → process when the pages answer or `stop` is set.

    Pages and daemon share the code server. Each would start one of its own, the daemon a new one every minute, which
    loads all definitions again. "Reload" in the pages loads changed code for both. What the processes say goes to log
    files in the folder `logs`. After the block they end; `with_runs`: runs end with them, at once. Raises `Problem` if
    a process ended before.
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def is_awaited(is_there: Callable[[], bool]) -> bool:
        while not is_there() and not stop.wait(POLL_SECONDS / 10):
            require_running(processes, logs)
        return not stop.is_set()

    # Its folder is closed to others: whoever reaches a code server can run code in it.
    with _folder_of_socket() as folder:
        socket, workspace = Path(folder, "code"), Path(folder, "workspace.yaml")
        served = {"socket": str(socket), "location_name": location.name}
        workspace.write_text(json.dumps({"load_from": [{"grpc_server": served}]}))
        code_server = [
            *(sys.executable, "-m", "dagster", "code-server", "start", "--socket", str(socket)),
            *("--module-name", location.module, "--location-name", location.name),
            *("--working-directory", str(ROOT)),
        ]
        webserver = [
            *(sys.executable, "-m", "ml_assets.dagster_host.webserver", "-w", str(workspace)),
            *("-h", LOOPBACK, "-p", str(port)),
        ]
        daemon = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", str(workspace)]
        try:
            processes[CODE_SERVER] = _started(code_server, _log(logs, CODE_SERVER), environment)
            if is_awaited(socket.exists):
                processes["webserver"] = _started(webserver, _log(logs, "webserver"), environment)
                processes["daemon"] = _started(daemon, _log(logs, "daemon"), environment)
                is_awaited(lambda: _answers(f"http://{LOOPBACK}:{port}"))
            yield processes
        finally:
            _end(processes, with_runs=with_runs)


@contextmanager
def _folder_of_socket() -> Iterator[str]:
    """Make a folder for the code server's socket. Raise `Problem` if a path in it is too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="ml-assets-ui-") as folder:
        if len(os.fsencode(Path(folder, "code"))) > SOCKET_BYTES:
            raise Problem(
                f"the folder for temporary files {tempfile.gettempdir()} has a path that is too long for a socket: set "
                "TMPDIR to a shorter one, such as /tmp"
            )
        yield folder


def _started(line: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as written:
        return subprocess.Popen(
            line,
            cwd=ROOT,
            env={**environment},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            # Its own session: the terminal's Ctrl-C reaches only this process, which ends them in order.
            start_new_session=True,
            # End the child if this process is killed. Not by SIGTERM: before exec the handler from above would take
            # it, and a SIGTERM while Dagster starts may get lost. A daemon stayed behind that way.
            preexec_fn=partial(end_with_parent, parent=os.getpid()),
        )


def _end(processes: Mapping[str, subprocess.Popen[bytes]], *, with_runs: bool) -> None:
    for process in processes.values():
        process.terminate()
    deadline = time.monotonic() + END_SECONDS
    # The code server waits for a minute for its calls. What holds the definitions is below it, and ends after its runs.
    for name, process in sorted(processes.items(), key=lambda one: one[0] == CODE_SERVER):
        try:
            process.wait(timeout=0 if name == CODE_SERVER else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        if with_runs:
            with suppress(ProcessLookupError):  # each leads the group of all that it started
                os.killpg(process.pid, signal.SIGKILL)


def _log(logs: Path, name: str) -> Path:
    return logs / f"ui-{name}.log"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=POLL_SECONDS) as answer:
            return answer.status == 200
    except OSError:
        return False


def require_running(processes: Mapping[str, subprocess.Popen[bytes]], logs: Path) -> None:
    """Raise `Problem` with the last lines of a process that ended."""
    for name, process in processes.items():
        if (code := process.poll()) is not None:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "stopped"
            log = _log(logs, name)
            last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
            raise Problem("\n  ".join((f"the {name} {how}; {log} ends with", *last)))
