"""Meeting of a script's ranks on several machines: a rank whose machine is gone is not waited for."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from ml_assets.model.training.process.group import PeerFailed
from ml_assets.model.training.script import meeting
from ml_assets.model.training.script.meeting import Meeting, Silence, StoreLine, is_listening, open_meeting
from resources.job.job import ExitCode

OTHER_MACHINE = """
import sys
from ml_assets.model.training.script.meeting import Meeting, find_meeting, open_meeting
with open_meeting(("127.0.0.1", int(sys.argv[1]), 1)):
    find_meeting()
    rank = Meeting.join(1, 2).round()
    rank.tell("step", 7)
    sys.stdin.read()
"""


@pytest.fixture
def store() -> TCPStore:
    """Store of the first machine, which has rank 0."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def other(store: TCPStore, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A second machine, which has rank 1 and ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER_MACHINE, str(store.port)],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TMPDIR": str(tmp_path),
            "LOCAL_WORLD_SIZE": "1",
        },
        stdin=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("dies", [True, False])
def test_a_rank_whose_machine_ends_while_ranks_meet_is_lost(
    store: TCPStore, other: subprocess.Popen[bytes], dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine that dies says nothing any more; the one that ends says so, and is not waited for at all."""
    together = Meeting(StoreLine(store), 0, 2, ranks_of_a_machine=1).round()
    assert together.gather("step", 7) == [7, 7]
    if dies:
        monkeypatch.setattr(meeting, "_SILENT_LOOKS", 4)
        other.send_signal(signal.SIGKILL)
    else:
        monkeypatch.setattr(meeting, "_SILENT_LOOKS", sys.maxsize)
        other.communicate()
    with pytest.raises(PeerFailed) as lost:
        together.gather("place", True)
    assert lost.value.code == ExitCode.PEER_LOST


PATIENCE_SECONDS = 120.0

FIRST_MACHINE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def test_a_store_that_freezes_loses_its_machine_and_holds_up_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without power does not even close its connections: the calls to its store never return."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(meeting, "_WAITS", 4)
    monkeypatch.setattr(meeting, "_LAST_BEAT_SECONDS", 2)
    program = [sys.executable, "-c", FIRST_MACHINE]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        port = int(first.stdout.readline())
        with open_meeting(("127.0.0.1", port, 1)):
            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
            together = Meeting(StoreLine(store), 1, 2, ranks_of_a_machine=1).round()
            together.tell("step", 7)
            first.send_signal(signal.SIGSTOP)
            with pytest.raises(PeerFailed) as lost:
                together.gather("place", True)
            together.fail(lost.value)
            together.leave()
        first.send_signal(signal.SIGCONT)
        for thread in threading.enumerate():  # none may return from the store while this process ends
            if thread.name in ("store", "beats of this machine"):
                thread.join()
        first.kill()
    assert lost.value.code == ExitCode.PEER_LOST


def test_no_end_waits_for_a_store_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch would try to connect for ten seconds, which the next attempt of the training would wait."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(meeting, "_BEAT_SECONDS", 0.05)
    has_looked = threading.Event()

    def looked(host: str, port: int) -> bool:
        first.wait()  # its last moment is not under test: the address of a process may outlive its connections
        found = is_listening(host, port)
        has_looked.set()
        return found

    monkeypatch.setattr(meeting, "is_listening", looked)
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_MACHINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        with open_meeting(("127.0.0.1", int(first.stdout.readline()), 1)):
            first.kill()
            assert has_looked.wait(PATIENCE_SECONDS)
    assert "timed out" not in capfd.readouterr().err


def test_a_machine_is_lost_after_so_many_looks_without_a_beat() -> None:
    silence = Silence(3)
    for beats in (b"1", b"1", b"1", b"2", b"2", b"2"):
        assert not silence.is_too_long(beats)
    assert silence.is_too_long(b"2")


def test_ranks_of_a_single_machine_are_waited_for_without_beats() -> None:
    silence = Silence(3)
    assert not any(silence.is_too_long(b"") for _ in range(10))
