"""`compile`: the model's operations fused into code of its own by torch.

Here: asking for it, and where the code is kept. Not here: what is computed (precision, activation_checkpointing).
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
    """Have `core` compiled when it is first called; in place, names stay.

    The code lies in the job's folder: another attempt finds it. Raises `BadConfiguration` without a compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise BadConfiguration(
            f"compile needs a C++ compiler, and there is no {compiler}: install one, name it in CXX, or leave "
            "compile out"
        )
    import torch._inductor.config as inductor  # costs a second

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / _FOLDER)
    inductor.compile_threads = 1  # no processes that would outlive this one
    # One code for all numbers of rows: batches differ by a row, and which came first must not matter.
    core.compile(dynamic=True)
