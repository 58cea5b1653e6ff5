"""An SQLite file of another package comes into being whole or not at all.

MLflow and Dagster make their tables by many transactions, and SQLite keeps the half of them that a killed process
had done: every later start then fails at a table that exists already, or at one that never will. So the tables are
made in another file, which gets its name when it is complete. Not here: what is in them (mlflow, dagster).
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from resources.files import locked


def make_whole(path: Path, make: Callable[[Path], object]) -> None:
    """Let `make` fill an SQLite file, and give it the name `path`; do nothing where `path` exists.

    `make` gets a path of the same name in a folder of its own. Of several processes one makes the file while the
    others wait. Raises what `make`, sqlite3 and the file system raise.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            _make(path, make)


def _make(path: Path, make: Callable[[Path], object]) -> None:
    folder = path.with_name(f".{path.name}.making")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed here
    folder.mkdir()
    make(folder / path.name)
    copy = folder / "copy"
    # A copy, because mlflow keeps its connections to the file it made.
    with closing(sqlite3.connect(folder / path.name)) as made, closing(sqlite3.connect(copy)) as target:
        made.backup(target)
    copy.rename(path)
    shutil.rmtree(folder, ignore_errors=True)
