"""Create an SQLite file of another package completely or not at all.

MLflow and Dagster create their tables in many transactions. If the process is killed halfway, every later start fails,
because a table already exists or another is missing. So the tables are created in another file, which is renamed when
it is complete. Not here: the tables themselves (mlflow, dagster).
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from resources.files import locked


def make_whole(path: Path, make: Callable[[Path], object]) -> None:
    """Let `make` fill an SQLite file, then rename it to `path`. Do nothing if `path` exists.

    `make` receives a path of the same name in another folder. If several processes call this at once, one creates the
    file and the others wait. Errors of `make`, sqlite3 and the file system pass through.
    """
    folder = _making(path)
    if path.exists() and not folder.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            _make(path, make)
        shutil.rmtree(folder, ignore_errors=True)  # also that of a process killed after its last step


def _make(path: Path, make: Callable[[Path], object]) -> None:
    # Not `unfinished_folder`: under the lock, a folder that is there belongs to a killed process, so it goes at once.
    folder = _making(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make(folder / path.name)
    copy = folder / "copy"
    # Rename a copy, because mlflow keeps its connections to the original file.
    with closing(sqlite3.connect(folder / path.name)) as made, closing(sqlite3.connect(copy)) as target:
        made.backup(target)
    copy.rename(path)


def _making(path: Path) -> Path:
    """Return the folder in which the file is made."""
    return path.with_name(f".{path.name}.making")
