"""Marks of live performance: which files of the log a partition's measurement has read.

`log_retention` deletes no file that a measurement still needs. One JSON file among the artifacts for each partition.
Not here: the measurement (`live`).
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ml_assets.use.serving.request_log import writer_of
from resources.artifacts import Artifacts

_ROOT = "log_marks"


class DayRead(BaseModel):
    """Files of a day that were read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    newest: Mapping[str, int] = {}
    """Server → number of its newest file."""
    count: int = 0
    """All files."""

    @classmethod
    def of(cls, files: Iterable[str]) -> "DayRead":
        """Return the mark of `files`."""
        newest: dict[str, int] = {}
        names = list(files)
        for server, number in map(writer_of, names):
            newest[server] = max(number, newest.get(server, 0))
        return cls(newest=newest, count=len(names))

    def has(self, file: str) -> bool:
        """Return True if `file` is among them. A server writes no file after one with a larger number."""
        server, number = writer_of(file)
        return number <= self.newest.get(server, 0)


FilesRead: TypeAlias = dict[str, DayRead]
"""Day → files of that day that were read."""
_JSON = TypeAdapter[FilesRead](FilesRead)


def log_marks(artifacts: Artifacts, model: str, partition: str) -> FilesRead:
    """Return the files that the measurement of a partition has read; none before it. Raises `ArtifactsError`."""
    name, file = f"{_ROOT}/{model}", f"{partition}.json"
    if not artifacts.exists(name, file):
        return {}
    return _JSON.validate_json((artifacts.pull(name, [file]) / file).read_bytes())


def mark_read(artifacts: Artifacts, model: str, partition: str, files: FilesRead) -> None:
    """Record that a partition's figures are stored and rest on `files`. Raises `ArtifactsError`."""
    with artifacts.create(f"{_ROOT}/{model}", f"{partition}.json") as stream:
        stream.write(_JSON.dump_json(files))
