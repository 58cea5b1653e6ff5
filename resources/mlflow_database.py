"""MLflow's SQLite file comes into being whole or not at all.

MLflow makes its tables by some sixty migrations, seconds long, and SQLite keeps the half of them that a killed
process had done: every later start then fails at a table that already exists. So the tables are made in
another file, which gets its name when it is complete. Not here: what is in them (mlflow).
"""

import fcntl
import sqlite3
from contextlib import closing
from pathlib import Path


def make_database(path: Path) -> None:
    """Make `path` an empty MLflow database (one to six seconds), unless it is there.

    Of several processes one makes it while the others wait. Raises what mlflow, sqlite3 and the file system
    raise.
    """
    if path.exists():
        return
    with path.with_name(f".{path.name}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not path.exists():
            _make(path)


def _make(path: Path) -> None:
    from mlflow.tracking import MlflowClient

    making, copy = path.with_name(f".{path.name}.making"), path.with_name(f".{path.name}.copy")
    leftovers = [*path.parent.glob(f"{making.name}*"), *path.parent.glob(f"{copy.name}*")]
    for leftover in leftovers:  # of a process that was killed here
        leftover.unlink()
    MlflowClient(tracking_uri=f"sqlite:///{making}", registry_uri=f"sqlite:///{making}")
    # A copy, because mlflow keeps its connections to the file it made.
    with closing(sqlite3.connect(making)) as made, closing(sqlite3.connect(copy)) as target:
        made.backup(target)
    copy.rename(path)
    making.unlink()
