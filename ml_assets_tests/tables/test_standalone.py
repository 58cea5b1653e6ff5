"""A function that goes with a model is taken out of its module with all it needs there, and with nothing else."""

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets.data.tables.user_code import NotStandalone, Standalone, standalone

MODULE = '''
"""A module of a project."""
from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from gallery.frames import FRAME

if TYPE_CHECKING:
    from gallery.frames import Kind

SIDE = 4  # of a picture
OTHER = FRAME


def decode(content: bytes) -> Kind:
    """One picture."""
    return _cut(zlib.decompress(content))


def _cut(content):
    import yaml

    return list(content)[:SIDE]


def framed(content):
    return decode(content), FRAME


def build():
    return torch.nn.Linear(SIDE, 1)


if __name__ == "__main__":
    print(build())
'''


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Standalone]:
    """Function of `gallery.pictures`, by name."""
    folder = tmp_path / "gallery"
    folder.mkdir()
    (folder / "pictures.py").write_text(MODULE)
    (folder / "frames.py").write_text("FRAME = 1\n")
    (folder / "broken.py").write_text("def decode(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return lambda name: standalone(f"gallery.{name}")


def test_it_brings_what_it_needs_and_works_alone(taken: Callable[[str], Standalone]) -> None:
    found = taken("pictures.decode")
    assert found.function == "decode"
    assert found.packages == ("yaml",)
    for absent in ("torch", "numpy", "FRAME", "build", "TYPE_CHECKING", "print"):
        assert absent not in found.source
    namespace: dict[str, Callable[[bytes], list[int]]] = {}
    exec(found.source, namespace)
    packed = importlib.import_module("zlib").compress(bytes(range(9)))
    assert namespace["decode"](packed) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pictures.framed", "needs gallery.frames: define all it needs in its own module"),
        ("pictures.decod", "gallery.pictures has no function 'decod'; did you mean 'decode'"),
        ("pictures.SIDE", "has no function 'SIDE'; define it there, with def"),
        ("picture.decode", "there is no module 'gallery.picture'; write package.module.function"),
        ("broken.decode", "cannot read 'gallery.broken.decode': SyntaxError: invalid syntax"),
    ],
)
def test_what_cannot_be_taken_out_is_refused_with_the_reason(
    taken: Callable[[str], Standalone], name: str, said: str
) -> None:
    with pytest.raises(NotStandalone, match=said):
        taken(name)


def test_a_name_alone_is_no_function() -> None:
    with pytest.raises(NotStandalone, match="it names no module"):
        standalone("decode")
