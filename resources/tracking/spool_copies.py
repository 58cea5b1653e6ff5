"""Copies of spools in the artifacts, where they outlive the machine. The disk of a run's pod ends with the pod.

Here: keeping a copy, and finding copies whose process is gone. Not here: the content of a spool (sink), its delivery
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
"""Seconds without a new copy after which a process counts as gone. Long enough for clocks that differ by seconds and
for an object store that is away for minutes."""

_NAME = "spool-copies"
_log = logging.getLogger(__name__)


class SpoolCopies:
    """Copies of the spools of all machines, in one folder of the artifacts.

    Errors of the artifacts are logged, never raised: the delivery of metrics does not depend on the copies.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    def keep(self, spool: Path) -> None:
        """Replace the copy of `spool` by its current content. The first line of a copy is the time, a sign of life."""
        content = f"{json.dumps(time.time())}\n".encode() + spool.read_bytes()
        try:
            with self._artifacts.create(_NAME, spool.name) as file:
                file.write(content)
        except ArtifactsError as error:
            _say(error)

    def forget(self, name: str) -> None:
        """Delete the copy of the spool with this file name. Do nothing if it is missing."""
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
        """Copy to `folder` the spools of processes that ended without delivery, or were silent for `GONE_AFTER`."""
        for name in self.names():
            target, unseen = folder / name, folder / f"{name}.new"
            if (
                target.exists()
            ):  # its process is or was on this machine; the lock of the file shows if it lives
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
    """Return True for a copy, time and spool, whose spool begins with a final status, or that is old."""
    try:
        sign_of_life, has_ended = float(json.loads(lines[0])), lines[1].startswith('"')
    except (IndexError, ValueError, TypeError):  # objects are never cut short, so this is a foreign file
        return False
    return has_ended or time.time() - sign_of_life > GONE_AFTER


def _say(error: ArtifactsError) -> None:
    _log.warning("could not copy metrics that wait for MLflow: %s", error)
