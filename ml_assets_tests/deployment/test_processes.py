"""Server processes are known by id and start time, end with all they started, and say why they did not get ready."""

import http.server
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from deployment.testbed import processes
from deployment.testbed.processes import Process, ServerFailed

DEAF = "trap '' TERM INT; echo started; while :; do sleep 0.1; done"
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a line of bash; what it leaves is ended."""
    started: list[Process] = []

    def bash(line: str) -> Process:
        started.append(processes.start("server", ["bash", "-c", line], log=tmp_path / "log"))
        return started[-1]

    yield bash
    for process in started:
        processes.kill(process)


def _soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_process_is_found_again_by_what_was_written_down(start: Start) -> None:
    process = start("sleep 100")
    assert processes.alive(Process(**asdict(process)))
    assert process == processes.process_of("server", process.pid, process.log)


def test_somebody_else_with_the_same_id_is_not_it_and_is_left_alone(start: Start) -> None:
    process = start("sleep 100")
    predecessor = replace(process, started=process.started - 1)
    assert not processes.alive(predecessor)
    processes.stop(predecessor, seconds=0.1)
    assert processes.alive(process)


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    unreaped = subprocess.Popen(["true"])
    try:
        assert _soon(lambda: processes.process_of("server", unreaped.pid) is None)
        assert Path(f"/proc/{unreaped.pid}").exists()
    finally:
        unreaped.wait()


def test_stopping_asks_first(start: Start) -> None:
    process = start("trap 'echo asked; exit 0' TERM; echo started; while :; do sleep 0.1; done")
    assert _soon(lambda: "started" in Path(process.log).read_text())
    processes.stop(process)
    assert "asked" in Path(process.log).read_text()
    assert not processes.alive(process)


@pytest.mark.parametrize(
    "end", [lambda p: processes.stop(p, seconds=0.3), processes.kill], ids=["stop", "kill"]
)
def test_the_whole_family_ends_also_what_left_the_session(
    start: Start, end: Callable[[Process], None]
) -> None:
    process = start(f'setsid bash -c "{DEAF}" & bash -c "{DEAF}" & {DEAF}')
    assert _soon(lambda: Path(process.log).read_text().count("started") == 3)
    family = processes.family(process)
    assert len(family) >= 3
    end(process)
    assert not any(processes.alive(member) for member in family)


def test_children_of_a_dead_leader_are_found_by_their_session(start: Start) -> None:
    process = start("sleep 100 & sleep 100")
    assert _soon(lambda: len(processes.family(process)) == 3)
    os.kill(process.pid, signal.SIGKILL)
    assert _soon(lambda: not processes.alive(process))
    left = processes.family(process)
    assert len(left) == 2
    processes.kill(process)
    assert not any(processes.alive(member) for member in left)


def test_a_frozen_process_can_be_stopped(start: Start) -> None:
    process = start("sleep 100")
    processes.freeze(process)
    assert _soon(lambda: ") T " in Path(f"/proc/{process.pid}/stat").read_text())
    assert processes.alive(process)
    began = time.monotonic()
    patience = 60
    processes.stop(process, seconds=patience)
    assert time.monotonic() - began < patience
    assert not processes.alive(process)


def test_a_program_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="server cannot be started as /no/program: No such file"):
        processes.start("server", ["/no/program"], log=tmp_path / "log")


def test_who_dies_before_it_is_ready_is_quoted(start: Start) -> None:
    process = start("echo the disk is full; exit 3")
    with pytest.raises(
        ServerFailed, match=r"(?s)server ended before it was ready \(not yet\).*the disk is full"
    ):
        processes.wait_ready(process, lambda: "not yet", 30)


def test_who_never_gets_ready_is_quoted_in_time(start: Start) -> None:
    process = start("echo still reading; sleep 100")
    assert _soon(lambda: "still" in Path(process.log).read_text())
    with pytest.raises(ServerFailed, match=r"(?s)is not ready after 0 s: not yet.*still reading"):
        processes.wait_ready(process, lambda: "not yet", 0.2)


def test_a_free_port_is_none_that_outgoing_connections_are_given() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = processes.free_port()
    assert processes.LOWEST_PORT <= port < first
    assert not processes.is_listening(port)


def test_health_is_what_the_server_answers() -> None:
    port = processes.free_port()
    assert "refused" in processes.why_http_not(f"http://127.0.0.1:{port}/")
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert processes.is_listening(port)
        assert processes.why_http_not(f"http://127.0.0.1:{port}/") == ""
        assert "404" in processes.why_http_not(f"http://127.0.0.1:{port}/absent")
        server.shutdown()
