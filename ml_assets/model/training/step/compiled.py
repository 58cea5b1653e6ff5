"""`compile`: torch fuses the model's operations into code of its own.

Here: the request for it, and the folder of the code. Not here: the operations (precision, activation_checkpointing).
"""

# pyright: reportUnknownMemberType=false
# (the annotations of torch are partial)

import os
import shutil
from pathlib import Path

import torch
from torch import nn

from resources.job.errors import BadConfiguration

_FOLDER = "compiled"


def compile_core(core: nn.Module, device: torch.device, folder: Path) -> None:
    """Compile `core` at its first call; in place, names stay.

    The code is kept in the job's folder, where another attempt finds it. Raises `BadConfiguration` without a compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise BadConfiguration(
            f"compile needs a C++ compiler, and there is no {compiler}: install one, name it in CXX, or leave "
            "compile out"
        )
    import torch._inductor.config as inductor  # costs a second

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / _FOLDER)
    inductor.compile_threads = 1  # no processes that could outlive this one
    # A single compilation for all batch sizes: they differ by a row, and their order must not change the bits.
    core.compile(dynamic=True)
