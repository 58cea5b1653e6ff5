"""Locked packages of a recorded launch, installed into a virtual environment of their own.

uv installs them, as it does in `deployment/setup.sh`: from its cache or the configured index, each checked by its
SHA-256. An environment is kept in the cache of the home under the lock's SHA-256. Not here: the recorded code
(`recorded_code`).
"""

import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from ml_assets.model.steps.launches import LOCK, LaunchRecord, source
from resources.files import locked
from resources.platform import Platform

_COMPLETE = "ml-assets-complete"
"""File of an environment that is written last."""


class PackagesNotRestored(Exception):
    """The packages of a launch cannot be installed here. The message has the reason and the remedy."""


def locked_interpreter(platform: Platform, launch: LaunchRecord) -> Path:
    """Return the Python of an environment with the locked packages of `launch`, and install them if it is new.

    Raises `PackagesNotRestored` and `LaunchUnknown`.
    """
    if not launch.lock:
        raise PackagesNotRestored(
            "its launch recorded no locked requirements. Without --environment it trains with the packages here"
        )
    content = source(platform, launch.lock, LOCK)
    folder = platform.settings.cache_folder / "environments" / f"{launch.lock[:16]}-{launch.python}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not (folder / _COMPLETE).is_file():
            lock = folder.with_name(f"{folder.name}.txt")
            lock.write_bytes(content)
            _install(folder, lock, launch.python)
        (folder / _COMPLETE).touch()  # its time is that of the last use
    return folder / "bin" / "python"


def unused_packages(platform: Platform, before: datetime) -> dict[Path, int]:
    """Return folder → bytes of the environments that were last used before `before`. They can be installed again."""
    folder = platform.settings.cache_folder / "environments"
    found = [one for one in sorted(folder.glob("*")) if one.is_dir()] if folder.is_dir() else []
    return {
        one: sum(file.lstat().st_size for file in one.rglob("*") if not file.is_dir())
        for one in found
        if max((one / name).stat().st_mtime for name in (".", _COMPLETE) if (one / name).exists())
        < before.timestamp()
    }


def remove_packages(folder: Path) -> None:
    """Delete an environment. Wait for a process that installs it."""
    with locked(folder.with_name(f"{folder.name}.lock")):
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f"{folder.name}.txt").unlink(missing_ok=True)


def _install(folder: Path, lock: Path, python: str) -> None:
    here = ".".join(map(str, sys.version_info[:3]))
    _uv(
        "venv",
        "--clear",
        "--no-python-downloads",
        "--python",
        sys.executable if python == here else python,
        folder,
    )
    _uv(
        "pip",
        "sync",
        "--require-hashes",
        "--require-build-hashes",
        "--strict",
        "--python",
        folder,
        lock,
        lock=lock,
    )


def _uv(*arguments: str | Path, lock: Path | None = None) -> None:
    searched = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if (program := shutil.which("uv", path=searched)) is None:
        raise PackagesNotRestored("uv is not installed here: run `make setup`, which installs it")
    # Packages that are built from source are built with locked tools, too.
    building = (
        {}
        if lock is None
        else {"UV_BUILD_CONSTRAINT": str(lock), "UV_PREVIEW_FEATURES": "build-dependency-hashes"}
    )
    done = subprocess.run(
        [program, *arguments, "--quiet"],
        env=os.environ | building,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PackagesNotRestored(
            f"{' '.join(map(str, ('uv', *arguments)))} ended with exit status {done.returncode}: "
            f"{done.stderr.strip() or 'no message'}\nCheck that the index of packages answers and still has them"
        )
