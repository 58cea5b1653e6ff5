"""Figures of this rank's GPU, from NVIDIA's driver; nothing on a machine without one.

Not here: which GPU a rank uses (group), how often this is asked (loop).
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
    """Return what is known of `device`; empty without a GPU.

    `gpu_peak_memory_gb`: most that this process's tensors held at once, in GB of 10⁹ bytes. With the package
    nvidia-ml-py also `gpu_utilization_pct` (0–100: the share of the last moments in which some kernel ran, which is not
    yet work) and `gpu_memory_gb`, what all processes hold now.
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
    except nvml.NVMLError as error:  # such as a GPU that is shared out in parts
        log.debug("no figures of the GPU: %s", error)
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
        # By its identity: the driver numbers all GPUs, a process perhaps only some.
        uuid = torch.cuda.get_device_properties(device).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except pynvml.NVMLError as error:
        log.warning("gpu_utilization_pct is not measured: %s", error)
        return None
