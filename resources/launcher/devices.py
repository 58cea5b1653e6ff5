"""Whether there are the devices a training asks for, before a process is started for it. Standard library only.

Not here: how many a pod gets (profile), which one a rank uses (the worker asks torch).
"""

from pathlib import Path

from resources.launcher.errors import BadConfiguration
from resources.launcher.training_settings import TrainingSettings

_GPUS = ("nvidia[0-9]*", "dxg", "kfd")
"""Device files of NVIDIA's driver, of the same through Windows, of AMD's."""


def has_gpus(devices: Path = Path("/dev")) -> bool:
    """Whether this machine shows any."""
    return any(next(devices.glob(pattern), None) for pattern in _GPUS)


def refuse_without_gpus(settings: TrainingSettings, *, has_gpus: bool, where: str) -> None:
    """Raise `BadConfiguration` where `settings` need GPUs and `where`, in words, there are none."""
    if settings.precision == "fp16" and not has_gpus:
        raise BadConfiguration(
            f"precision fp16 needs a GPU for each of the {settings.workers} workers, and {where}. Use bf16, which CPUs "
            "compute in as well, or fp32"
        )
