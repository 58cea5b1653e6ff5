"""Time of the ledger: that of the database server; with SQLite, that of this host if the file system agrees.

A process alone does not date a decision: one clock that is ahead would end a bake time, or freeze a model's releases.
Not here: the order of rows, which is their place (`chain`).
"""

import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from resources.ledger.errors import ClockRefused

TOLERANCE = timedelta(minutes=5)
"""Clocks of the hosts of one network differ by seconds. A larger difference is a wrong clock."""


def time_of(connection: sa.Connection) -> datetime:
    """Return the present time by the ledger. Raise `ClockRefused` if this host and its file system disagree."""
    if connection.dialect.name == "postgresql":
        asked: datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        return asked.astimezone(UTC)
    own = process_time()
    stored = file_system_time(Path(connection.engine.url.database or ".").absolute().parent)
    if abs(own - stored) > TOLERANCE:
        raise ClockRefused(
            f"the clock of this process says {own:%Y-%m-%d %H:%M:%S} UTC, and the file system of the ledger "
            f"{stored:%Y-%m-%d %H:%M:%S} UTC. Nothing was stored: set the clocks right, then run it again"
        )
    return own


def process_time() -> datetime:
    """Return the time of this process."""
    return datetime.now(UTC)


def file_system_time(folder: Path) -> datetime:
    """Return the time at which the file system stores a file in `folder`. A network file system has its own clock."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\n")
        file.flush()
        return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
