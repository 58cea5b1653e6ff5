"""The packages of this environment as a folder that an image is filled from, without what only a GPU would load."""

import importlib.metadata
import importlib.util
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

GPU_ONLY = ("triton*", "nvidia-cusolver*", "nvidia-nvtx*", "cuda-bindings*", "cuda-pathfinder*", "cuda-cccl*")
"""Distributions that `import torch` does without on a machine with no GPU; 1.3 GB."""
GPU_ONLY_FILES = ("*/libcudnn_*.so*", "torch/include/*", "torch/lib/*.a", "*/include/*.h")
"""Loaded late or never: parts of cuDNN, headers."""


def link(lock: Path, folder: Path, *, without: Sequence[Path] = ()) -> None:
    """Fill `folder`, on this environment's disk, with hard links to the files of what `lock` names and this
    environment has (it serves other systems, too), except for what the locks `without` name."""
    site = Path(sysconfig.get_path("purelib"))
    names = _named(lock).difference(*map(_named, without))
    here = {item.name.lower().replace("_", "-") for item in importlib.metadata.distributions()}
    for name in sorted(names & here):
        if any(fnmatch(name, pattern) for pattern in GPU_ONLY):
            continue
        for file in _files(name, site):
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                os.link(site / file, target)


def _named(lock: Path) -> set[str]:
    return {line.partition("==")[0] for line in lock.read_text().splitlines() if re.match(r"\w", line)}


def _files(name: str, site: Path) -> Iterator[Path]:
    """Yield the files of one distribution, with those its installer compiled; another Python skips these."""
    for file in importlib.metadata.files(name) or []:
        # Scripts lie outside.
        if ".." in file.parts or any(fnmatch(str(file), pattern) for pattern in GPU_ONLY_FILES):
            continue
        yield Path(file)
        if file.suffix == ".py":
            compiled = Path(importlib.util.cache_from_source(str(site / file)))
            if compiled.exists():
                yield compiled.relative_to(site)
