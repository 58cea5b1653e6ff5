"""Versions of the code that a process would import: texts of the platform and the pipelines, Python, polars.

polars counts, because another version may write the same rows as other bytes.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from platform import python_version

_PACKAGES = ("ml_assets", "resources")
_LIBRARIES = ("polars", "pyarrow")


def code_now() -> Mapping[str, str]:
    """Return name → version of all code that a task needs. Reads the files, and imports nothing."""
    return {
        **{name: _text_digest(name) for name in _PACKAGES},
        "python": python_version(),
        **{name: metadata.version(name) for name in _LIBRARIES},
    }


@cache
def code_here() -> Mapping[str, str]:
    """Return `code_now` at the first call of this process."""
    return code_now()


def _text_digest(package: str) -> str:
    """Return 16 hex digits of the SHA-256 of the names and texts of all Python files of a package."""
    spec = find_spec(package)
    assert spec is not None  # this module is part of one, and imported by the other
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()[:16]
