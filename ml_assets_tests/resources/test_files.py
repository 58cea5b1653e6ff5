"""Folders that are being filled: deleted at the end, kept if renamed, purged a day after their process was killed."""

import os
import time
from pathlib import Path

import pytest

from resources.files import UNFINISHED, unfinished_folder


def test_an_unfinished_folder_is_gone_after_its_block(tmp_path: Path) -> None:
    with unfinished_folder(tmp_path / "place") as left:
        (left / "half").touch()
    with pytest.raises(FileNotFoundError), unfinished_folder(tmp_path / "place") as failed:
        (failed / "missing").read_bytes()
    with unfinished_folder(tmp_path / "place") as filled:
        (filled / "whole").touch()
        filled.rename(tmp_path / "place/finished")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [
        "place",
        "place/finished",
        "place/finished/whole",
    ]


def test_folders_of_the_dead_are_purged_a_day_later(tmp_path: Path) -> None:
    yesterday, just_now, finished = (tmp_path / name for name in (f"{UNFINISHED}1", f"{UNFINISHED}2", "done"))
    for folder in (yesterday, just_now, finished):
        folder.mkdir()
        (folder / "half").touch()
    for folder in (yesterday, finished):
        os.utime(folder, (time.time() - 100_000,) * 2)
    with unfinished_folder(tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([just_now, finished])
