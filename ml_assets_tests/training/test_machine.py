"""Figures of the machine: read as Linux tells them, of this very machine, and told while a training runs."""

import threading
from pathlib import Path

import pytest

from ml_assets.model.training.telemetry import event_log
from ml_assets.model.training.telemetry.event_log import keep_events
from ml_assets.model.training.telemetry.machine import Machine, watching_machine
from resources.job.events import read_events

_DISK = "100 0 {read} 0 50 0 {written} 0 0 0 0\n"


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def _busy(root: Path, jiffies: int, sectors: int, megabytes: int) -> None:
    """A machine that did so much since it was switched on."""
    network = "".join(
        f"{name}: {count} {' '.join('0' * 7)} {2 * count} {' '.join('0' * 7)}\n"
        for name, count in (("  lo", 10**12), ("eth0", megabytes * 10**6), ("eth1", megabytes * 10**6))
    )
    _write(
        root,
        {
            "proc/stat": f"cpu  {jiffies} 0 {jiffies} {6 * jiffies} {2 * jiffies} 0 0 0 99 0\ncpu0 1 1 1 1\n",
            "proc/meminfo": "MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 6000000 kB\n",
            "proc/net/dev": f"Inter-| Receive\n face |bytes\n{network}",
            "sys/block/sda/stat": _DISK.format(read=sectors, written=3 * sectors),
            "sys/block/sdb/stat": _DISK.format(read=sectors, written=0),
            "sys/block/dm-0/stat": _DISK.format(read=10**9, written=10**9),
        },
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    _busy(tmp_path, jiffies=1000, sectors=0, megabytes=0)
    return Machine(tmp_path, tmp_path / "proc", tmp_path / "sys")


def test_shares_and_rates_are_of_the_time_since_the_last_look(tmp_path: Path, machine: Machine) -> None:
    _busy(tmp_path, jiffies=1100, sectors=1000, megabytes=5)
    figures = machine.read()
    assert figures["cpu_utilization_percentage"] == pytest.approx(20)  # idle and waiting for a disk are not
    rate = figures["disk_read_mb_per_s"]
    assert rate > 0
    # Of one of two disks, three times as much.
    assert figures["disk_write_mb_per_s"] == pytest.approx(1.5 * rate)
    assert figures["network_receive_mb_per_s"] == pytest.approx(10 / 1.024 * rate)
    assert figures["network_transmit_mb_per_s"] == pytest.approx(20 / 1.024 * rate)
    assert figures["system_memory_usage_megabytes"] == pytest.approx(2048)
    assert figures["system_memory_usage_percentage"] == 25
    later = machine.read()
    assert later["disk_read_mb_per_s"] == 0
    assert "cpu_utilization_percentage" not in later  # no time has passed


@pytest.mark.parametrize(
    ("folder", "limit", "use", "cached"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_in_a_container_memory_is_that_of_its_limit_without_cached_files(
    tmp_path: Path, machine: Machine, folder: str, limit: str, use: str, cached: str
) -> None:
    files = {
        limit: f"{2 * 10**9}\n",
        use: f"{15 * 10**8}\n",
        "memory.stat": f"anon 7\n{cached} {5 * 10**8}\n",
    }
    _write(tmp_path / folder, files)
    figures = machine.read()
    assert figures["system_memory_usage_megabytes"] == 1000
    assert figures["system_memory_usage_percentage"] == 50
    for none in ("max\n", f"{2**63 - 4096}\n"):
        _write(tmp_path / folder, {limit: none})
        assert machine.read()["system_memory_usage_percentage"] == 25


def test_what_a_system_does_not_tell_is_left_out(tmp_path: Path) -> None:
    figures = Machine(tmp_path, tmp_path / "proc", tmp_path / "sys").read()
    assert figures.keys() == {"disk_usage_percentage", "disk_available_megabytes"}


def test_this_machine_tells_of_itself(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    figures = machine.read()
    assert 0 < figures["system_memory_usage_percentage"] < 100
    assert 0 < figures["disk_usage_percentage"] <= 100
    assert figures["disk_available_megabytes"] > 0


@pytest.mark.parametrize(("nodes", "prefix"), [("1", "system/"), ("3", "system/2/")])
def test_one_rank_of_each_machine_tells_at_intervals_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, prefix: str
) -> None:
    monkeypatch.setattr(event_log, "_file", None)
    keep_events(tmp_path)
    steps = iter(range(100))
    twice = threading.Event()

    def step() -> int:
        now = next(steps)
        if now == 1:
            twice.set()
        return now

    monkeypatch.setenv("GROUP_WORLD_SIZE", nodes)
    monkeypatch.setenv("GROUP_RANK", "2" if nodes == "3" else "0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with watching_machine(tmp_path, step, seconds=0.01):
        pass
    monkeypatch.setenv("LOCAL_RANK", "0")
    with watching_machine(tmp_path, step, seconds=0.01):
        assert twice.wait(10)
    told = read_events(tmp_path)
    assert [event.step for event in told] == list(range(len(told)))
    assert len(told) >= 3
    assert {event.kind for event in told} == {"system"}
    assert {name.removeprefix(prefix) for event in told for name in event.values} >= {
        "system_memory_usage_percentage",
        "disk_available_megabytes",
    }
