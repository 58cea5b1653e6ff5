"""Versions and aliases in the SQLite file of an embedded MLflow, without its client.

Importing mlflow takes four seconds of CPU, more than all else that `card` or `promote` does. Its tables of
versions, tags and aliases have kept these columns since they exist. Not here: creating models and versions, which
MLflow does itself, and servers (`registry`).
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from resources.tracking.mlflow_client import TrackerRefused, TrackerUnavailable

_WAIT_SECONDS = 30.0
_DELETED = "Deleted_Internal"
"""Stage of a version that somebody deleted. MLflow keeps its row."""


@dataclass(frozen=True, kw_only=True)
class StoredVersion:
    """A version as MLflow stores it."""

    model: str
    number: int
    source: str
    """Address of its bundle, or of anything if it was made by hand."""
    run_id: str
    tags: dict[str, str] = field(default_factory=dict[str, str])


class EmbeddedRegistry:
    """Registry in the file `path`. A file that does not exist yet has no versions. Every method may raise
    `TrackerUnavailable`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def versions(self, model: str | None = None) -> Sequence[StoredVersion]:
        """Return the versions of a model, or of all models, in the order of their numbers."""
        with self._opened() as database:
            if database is None:
                return ()
            where, values = ("", ()) if model is None else (" AND name = ?", (model,))
            found = {
                (name, number): StoredVersion(
                    model=name, number=number, source=source or "", run_id=run_id or ""
                )
                for name, number, source, run_id in database.execute(
                    "SELECT name, version, source, run_id FROM model_versions "
                    f"WHERE current_stage IS NOT '{_DELETED}'{where} ORDER BY name, version",
                    values,
                )
            }
            for name, number, key, value in database.execute(
                f"SELECT name, version, key, value FROM model_version_tags WHERE 1{where}", values
            ):
                if (one := found.get((name, number))) is not None:
                    one.tags[key] = value
            return tuple(found.values())

    def alias(self, model: str, alias: str) -> int | None:
        """Return the number of the version with `alias`; None if no version has it."""
        with self._opened() as database:
            if database is None:
                return None
            row = database.execute(
                "SELECT version FROM registered_model_aliases WHERE name = ? AND alias = ?", (model, alias)
            ).fetchone()
            return None if row is None else int(row[0])

    def set_alias(self, model: str, alias: str, number: int | None) -> None:
        """Move `alias` to a version; delete it if `number` is None. Raises `TrackerRefused` without such a version."""
        if number is not None:
            self._put("registered_model_aliases", "name, version, alias", model, number, (alias,))
            return
        with self._opened() as database:
            if database is not None:
                database.execute(
                    "DELETE FROM registered_model_aliases WHERE name = ? AND alias = ?", (model, alias)
                )

    def tag(self, model: str, number: int, name: str, value: str) -> None:
        """Set a tag of a version. Raises `TrackerRefused` without such a version."""
        self._put("model_version_tags", "name, version, key, value", model, number, (name, value))

    def _put(self, table: str, columns: str, model: str, number: int, values: tuple[str, ...]) -> None:
        """Insert or replace a row about a version, in one statement: another process may delete the version."""
        with self._opened() as database:
            made = database and database.execute(
                f"INSERT OR REPLACE INTO {table} ({columns}) SELECT name, version{', ?' * len(values)} "
                f"FROM model_versions WHERE name = ? AND version = ? AND current_stage IS NOT '{_DELETED}'",
                (*values, model, number),
            )
            if not made or not made.rowcount:
                raise TrackerRefused(f"MLflow at {self.path} has no version {number} of {model}")

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection | None]:
        """Open the file; None if it does not exist. Each statement is a transaction of its own."""
        try:
            try:
                self.path.stat()
            except FileNotFoundError:
                yield None
                return
            with closing(sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)) as database:
                yield database
        except (sqlite3.Error, OSError) as error:
            raise TrackerUnavailable(
                f"MLflow's file {self.path} cannot be read or written ({error}): check that it is MLflow's database, "
                "and that the disk has room; then run the same command again"
            ) from error
