"""Model functions are found by reading: what their text says is what calling them would say."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.tables.user_code import FunctionNotFound
from ml_assets.model.steps.declared_functions import find_signature, wrong_arguments

Write = Callable[..., str]
NAMES = ("depth", "hidden", "width")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of modules that can be imported."""
    folder = tmp_path_factory.mktemp("models")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def write(folder: Path) -> Write:
    """Write a module and return its name."""

    def write(text: str) -> str:
        name = f"written_{next(_numbers)}"
        (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


@st.composite
def parameters(draw: st.DrawFn) -> str:
    """The parameters of a function, as text."""
    names = draw(st.permutations(NAMES))
    count = draw(st.integers(0, 3))
    positional, keyword = names[:count], names[count : draw(st.integers(count, 3))]
    with_default = draw(st.integers(0, len(positional)))
    text = ["inputs", *(["/"] if draw(st.booleans()) else [])]
    text += [f"{name}=1" if at >= with_default else name for at, name in enumerate(positional)]
    text += ["*", *(draw(st.sampled_from((name, f"{name}=1"))) for name in keyword)] if keyword else []
    return ", ".join([*text, *(["**more"] if draw(st.booleans()) else [])])


@given(text=parameters(), keywords=st.sets(st.sampled_from(NAMES)), is_class=st.booleans())
def test_wrong_arguments_are_those_that_a_call_refuses(
    write: Write, text: str, keywords: set[str], is_class: bool
) -> None:
    body = f"class build:\n    def __init__(self, {text}): pass" if is_class else f"def build({text}): pass"
    module = write(body)
    build = importlib.import_module(module).build
    try:
        build("inputs", **dict.fromkeys(keywords, 1))
        refuses = False
    except TypeError:
        refuses = True
    assert bool(wrong_arguments(f"{module}.build", keywords)) == refuses


def test_a_model_file_is_read_and_not_run(write: Write) -> None:
    """The function is followed through the modules of the project."""
    inner = write("import torch\nraise SystemExit\ndef build(inputs, *, hidden): ...\n")
    outer = write(f"try:\n    from {inner} import build as made\nfinally:\n    pass\nagain = made\n")
    assert wrong_arguments(f"{outer}.again", []) == {(): "needs hidden: add it to hyperparameters"}
    assert inner not in sys.modules
    assert outer not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "import functools\ndef f(inputs, a): ...\nbuild = functools.partial(f, a=1)",
        "def wrap(f): return lambda inputs, **given: f(inputs)\n@wrap\ndef build(inputs, a): ...",
        "class Base:\n    def __init__(self, inputs, a): ...\nclass build(Base): ...",
        "from os.path import *",
        "from os.path import join as build",
        "build = build",
    ],
)
def test_arguments_that_the_text_hides_are_left_to_the_workers(write: Write, text: str) -> None:
    assert find_signature(f"{write(text)}.build") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def bild(inputs): ...", "has no 'build'; did you mean 'bild'?"),
        ("build = 3", "is a int, not a function"),
        ("build = [1]", "is a list, not a function"),
        ("def build(:", r"written_\d+.py:1: SyntaxError"),
        ("from ml_assets.data import snapshots as build", "is a module, not a function"),
    ],
)
def test_what_is_no_function_is_named(write: Write, text: str, said: str) -> None:
    with pytest.raises(FunctionNotFound, match=said):
        find_signature(f"{write(text)}.build")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("build", "names no module; write package.module.function"),
        ("ml_assets.nowhere.build", "there is no module 'ml_assets.nowhere'"),
        ("nowhere.at.all.build", "there is no module 'nowhere'"),
    ],
)
def test_a_path_to_nothing_says_what_is_missing(path: str, said: str) -> None:
    with pytest.raises(FunctionNotFound, match=said):
        find_signature(path)
