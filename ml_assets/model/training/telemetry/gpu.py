"""Metrics of this rank's GPU, from NVIDIA's driver; empty on a machine without a GPU.

Not here: the choice of a rank's GPU (process.group), the interval of the readings (training.loop).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (pynvml has no types)

import logging
from functools import lru_cache
from typing import Any

import torch

log = logging.getLogger(__name__)


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
