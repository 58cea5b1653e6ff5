"""Machine metrics under the ranks: processors, memory, disk and network, as an event `system` every 30 s.

Read from Linux's /proc and /sys; values that a system does not provide are left out. In a container, memory counts
against the container's limit, the network is the container's own, processors and disks are those of the machine.

Here too: metrics of this rank's GPU, from NVIDIA's driver; empty on a machine without a GPU. Not here: the choice of a
rank's GPU (process.group), measurements of the loop (meter).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (pynvml has no types)

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ml_assets.model.training.telemetry.event_log import emit
from resources.threads import working_beside

log = logging.getLogger(__name__)

SECONDS = 30.0
_SECTOR = 512
"""Bytes of a sector in /sys/block, whatever the disk's own sector size is."""
_NO_DISK = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Block devices without storage of their own: their data is counted on the disk below."""
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""Memory files of a container in cgroup versions 2 and 1: its limit, its use, and a line of the `memory.stat` beside
them. That line is the part of the use that is file cache, which the container can free."""


@contextmanager
def watching_machine(folder: Path, step: Callable[[], int], seconds: float = SECONDS) -> Generator[None]:
    """Emit machine metrics every `seconds` while the block runs, and once more when the block ends.

    One rank per machine does this. `step` returns the number of trained steps. `folder` holds the job's files. Names
    begin with `system/`, which MLflow shows on a separate page; with several machines, `system/<number>/`.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        yield
        return
    is_only_one = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    prefix = "system/" if is_only_one else f"system/{os.environ['GROUP_RANK']}/"
    machine = Machine(folder)

    def watch(over: threading.Event) -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(seconds)
            with suppress(OSError):  # the write that needs the space reports a full disk
                emit("system", step(), **{prefix + name: value for name, value in machine.read().items()})

    with working_beside(watch, "machine"):
        yield


class Machine:
    """Machine metrics since the last `read`. Tests pass other paths."""

    def __init__(self, folder: Path, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._folder, self._proc, self._sys = folder, proc, sys
        self._last = self._counters()

    def read(self) -> dict[str, float]:
        """Return the metrics since the last call; names are MLflow's where it has a name.

        `cpu_utilization_percentage` (0–100, over all processors), memory and disk in use (the file system of the
        folder), and MB per second read from and written to disks, received from and sent to other machines.
        """
        before, now = self._last, self._counters()
        self._last = now
        grown = {name: now[name] - before[name] for name in now if name in before}
        elapsed = grown.pop("seconds")
        figures = {f"{name}_mb_per_s": grown[name] / 1e6 / elapsed for name in _RATES if name in grown}
        if total := grown.get("cpu_total", 0.0):
            figures["cpu_utilization_percentage"] = 100 * grown["cpu_busy"] / total
        with suppress(OSError, KeyError):
            used, there = self._memory()
            figures["system_memory_usage_megabytes"] = used / 1e6
            figures["system_memory_usage_percentage"] = 100 * used / there
        disk = shutil.disk_usage(self._folder)
        figures["disk_usage_percentage"] = 100 * disk.used / disk.total
        figures["disk_available_megabytes"] = disk.free / 1e6
        return figures

    def _counters(self) -> dict[str, float]:
        """Read the counters, which only grow."""
        counters = {"seconds": time.monotonic()}
        for more in (self._processors, self._disks, self._network):
            with suppress(OSError):
                counters |= more()
        return counters

    def _processors(self) -> Mapping[str, float]:
        first = (self._proc / "stat").read_text().partition("\n")[0]
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
        spent = [int(word) for word in first.split()[1:9]]
        return {"cpu_busy": sum(spent) - sum(spent[3:5]), "cpu_total": sum(spent)}

    def _disks(self) -> Mapping[str, float]:
        disks = [path for path in (self._sys / "block").iterdir() if not path.name.startswith(_NO_DISK)]
        told = [(path / "stat").read_text().split() for path in disks]
        sectors = {"disk_read": (int(one[2]) for one in told), "disk_write": (int(one[6]) for one in told)}
        return {name: _SECTOR * sum(counts) for name, counts in sectors.items()} if told else {}

    def _network(self) -> Mapping[str, float]:
        lines = (self._proc / "net" / "dev").read_text().splitlines()[2:]
        named = [
            (name.strip(), counts.split()) for name, _, counts in (line.partition(":") for line in lines)
        ]
        others = [counts for name, counts in named if name != "lo"]
        return {
            "network_receive": sum(int(counts[0]) for counts in others),
            "network_transmit": sum(int(counts[8]) for counts in others),
        }

    def _memory(self) -> tuple[float, float]:
        """Return bytes in use and bytes in total."""
        lines = (line.split() for line in (self._proc / "meminfo").read_text().splitlines())
        kilobytes = {words[0].rstrip(":"): int(words[1]) for words in lines}
        there = 1024 * kilobytes["MemTotal"]
        for limit_file, use_file, cached in _LIMITS:
            limit = self._sys / "fs" / "cgroup" / limit_file
            if limit.is_file() and (text := limit.read_text().strip()).isdecimal() and int(text) < there:
                used = int((self._sys / "fs" / "cgroup" / use_file).read_text())
                stat = (limit.parent / "memory.stat").read_text().split()
                return used - int(stat[stat.index(cached) + 1]), int(text)
        return there - 1024 * kilobytes["MemAvailable"], there


_RATES = ("disk_read", "disk_write", "network_receive", "network_transmit")


def gpu_figures(device: torch.device) -> dict[str, float]:
    """Return the metrics of `device`; empty without a GPU.

    `gpu_peak_memory_gb`: the most memory that this process's tensors held at once, in GB of 10⁹ bytes. The package
    nvidia-ml-py adds two more. `gpu_utilization_pct` (0–100) is the share of recent time in which any kernel ran; it
    does not measure useful work. `gpu_memory_gb` is the memory that all processes hold now.
    """
    if device.type != "cuda":
        return {}
    figures = {"gpu_peak_memory_gb": torch.cuda.max_memory_allocated(device) / 1e9}
    if (opened := _open(device)) is None:
        return figures
    nvml, handle = opened
    try:
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        used = nvml.nvmlDeviceGetMemoryInfo(handle).used
    except nvml.NVMLError as error:  # for example a GPU that MIG divides
        log.debug("the metrics of the GPU cannot be read: %s", error)
        return figures
    return figures | {"gpu_utilization_pct": float(busy), "gpu_memory_gb": used / 1e9}


@lru_cache(maxsize=1)
def _open(device: torch.device) -> tuple[Any, Any] | None:
    try:
        import pynvml
    except ImportError:
        log.warning("gpu_utilization_pct is not measured: install nvidia-ml-py in the workers' image")
        return None
    try:
        pynvml.nvmlInit()
        # Look the GPU up by UUID: the driver numbers all GPUs, but a process may see only some.
        uuid = torch.cuda.get_device_properties(device).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except pynvml.NVMLError as error:
        log.warning("gpu_utilization_pct is not measured: %s", error)
        return None
