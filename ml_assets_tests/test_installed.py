"""Files of installed packages are told from those of a project, wherever the packages lie."""

import textwrap
from pathlib import Path

import polars
import pytest

from resources.installed import is_installed


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        (textwrap.__file__, True),
        (polars.__file__, True),
        ("/opt/site-packages/polars/expr.py", True),
        ("/home/ada/.local/lib/python3.11/site-packages/polars/expr.py", True),
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", True),
        (__file__, False),
        ("/opt/team/features.py", False),
    ],
)
def test_packages_of_any_folder_are_installed(file: str, *, installed: bool) -> None:
    assert is_installed(Path(file)) == installed
