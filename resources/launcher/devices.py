"""Checks of the GPUs that a training needs, before a process starts. Standard library only.

Not here: the GPUs of a pod (resource_profile), the device of a rank (the worker asks torch).
"""

from pathlib import Path

from resources.job.errors import BadConfiguration
from resources.job.training_settings import TrainingSettings

_GPUS = ("nvidia[0-9]*", "dxg", "kfd")
"""Device files of NVIDIA's driver, of NVIDIA's driver under WSL, and of AMD's driver."""


def has_gpus(devices: Path = Path("/dev")) -> bool:
    """True if this machine shows a GPU."""
    return any(next(devices.glob(pattern), None) for pattern in _GPUS)


def refuse_few_gpus(gpus: int, ranks: int, nodes: int) -> None:
    """Raise `BadConfiguration` if this machine has GPUs, but fewer than the `ranks` on each of the `nodes` machines."""
    if not 0 < gpus < ranks:
        return
    has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    share = f"{ranks * nodes} / {nodes} machines = {ranks}" if nodes > 1 else str(ranks)
    raise BadConfiguration(
        f"this machine has {has} for {share} workers, and a worker on the CPU would slow down the workers on GPUs: set "
        f"training.workers to {gpus * nodes}, or training.device to cpu to use no GPU at all"
    )


def refuse_without_gpus(settings: TrainingSettings, *, has_gpus: bool, where: str) -> None:
    """Raise `BadConfiguration` if `settings` need GPUs and there are none. `where`: clause for the message."""
    if settings.precision == "fp16" and not has_gpus:
        raise BadConfiguration(
            f"precision fp16 needs a GPU for each of the {settings.workers} workers, and {where}. Use bf16, which CPUs "
            "support too, or fp32"
        )
