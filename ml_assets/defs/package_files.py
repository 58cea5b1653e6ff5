"""Folders of installed packages whose files are the data of a pipeline.

Here: where such a package is. Not here: its files and their columns (`source.py` of each pipeline).
"""

from importlib.util import find_spec
from pathlib import Path


class SourceMissing(RuntimeError):
    """The package with the data is not installed."""


def package_folder(name: str) -> Path:
    """Return the folder of an installed package, without importing it: an import can be slow or need other packages.

    Raises `SourceMissing` with the remedy.
    """
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SourceMissing(
            f"the data of this pipeline is in the files of the package {name}, which is not installed: run `make setup`"
        )
    return Path(spec.submodule_search_locations[0])
