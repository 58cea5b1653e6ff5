"""Tell files of Python's own library and of installed packages from those of somebody's project."""

import sysconfig
from pathlib import Path

_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}


def is_installed(file: Path) -> bool:
    """Return True if `file` is of the standard library, or of a package in any folder of installed ones.

    Folders count by their names: packages also lie in those that only `PYTHONPATH` names, as in a pod or a user's home.
    """
    if _INSTALLED & set(file.parts):
        return True
    return any(file.is_relative_to(one) or file.is_relative_to(one.resolve()) for one in _STANDARD)
