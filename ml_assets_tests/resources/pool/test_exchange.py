"""Ways of files to and from workers: whole or missing, for all, and gone after the range."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from resources.artifacts import FolderArtifacts
from resources.platform import Platform
from resources.pool.exchange import IN_STORE, Exchange, FileNotHandedOver, folder_exchange, store_exchange
from resources.settings import Settings

ROOT = Path(__file__).parents[3]
Opened = Callable[[], AbstractContextManager[Exchange]]


@pytest.fixture(params=["folder", "store"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Open an exchange: the same promises on one machine and on several."""
    if request.param == "folder":
        return lambda: folder_exchange(tmp_path / "pool")
    return lambda: store_exchange(FolderArtifacts(tmp_path / "store"), tmp_path / "cache")


def _files(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.is_file()]


def _send(exchange: Exchange, name: str, text: str) -> None:
    with exchange.send(name) as path:
        path.write_text(text)


def _received(exchange: Exchange, *names: str) -> list[str]:
    with exchange.receive(names) as paths:
        return [path.read_text() for path in paths]


def test_a_file_arrives_in_both_directions(opened: Opened, tmp_path: Path) -> None:
    """A task has a pickled copy."""
    with opened() as exchange:
        task: Exchange = pickle.loads(pickle.dumps(exchange))
        _send(exchange, "bucket", "rows")
        assert _received(task, "bucket") == ["rows"]
        _send(task, "2013-01-01-0", "one")
        _send(task, "2013-01-02-0", "two")
        assert _received(exchange, "2013-01-02-0", "2013-01-01-0") == ["two", "one"]
    assert not _files(tmp_path)


def test_a_task_that_runs_twice_replaces_its_file(opened: Opened) -> None:
    with opened() as exchange:
        _send(exchange, "a", "the first attempt")
        _send(exchange, "a", "the second")
        assert _received(exchange, "a") == ["the second"]


def test_a_file_that_broke_off_is_not_there(opened: Opened) -> None:
    with opened() as exchange:
        writing = exchange.send("a")
        writing.__enter__().write_text("ha")
        writing.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        with pytest.raises(FileNotHandedOver):
            _received(exchange, "a")


def test_ranges_do_not_see_each_others_files(opened: Opened) -> None:
    with opened() as first, opened() as second:
        _send(first, "a", "one")
        with pytest.raises(FileNotHandedOver):
            _received(second, "a")
        _send(second, "a", "two")
        assert _received(first, "a") == ["one"]


def test_removed_files_are_gone_before_the_range_ends(opened: Opened, tmp_path: Path) -> None:
    with opened() as exchange:
        before = _files(tmp_path)
        _send(exchange, "a", "one")
        _send(exchange, "b", "two")
        exchange.remove([])
        exchange.remove(["a", "never sent"])
        assert _received(exchange, "b") == ["two"]
        exchange.remove(["b"])
        assert _files(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({}, "home/cache/pool"),
        ({"pool": "ray"}, "home/cache/pool"),
        ({"pool": "ray", "ray_address": "127.0.0.1:6379"}, "home/cache/pool"),
        ({"pool": "ray", "ray_address": "ray://localhost:10001"}, "home/cache/pool"),
        ({"pool": "ray", "ray_address": "ray://ray-head:10001"}, "store/pool"),
        ({"pool": "ray", "ray_address": "10.0.0.7:6379"}, "store/pool"),
        ({"pool": "processes", "ray_address": "10.0.0.7:6379"}, "home/cache/pool"),
    ],
)
def test_the_settings_decide_where_files_go(tmp_path: Path, changes: dict[str, str], place: str) -> None:
    """To the artifacts only if a worker may be on another machine."""
    own = {"home": tmp_path / "home", "artifacts_url": f"file://{tmp_path}/store"}
    with Platform(Settings.model_validate(own | changes)).exchange() as exchange:
        _send(exchange, "a", "one")
        (sent,) = (path for path in _files(tmp_path) if path.name == "a")
        assert sent.is_relative_to(tmp_path / place)


_KILLED = """
import os, signal, sys
from pathlib import Path
from resources.artifacts import FolderArtifacts
from resources.pool.exchange import folder_exchange, store_exchange

place = Path(sys.argv[1])
opened = {
    "folder": lambda: folder_exchange(place / "pool"),
    "store": lambda: store_exchange(FolderArtifacts(place / "store"), place / "cache"),
}[sys.argv[2]]
with opened() as exchange:
    with exchange.send("a") as path:
        path.write_text("one")
    with exchange.receive(["a"]), exchange.send("b") as path:
        path.write_text("ha")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_files_of_a_killed_range_are_deleted_by_a_later_one(kind: str, tmp_path: Path) -> None:
    """Wait in the storage until the newest of them is a week old: nobody there knows who lives."""
    script = [sys.executable, "-c", _KILLED, tmp_path, kind]
    done = subprocess.run(script, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert _files(tmp_path)
    artifacts = FolderArtifacts(tmp_path / "store")
    with folder_exchange(tmp_path / "pool"), store_exchange(artifacts, tmp_path / "cache") as exchange:
        _send(exchange, "of the living", "one")
        assert _received(exchange, "of the living") == ["one"]
        left = [path for path in _files(tmp_path) if path.name == "a"]
        assert len(left) == (kind == "store")
    old = time.time() - 8 * 86_400
    for path in left:
        os.utime(path, (old, old))
    with store_exchange(artifacts, tmp_path / "cache"):
        assert not _files(tmp_path)
    assert not list(artifacts.folder(IN_STORE).iterdir())
