"""Folders that are being filled: deleted at the end, kept if renamed, purged once their process was killed."""

import os
import subprocess
import sys
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


def test_the_folder_of_a_killed_process_goes_at_once_and_no_other(tmp_path: Path) -> None:
    fill = f"""
from pathlib import Path
from resources.files import unfinished_folder
with unfinished_folder(Path({str(tmp_path)!r})) as folder:
    (folder / "half").touch()
    print(folder, flush=True)
    input()
"""

    def started() -> tuple[subprocess.Popen[str], Path]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", fill], text=True, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    (dies, dead), (lives, alive) = started(), started()
    with dies, lives:
        dies.kill()
        dies.wait()
        assert dead.is_dir()
        with unfinished_folder(tmp_path):
            assert not dead.exists()
            assert (alive / "half").exists()
        lives.communicate("\n")
    assert list(tmp_path.iterdir()) == []


def test_folders_without_a_lock_are_purged_a_day_later(tmp_path: Path) -> None:
    yesterday, just_now, finished = (tmp_path / name for name in (f"{UNFINISHED}1", f"{UNFINISHED}2", "done"))
    for folder in (yesterday, just_now, finished):
        folder.mkdir()
        (folder / "half").touch()
    for folder in (yesterday, finished):
        os.utime(folder, (time.time() - 100_000,) * 2)
    with unfinished_folder(tmp_path):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([just_now, finished])
