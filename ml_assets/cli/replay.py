"""Work of `ml-assets demo --replay`: past days of the flights, one after another, under Dagster's pages and daemon.

Here: the home, the processes, and the lines. Not here: who does what in a replay (`extras.replay`).
"""

import os
import re
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from ml_assets.cli.terminal import Problem, progress, require_free, say
from ml_assets.cli.ui import POLL_SECONDS, Location, pages_and_daemon, require_running
from ml_assets.context.home import make_home, point_dagster, read_settings
from resources.files import open_lock
from resources.settings import Settings
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.extras.replay.happened import Event, Happened
    from ml_assets.extras.replay.source_days import Replay

_DAYS = re.compile(r"([0-9]+)d")
_LOCATION = Location("ml_assets.extras.replay.definitions", "flights")
_PORT, _PORTS = 3000, 100
"""First port to try, and how many."""
_KEPT_SETTINGS = ("ML_ASSETS_AUTHOR", "ML_ASSETS_TRACEBACK")
"""Settings of the person that count in a replay. Servers and accounts of the person's own home do not."""


def days_of(typed: str) -> int:
    """Return the days of `14d`. Raises `Problem` with the remedy."""
    from ml_assets.extras.replay.source_days import MOST_DAYS

    found = _DAYS.fullmatch(typed)
    days = int(found[1]) if found else 0
    if 1 <= days <= MOST_DAYS:
        return days
    meant = f"{typed}d" if typed.isdecimal() and 1 <= int(typed) <= MOST_DAYS else "14d"
    raise Problem(f"--replay takes 1d to {MOST_DAYS}d, not '{typed}': write --replay {meant}")


def replay(typed: str, port: int | None, *, stays: bool) -> None:
    """Replay past days until all are handled, or until Ctrl-C. With `stays`, serve the pages on after the last day."""
    days = days_of(typed)
    port = _free_port(port)
    from ml_assets.extras.replay.happened import Happened
    from ml_assets.extras.replay.source_days import Replay
    from ml_assets.extras.replay.world import World, build_history, project_of

    parameters, url, began = Replay(days=days), f"http://127.0.0.1:{port}", time.monotonic()
    with _home_of_its_own(parameters) as settings:
        say(f"home {settings.home}, of this replay alone: the next one replaces it")
        with progress().status("loading the definitions") as status:
            project = project_of(settings)
            build_history(project, parameters, lambda text: status.update(f"history: {text}"))
        say(f"history: the days before {parameters.first}, in {time.monotonic() - began:.0f} s")
        logs = settings.dagster_home
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        environment = os.environ | {"ML_ASSETS_UI_URL": url}
        with pages_and_daemon(port, logs, _LOCATION, environment, stop, with_runs=True) as processes:
            if not stop.is_set():
                _say_ready(url, logs, parameters)
            happened = Happened(project.platform, project.instance, url)
            world = World(
                project=project, replay=parameters, happened=happened, tell=_say_event, act=_say_line
            )
            while not stop.wait(POLL_SECONDS) and not world.is_over:
                require_running(processes, logs)
                world.turn()
            if stop.is_set():
                say("stopped: pages, daemon and runs end")
                return
            _say_end(happened, parameters, time.monotonic() - began)
            if stays:
                say(f"the pages stay until Ctrl-C: {url}")
            while stays and not stop.wait(POLL_SECONDS):
                require_running(processes, logs)


@contextmanager
def _home_of_its_own(parameters: "Replay") -> Iterator[Settings]:
    """Make the home of a replay beside the person's home, empty, and hold its lock.

    During the block, the environment of this process and of its children names that home, and no server of the person.
    """
    home = read_settings().home
    home = home.with_name(f"{home.name}-replay")
    before = dict(os.environ)
    foreign = [one for one in before if one.startswith("ML_ASSETS_") and one not in _KEPT_SETTINGS]
    for name in (*foreign, "DAGSTER_HOME"):
        os.environ.pop(name, None)
    os.environ["ML_ASSETS_HOME"] = str(home)
    try:
        settings = read_settings()
        with _emptied(settings, parameters), warnings.catch_warnings():
            point_dagster(settings)
            for category in (dg.BetaWarning, dg.PreviewWarning):  # for developers, as in every command
                warnings.simplefilter("ignore", category)
            yield settings
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _emptied(settings: Settings, parameters: "Replay") -> Iterator[None]:
    """Hold the lock of a replay's home, without the files of the replay before."""
    home = settings.home
    own = home / "replay"
    if home.is_dir() and not own.is_dir() and any(home.iterdir()):
        raise Problem(f"{home} holds other files than those of a replay: move it away, or set ML_ASSETS_HOME")
    make_home(settings)
    own.mkdir(exist_ok=True)
    lock = open_lock(own / "lock", waits=False)
    if lock is None:
        raise Problem(
            f"another replay runs in {home}: end it with Ctrl-C, or set ML_ASSETS_HOME to another folder for this one"
        )
    try:
        for one in (*home.iterdir(), own / "source"):
            if one == own:
                continue
            if one.is_dir():
                shutil.rmtree(one)
            else:
                one.unlink(missing_ok=True)
        make_home(settings)
        parameters.store(home)
        yield
    finally:
        os.close(lock)


def _free_port(asked: int | None) -> int:
    """Return the port that a person asked for, or a free one. Raises `Problem` if it is used."""
    if asked is not None:
        require_free("127.0.0.1", asked)
        return asked
    for port in range(_PORT, _PORT + _PORTS):
        try:
            require_free("127.0.0.1", port)
        except Problem:
            continue
        return port
    raise Problem(
        f"ports {_PORT} to {_PORT + _PORTS - 1} of 127.0.0.1 are used: name another one with --port"
    )


def _say_ready(url: str, logs: Path, parameters: "Replay") -> None:
    from ml_assets.extras.replay.pipeline import FLIGHTS, MODEL
    from ml_assets.extras.replay.source_days import damages

    say(f"ready: {url}; logs {logs}/ui-*.log; Ctrl-C ends the replay")
    say(f"  lineage              {url}/asset-groups")
    say(f"  sensors and schedule {url}/automation")
    say(f"  runs                 {url}/runs")
    say(f"  a table              {url}/assets/{FLIGHTS}")
    say(f"  the model            {url}/assets/{MODEL}/registered_model")
    damaged = counted(len(damages(parameters)), "day")
    say(
        f"Real flights of {parameters.first} to {parameters.last} follow, day by day. The source damages {damaged} on "
        "purpose, and says so."
    )


def _say_event(event: "Event") -> None:
    said = f": {event.said}" if event.said else ""
    _say_line(event.kind, f"{event.about}{said}")
    if event.page:
        say(f"{'':26}{event.page}")


def _say_line(what: str, text: str) -> None:
    say(f"{datetime.now(UTC).astimezone():%H:%M:%S}  {what:15} {text}")


def _say_end(happened: "Happened", parameters: "Replay", seconds: float) -> None:
    say(f"the end: {counted(parameters.days, 'day')} in {seconds / 60:.1f} minutes")
    for kind, number in sorted(happened.counts.items()):
        say(f"  {kind:15} {number}")
    say("To look around at the end, add --stay. Your own data: README.md, 'Add a pipeline in ten minutes'")
