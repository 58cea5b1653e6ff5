"""Versions of the code that a process would import: texts of the platform, the pipelines and their authors' modules,
Python, and the libraries that make rows.

Those libraries count, because another version may write the same rows as other bytes.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from platform import python_version

from resources.installed import is_installed

NO_CODE = "none"
"""Version of a package that a process cannot import."""
_PACKAGES = ("ml_assets", "resources")
_LIBRARIES = ("polars", "pyarrow", "numpy")

_first: dict[str, str] = {}
"""Name of a package or module → version of its text when this process was first asked for it."""


def code_here() -> Mapping[str, str]:
    """Return name → version of all code that a task of this process may need, each as of the first call that knew it.

    That is the platform, Python, libraries, and what this process has imported that nobody installed: packages beside
    the platform, of which pipelines import functions.
    """
    texts = {name: version_here(name) for name in (*_PACKAGES, *_imported())}
    return {
        # A program may make a module that no other process finds by its name.
        **{name: version for name, version in texts.items() if version != NO_CODE},
        "python": python_version(),
        **{name: _version_of(name) for name in _LIBRARIES},
    }


def version_here(name: str) -> str:
    """Return the version of a name of `code_here` in this process; `NO_CODE` if it cannot import it."""
    if name == "python":
        return python_version()
    if name in _LIBRARIES:
        return _version_of(name)
    if name not in _first:
        _first[name] = _text_digest(name)
    return _first[name]


def is_edited() -> bool:
    """Return True if a file of `code_here` is another than at first: a process that starts now would import it."""
    return any(_text_digest(name) not in (version, NO_CODE) for name, version in _first.items())


def _imported() -> Iterator[str]:
    """Yield the names of all packages and modules of the top level that this process imported and nobody installed.

    A module that no new process would find is left out: that of a folder that is gone, or no longer on the path.
    """
    for name, module in list(sys.modules.items()):
        if "." not in name and name not in (*_PACKAGES, "__main__", "__mp_main__"):
            file: str | None = getattr(module, "__file__", None)
            places = [file] if file else [*(getattr(module, "__path__", None) or ())]
            if not all(map(_is_installed, places)) and _is_found(name):
                yield name


def _is_found(name: str) -> bool:
    """Return True if an import finds `name`. `find_spec` of `importlib.util` would answer for what is imported."""
    return any(finder.find_spec(name, None) is not None for finder in sys.meta_path)


@cache
def _version_of(library: str) -> str:
    return metadata.version(library)


@cache
def _is_installed(place: str) -> bool:
    return is_installed(Path(place))


def _text_digest(name: str) -> str:
    """Return 16 hex digits of the SHA-256 of the names and texts of all Python files of a package, or of a module.

    Imports nothing.
    """
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # a module that a program made, without a spec
        spec = None
    if spec is None:
        return NO_CODE
    # Of a package without an `__init__.py`, folders of the same name elsewhere on the path are portions, too: the first
    # one is that from which modules come.
    folders = list(spec.submodule_search_locations or ())[:1]
    files = [path for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    place = Path(folders[0]) if folders else Path(spec.origin or "").parent
    digest = hashlib.sha256()
    found = [path for path in files or [Path(spec.origin or "")] if path.is_file()]
    if not found:
        return NO_CODE
    for path in found:
        text = path.read_bytes()
        digest.update(f"{path.relative_to(place).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()[:16]
