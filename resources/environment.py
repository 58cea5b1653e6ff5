"""Environment of a run, as facts for its record: code, interpreter, packages, machine.

Here: reading the facts. Not here: recording them (`tracker`).
"""

import hashlib
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

LOCKS = (Path("deployment/requirements/dev.txt"), Path("deployment/images/platform.txt"))
"""Locked requirements, as paths from the project's root. The first is that of a source tree. An image of the platform
has only the second."""
_DIRTY = "-dirty"
_NVIDIA = Path("/proc/driver/nvidia")
"""Folder of NVIDIA's driver with facts on the GPUs. It exists inside containers, too."""
_PACKAGES = ("torch", "polars", "numpy", "mlflow", "dagster")


def environment_facts(project: Path, commit: str | None) -> dict[str, str]:
    """Return name → value, for tags of a run. `project` is the root of the source tree; `commit` is `Settings.commit`.

    Without a git work tree and `commit`, the facts on the commit are left out. Without a lock file, its hash is.
    """
    facts = {
        "python": platform.python_version(),
        "machine": machine(),
    }
    for package in _PACKAGES:
        facts[package] = metadata.version(package)
    lock = next((project / lock for lock in LOCKS if (project / lock).is_file()), None)
    if lock is not None:
        facts["lock_sha256"] = hashlib.sha256(lock.read_bytes()).hexdigest()
    if (head := _git(project, "rev-parse", "HEAD")) is not None:
        commit = head + (_DIRTY if _git(project, "status", "--porcelain") else "")
    if commit:
        facts["mlflow.source.git.commit"] = commit.removesuffix(_DIRTY)
        facts["git_dirty"] = "true" if commit.endswith(_DIRTY) else "false"
    return facts


def machine() -> str:
    """Return this machine in a few words, such as `Linux x86_64, 8 cores`."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def device_facts(driver: Path = _NVIDIA) -> dict[str, str]:
    """Return the model and number of this machine's GPUs and their driver; empty if there is no GPU.

    Each worker calls it on its machine. It does not import torch.
    """
    told = [path.read_text() for path in sorted(driver.glob("gpus/*/information"))]
    models = [match[1].strip() for text in told if (match := re.search(r"^Model:(.*)$", text, re.MULTILINE))]
    if not models:
        return {}
    facts = {"gpu": ", ".join(dict.fromkeys(models)), "gpus": str(len(models))}
    version = driver / "version"
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", version.read_text()) if version.is_file() else None
    return facts | ({"gpu_driver": found[1]} if found else {})


def _git(project: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=project, capture_output=True, text=True, timeout=10, check=True
        )
    except (FileNotFoundError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
