"""Copies of spools where they outlive the machine: a run pod's own disk ends with the pod.

Here: keeping a copy, and finding those whose process is gone. Not here: what a spool holds (sink), delivering it
(tracker).
"""

import json
import logging
import time
from pathlib import Path

from resources.artifacts import ArtifactMissing, Artifacts, ArtifactsError

EVERY = 60.0
"""Seconds between two copies of a spool."""
GONE_AFTER = 900.0
"""Seconds without a new copy after which a process counts as gone. Clocks of two machines may differ by seconds, and an
object store may be away for minutes."""

_NAME = "spool-copies"
_log = logging.getLogger(__name__)


class SpoolCopies:
    """Copies of the spools of all machines, below one address.

    A store that is away is logged and never raised: delivering metrics does not depend on it.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    def keep(self, spool: Path) -> None:
        """Replace the copy of `spool` by what it holds now. Its first line is the time, as a sign of life."""
        content = f"{json.dumps(time.time())}\n".encode() + spool.read_bytes()
        try:
            with self._artifacts.create(_NAME, spool.name) as file:
                file.write(content)
        except ArtifactsError as error:
            _say(error)

    def forget(self, name: str) -> None:
        """Delete the copy of the spool with this file name; absent ones are fine."""
        try:
            self._artifacts.remove(_NAME, [name])
        except ArtifactsError as error:
            _say(error)

    def names(self) -> list[str]:
        """Return the file names of all copies."""
        try:
            return [name for name in self._artifacts.files(_NAME) if name.endswith(".jsonl")]
        except ArtifactsError as error:
            _say(error)
            return []

    def bring_abandoned(self, folder: Path) -> None:
        """Put into `folder` the spools of processes that ended without delivering them, or have been silent."""
        for name in self.names():
            target, unseen = folder / name, folder / f"{name}.new"
            if (
                target.exists()
            ):  # its process is or was on this machine, and holds the lock as long as it lives
                continue
            try:
                self._artifacts.fetch(_NAME, name, unseen)
            except ArtifactMissing:  # delivered meanwhile
                continue
            except ArtifactsError as error:
                _say(error)
                return
            if _is_abandoned(unseen.read_text(errors="replace").splitlines()):
                unseen.rename(target)
            else:
                unseen.unlink()


def _is_abandoned(lines: list[str]) -> bool:
    try:
        sign_of_life, last = json.loads(lines[0]), json.loads(lines[-1])
    except (IndexError, ValueError):  # objects are whole: somebody else put it there
        return False
    return isinstance(last, str) or time.time() - float(sign_of_life) > GONE_AFTER


def _say(error: ArtifactsError) -> None:
    _log.warning("copies of metrics that wait for MLflow: %s", error)
