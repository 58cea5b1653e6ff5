"""A code version follows meaning, not looks."""

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ml_assets.tables.code_version import SourceUnavailable, code_version, script_version

FILES = {
    "source.py": '''
"""Reads the source."""
import math
from shop.units import scale

RATE = 3
OTHER = 4

def read(x):
    """Rows of x."""
    return scale(x) * RATE + helper(x)

def helper(x):
    return math.floor(x)

def unrelated(x):
    return x + OTHER
''',
    "units.py": "from shop import deep\n\ndef scale(x):\n    return x * deep.FACTOR\n",
    "deep.py": "from . import units\n\nFACTOR = 2\n",
    "apart.py": "NEVER_IMPORTED = 1\n",
    "__init__.py": "",
}

MUCH_SYNTAX = """
import dataclasses


@dataclasses.dataclass(frozen=True)
class Pair:
    left: int
    right: float = 1.5


def example(*values: int, scale: float = 2.0, **named: str) -> dict[str, list[float]]:
    pairs = [Pair(v, scale) for v in values if v > 0]
    text = f"{len(pairs):>4} of {named!r}"
    match pairs:
        case [Pair(left=first), *_]:
            return {text: [first * p.right for p in pairs], **{k: [0.0] for k in named}}
        case _:
            return {text: []}
"""

Edit = Callable[..., str]


@pytest.fixture
def version_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Version of `shop.source.read` after replacing text in one file of a small project."""
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def edit(file: str = "source.py", old: str = "", new: str = "", function: str = "read") -> str:
        for name, text in FILES.items():
            (folder / name).write_text(text.replace(old, new) if name == file and old else text)
        for name in [m for m in sys.modules if m.split(".")[0] == "shop"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return code_version(getattr(importlib.import_module("shop.source"), function))

    yield edit
    for name in [m for m in sys.modules if m.split(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("source.py", "RATE = 3", "RATE   =   3  # per day"),
        ("source.py", '"""Rows of x."""', '"""All rows\n\n    of x."""'),
        (
            "source.py",
            "return scale(x) * RATE + helper(x)",
            "return (\n        scale(x) * RATE + helper(x)\n    )",
        ),
        ("source.py", "x + OTHER", "x - OTHER"),
        ("source.py", "OTHER = 4", "OTHER = 5"),
        ("units.py", "\n\ndef", "\n\n\n# how much\ndef"),
        ("apart.py", "1", "2"),
    ],
)
def test_looks_and_unused_code_do_not_change_the_version(
    version_after: Edit, file: str, old: str, new: str
) -> None:
    assert version_after(file, old, new) == version_after()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("source.py", "RATE = 3", "RATE = 4"),
        ("source.py", "RATE = 3", "RATE = 3\nRATE += 1"),
        ("source.py", "* RATE", "/ RATE"),
        ("source.py", "math.floor", "math.ceil"),
        ("units.py", "x * deep.FACTOR", "x + deep.FACTOR"),
        ("deep.py", "FACTOR = 2", "FACTOR = 2.0"),
        ("deep.py", "FACTOR = 2", "FACTOR = '2'"),
    ],
)
def test_code_that_the_function_reaches_changes_the_version(
    version_after: Edit, file: str, old: str, new: str
) -> None:
    assert version_after(file, old, new) != version_after()


def test_two_functions_of_a_module_have_their_own_versions(version_after: Edit) -> None:
    assert version_after(function="read") != version_after(function="unrelated")
    assert version_after("deep.py", "2", "7", function="unrelated") == version_after(function="unrelated")


def test_a_script_counts_whole_and_is_not_run(version_after: Edit) -> None:
    def version(*edit: str) -> str:
        version_after(*edit)
        del sys.modules["shop.source"]
        found = script_version("shop.source")
        assert "shop.source" not in sys.modules
        return found

    assert version("source.py", '"""Reads the source."""', '"""Another word."""') == version()
    assert version("source.py", "x + OTHER", "x - OTHER") != version()
    assert version("deep.py", "FACTOR = 2", "FACTOR = 3") != version()
    assert version("apart.py", "1", "2") == version()
    with pytest.raises(SourceUnavailable, match=r"no source of 'shop\.nothing'"):
        script_version("shop.nothing")


def test_imported_modules_are_read_not_executed(version_after: Edit) -> None:
    version_after()
    lazy = ("    return scale(x)", "    from shop.apart import NEVER_IMPORTED\n    return scale(x)")
    with_lazy_import = version_after("source.py", *lazy)
    assert "shop.apart" not in sys.modules
    assert with_lazy_import != version_after()


def test_what_has_no_source_is_refused() -> None:
    for function in (partial(print), len):
        with pytest.raises(SourceUnavailable, match="plain function"):
            code_version(function)


def test_version_is_the_same_on_every_supported_python(version_after: Edit) -> None:
    """Pinned: one figure for all interpreters that run this test."""
    assert (
        version_after("source.py", FILES["source.py"], MUCH_SYNTAX, function="example") == "6694740937e9bdd3"
    )
