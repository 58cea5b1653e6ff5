"""Reading code while other threads parse, too."""

import ast
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ml_assets.foundation.code.code_version import code_version, modules_version, normal_text
from ml_assets.foundation.code.syntax import MODULES, parse_text, reading_once

_ROOT = Path(__file__).parents[1]
_NESTED = "value = " + "[" * 30 + "1" + "]" * 30


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads that change every microsecond, and garbage that is collected within the parser."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


class _Collected:
    """Rubbish whose end runs Python code, so that another thread may get its turn."""

    def __init__(self) -> None:
        self.circle = self

    def __del__(self) -> None:
        sum(range(50))


def test_code_is_read_while_other_threads_parse(hurried: None) -> None:
    """Two trials of a study compute versions of code at the same time, and libraries parse, too."""
    refused: list[SystemError] = []
    is_over = threading.Event()

    def of_a_library() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            with suppress(SystemError):
                ast.parse(f"{_NESTED}\nlibrary = {number}\n" * 20)

    def ours(which: int) -> None:
        for number in range(100):
            _Collected()
            try:
                parse_text(f"{_NESTED}\nours = {which}, {number}\n" * 20)
            except SystemError as error:
                refused.append(error)

    library = threading.Thread(target=of_a_library)
    readers = [threading.Thread(target=ours, args=(which,)) for which in range(2)]
    library.start()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    is_over.set()
    library.join()
    assert refused == []


def test_a_second_version_reads_no_module_again() -> None:
    """A cache with room for fewer modules than the code reaches would keep none: each version reads them in order."""
    reaches_most = ["ml_assets_tests.components.installation"]
    first = modules_version(reaches_most)
    parsed = parse_text.cache_info().misses, normal_text.cache_info().misses
    assert modules_version(reaches_most) == first
    assert (parse_text.cache_info().misses, normal_text.cache_info().misses) == parsed
    platform = [path for top in ("ml_assets", "resources") for path in (_ROOT / top).rglob("*.py")]
    assert 4 * len(platform) < MODULES, "room for a user's own modules, too"


def test_a_block_reads_a_module_once_and_the_next_block_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "read_once_here.py"
    module.write_text("def build():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with reading_once():
        before = code_version("read_once_here.build")
        module.write_text("def build():\n    return 2\n")
        with reading_once():
            assert code_version("read_once_here.build") == before
        assert code_version("read_once_here.build") == before
    after = code_version("read_once_here.build")
    assert after != before
    with reading_once():
        assert code_version("read_once_here.build") == after
