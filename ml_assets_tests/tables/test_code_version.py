"""A code version follows meaning, not looks."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_assets.foundation.code.code_version import SourceUnavailable, code_version, reached_by, script_version

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

HIDDEN = {
    "a factory's closure": """
def make(scale):
    def read(x):
        return x * scale
    return read
read = make(18.0)
""",
    "a bound method": """
class Scaled:
    def __init__(self, scale):
        self.scale = scale
    def read(self, x):
        return x * self.scale
read = Scaled(18.0).read
""",
    "wraps by assignment": """
import functools
def inner(x):
    return x
def scaled(function):
    @functools.wraps(function)
    def outer(x):
        return 18.0 * function(x)
    return outer
read = scaled(inner)
""",
    "a partial": """
import functools
def scaled(scale, x):
    return scale * x
read = functools.partial(scaled, 18.0)
""",
    "a registry filled by decorators": """
TABLE = {}
def register(function):
    TABLE["scaled"] = function
    return function
@register
def scaled(x):
    return 18.0 * x
def read(x):
    return TABLE["scaled"](x)
""",
    "an alias that is changed": """
TABLE = {}
other = TABLE
other["scale"] = 18.0
def read(x):
    return x * TABLE["scale"]
""",
    "a walrus": """
other = [scale := 18.0]
def read(x):
    return x * scale
""",
    "a name read by text": """
scale = 18.0
def read(x):
    return x * globals()["scale"]
""",
    "a list of subclasses": """
class Layer:
    pass
class Scaled(Layer):
    scale = 18.0
def read(x):
    return x * Layer.__subclasses__()[-1].scale
""",
    "a docstring that is read": '''
def read(x):
    """18.0"""
    return x * float(read.__doc__)
''',
    "a block": """
try:
    scale = 18.0
finally:
    pass
def read(x):
    return x * scale
""",
}
"""A module each: how `read` comes to multiply by 18."""

Edit = Callable[..., str]


@pytest.fixture
def version_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Version of `shop.source.read` after replacing text in one file of a small project."""
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def edit(
        file: str = "source.py",
        old: str = "",
        new: str = "",
        function: str = "read",
        files: dict[str, str] | None = None,
        imports: bool = True,
    ) -> str:
        for name, text in (FILES | (files or {})).items():
            (folder / name).write_text(text.replace(old, new) if name == file and old else text)
        for name in [m for m in sys.modules if m.split(".")[0] == "shop"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        if imports:
            importlib.import_module("shop.source")
        return code_version(f"shop.source.{function}")

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


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN.keys())
def test_hidden_behaviour_of_a_function_changes_the_version(version_after: Edit, text: str) -> None:
    """Weights trained with 18.0 were reused, and blessed, where a factory made the model with -500.0."""
    whole = FILES["source.py"]
    before = version_after("source.py", whole, text)
    assert sys.modules["shop.source"].read(1.0) == 18.0
    after = version_after("source.py", whole, text.replace("18.0", "-500.0"))
    assert sys.modules["shop.source"].read(1.0) == -500.0
    assert after != before
    assert version_after("source.py", whole, f"# so much\n{text}") == before


STAR = "from shop.units import *\n\ndef read(x):\n    return scale(x)\n"


def test_what_a_star_import_brings_changes_the_version(version_after: Edit) -> None:
    files = {"source.py": STAR}
    assert version_after(files=files) != version_after("deep.py", "FACTOR = 2", "FACTOR = 3", files=files)


def test_a_function_that_another_module_made_is_followed_there(version_after: Edit) -> None:
    files = {"source.py": "from shop.units import read\n", "units.py": HIDDEN["a factory's closure"]}
    assert version_after(files=files) != version_after("units.py", "18.0", "1.0", files=files)


def test_a_module_that_is_imported_back_counts_whole(version_after: Edit) -> None:
    """`units` reads a name of `source` that `read` itself does not mention."""
    files = {
        "source.py": "from shop import units\n\nRATE = 2\n\ndef read(x):\n    return units.scale(x)\n",
        "units.py": "from shop import source\n\ndef scale(x):\n    return x * source.RATE\n",
    }
    assert version_after(files=files) != version_after("source.py", "RATE = 2", "RATE = 3", files=files)


def test_the_package_around_a_module_counts_since_it_runs_first(version_after: Edit) -> None:
    assert version_after("__init__.py", files={"__init__.py": "LEVEL = 1\n"}) != version_after()


def test_a_module_imported_by_a_literal_name_is_followed(version_after: Edit) -> None:
    text = "import importlib\n\ndef read(x):\n    return importlib.import_module('shop.deep').FACTOR\n"
    files = {"source.py": text}
    assert version_after(files=files) != version_after("deep.py", "2", "3", files=files)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from importlib import import_module\nread = import_module(str())\n", "source.py:2 uses import_module"),
        ("from importlib import import_module as get\nread = get(str())\n", "source.py:1 uses import_module"),
        ("def read(x):\n    return eval(x)\n", "source.py:2 uses eval"),
        ("read = __import__('shop' + '.deep').deep.read\n", "source.py:1 uses __import__"),
        ("import sys\nsys.path.append('.')\n\ndef read(x):\n    import apart\n", "Write `from shop import apart`"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_its_line(version_after: Edit, text: str, said: str) -> None:
    with pytest.raises(SourceUnavailable, match=re.escape(said)):
        version_after(files={"source.py": text}, imports=False)


def test_two_functions_of_a_module_have_their_own_versions(version_after: Edit) -> None:
    assert version_after(function="read") != version_after(function="unrelated")
    edit = ("source.py", "floor", "ceil")
    assert version_after(*edit, function="unrelated") == version_after(function="unrelated")


def test_an_imported_module_counts_even_if_unused_since_importing_runs_it(version_after: Edit) -> None:
    assert version_after("deep.py", "2", "7", function="unrelated") != version_after(function="unrelated")


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


@pytest.mark.parametrize("path", ["builtins.len", "shop.nowhere.read", "read"])
def test_what_has_no_source_is_refused(path: str) -> None:
    with pytest.raises(SourceUnavailable, match=f"no source of '{path}'"):
        code_version(path)


def test_version_is_the_same_on_every_supported_python(version_after: Edit) -> None:
    """Pinned: one figure for all interpreters that run this test."""
    assert (
        version_after("source.py", FILES["source.py"], MUCH_SYNTAX, function="example") == "5ea232adc0adf471"
    )


def test_no_code_depends_on_the_whole_platform_through_its_entrance() -> None:
    """`ml_assets.open` imports every part, and `ml_assets` is the parent of each module."""
    reached = reached_by(["ml_assets.defs.store_demand.features", "ml_assets.model.training.entry"]).modules
    assert "ml_assets" in reached
    assert [name for name in reached if name.startswith("ml_assets.context")] == []
