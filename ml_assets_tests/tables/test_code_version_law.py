"""The law of code versions: a change of behaviour always changes the version, however the code is put together.

Modules are generated, run, changed in one place and run again.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_assets.foundation.code.code_version import code_version

HEAD = """import functools
EXTRA = [0]
def add(k):
    def keep(function):
        EXTRA.append(k)
        return function
    return keep
def f0(x):
    return x + sum(EXTRA)
"""
WAYS = (
    "def f{n}(x):\n    return x + {k} + {p}(x)",
    "K{n} = {k}\ndef f{n}(x):\n    return {p}(x) * K{n}",
    "K{n}: int = {k}\nL{n} = K{n}\ndef f{n}(x, k=L{n}):\n    return {p}(x) * k",
    "def make{n}(k):\n    def f(x):\n        return k + {p}(x)\n    return f\nf{n} = make{n}({k})",
    "class C{n}:\n    def __init__(self, k):\n        self.k = k\n    def call(self, x):\n"
    "        return self.k - {p}(x)\nf{n} = C{n}({k}).call",
    "class C{n}:\n    k = {k}\n    def __call__(self, x):\n        return self.k - {p}(x)\nf{n} = C{n}()",
    "f{n} = functools.wraps({p})(lambda x: {p}(x) + {k})",
    "f{n} = functools.partial(lambda k, x: k * {p}(x), {k})",
    "f{n} = {p}\nEXTRA.append({k})",
    "f{n} = {p}\nA{n} = EXTRA\nA{n}.append({k})",
    "f{n} = {p}\n_{n} = EXTRA.append({k})",
    "f{n} = {p}\nA{n} = EXTRA\nA{n}[0] = {k}",
    "def f{n}(x):\n    return {p}(x) + sum(EXTRA)",
    "@add({k})\ndef g{n}(x):\n    return x\nf{n} = {p}",
    "if {k} > 500:\n    def f{n}(x):\n        return {p}(x)\nelse:\n    f{n} = lambda x: 2 * {p}(x)",
    "def f{n}(x):\n    return globals()['{p}'](x) + {k}",
    "f{n}, g{n} = (lambda x: {p}(x) + {k}), 1",
    "for f{n} in [{p}]:\n    EXTRA.append({k})",
    "g{n} = [k{n} := {k}]\ndef f{n}(x):\n    return {p}(x) * k{n}",
    "async def g{n}(k={k}):\n    pass\ndef f{n}(x):\n    return {p}(x) + g{n}.__defaults__[0]",
    "g{n} = lambda: EXTRA.append({k})\ng{n}()\nf{n} = {p}",
    "def f{n}(x):\n    global EXTRA\n    EXTRA = [{k}]\n    return {p}(x) + sum(EXTRA)",
)
"""Ways to make `f{n}` from an earlier `{p}` and a constant."""
IMPORTS = (
    "from lab.helper import *",
    "import functools\nfrom lab.helper import EXTRA, add, {names}",
    "import functools\nimport lab.helper as h\nfrom lab import helper\nEXTRA, add = h.EXTRA, h.add\n{copied}",
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[str], list[str], str, list[int], int, str]:
    """Templates of `helper.py`, those of `source.py`, how it imports, the constants, which of them changes, and
    the function asked for."""
    steps: list[str] = []
    constants: list[int] = []
    for n in range(1, draw(st.integers(2, 7))):
        way = draw(st.sampled_from(WAYS))
        before = draw(st.integers(0, n - 1))
        steps.append(way.replace("{n}", str(n)).replace("{p}", f"f{before}").replace("{k}", f"<{n - 1}>"))
        constants.append(draw(st.integers(1, 999)))
    place = draw(st.integers(0, len(constants) - 1))
    cut = draw(st.integers(0, len(steps) - 1))
    known = [f"f{n}" for n in range(cut + 1)]
    imports = draw(st.sampled_from(IMPORTS)).format(
        names=", ".join(known), copied="\n".join(f"{name} = helper.{name}" for name in known)
    )
    asked = f"f{draw(st.integers(cut + 1, len(steps)))}"
    return steps[:cut], steps[cut:], imports, constants, place, asked


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a package that can be imported."""
    root = tmp_path_factory.mktemp("law")
    folder = root / "lab"
    folder.mkdir()
    (folder / "__init__.py").touch()
    sys.path.insert(0, str(root))
    keeps, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    yield folder
    sys.dont_write_bytecode = keeps
    sys.path.remove(str(root))
    _forget()


def _forget() -> None:
    for name in [one for one in sys.modules if one.split(".")[0] == "lab"]:
        del sys.modules[name]


def _with(steps: list[str], constants: list[int]) -> str:
    text = "\n".join(steps)
    for place, constant in enumerate(constants):
        text = text.replace(f"<{place}>", str(constant))
    return f"{text}\n"


@settings(max_examples=120, deadline=None)
@given(program=programs())
def test_a_change_of_behaviour_always_changes_the_version(
    lab: Path, program: tuple[list[str], list[str], str, list[int], int, str]
) -> None:
    helper, source, imports, constants, place, asked = program

    def run(values: list[int]) -> tuple[list[float], str]:
        (lab / "helper.py").write_text(HEAD + _with(helper, values))
        (lab / "source.py").write_text(f"{imports}\n{_with(source, values)}")
        _forget()
        importlib.invalidate_caches()
        function = getattr(importlib.import_module("lab.source"), asked)
        return [function(1.5), function(-20.0)], code_version(f"lab.source.{asked}")

    changed = [*constants[:place], 1000 - constants[place], *constants[place + 1 :]]
    (behaviour, version), (other, its_version) = run(constants), run(changed)
    assert its_version != version or other == behaviour
