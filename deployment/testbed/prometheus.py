"""Prometheus from its Debian package, unpacked and not installed: the package would start a service."""

import subprocess
from pathlib import Path

from deployment.testbed.build import kept

_PACKAGE = "prometheus"
_SHOW = ("apt-cache", "show", "--no-all-versions", _PACKAGE)


def prometheus_folder() -> Path:
    """Return the folder with `prometheus` and `promtool`; download the package first if the cache lacks it.

    Raises `CalledProcessError` if apt cannot download it.
    """
    try:
        about = _said(*_SHOW)
    except subprocess.CalledProcessError:  # images of machines often lack apt's lists
        _said("apt-get", "update")
        about = _said(*_SHOW)
    version = about.partition("\nVersion: ")[2].split("\n")[0]
    return kept(_PACKAGE, f"{_PACKAGE}-{version.replace('/', '_')}", _unpack) / "usr" / "bin"


def _unpack(scratch: Path, folder: Path) -> None:
    scratch.chmod(0o755)  # apt downloads as a user of its own
    _said("apt-get", "download", _PACKAGE, cwd=scratch)
    (package,) = scratch.glob("*.deb")
    _said("dpkg-deb", "--extract", str(package), str(folder))


def _said(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, cwd=cwd).stdout
