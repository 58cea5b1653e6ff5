"""Cancellation of runs whose command was killed.

Dagster counts a run as in progress until its process reports the end. A killed command would block a place in the run
queue, and automation would wait forever. So a command locks a file during its run, and the operating system releases
the lock when the process ends. Not here: runs of the UI, whose server watches their processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from resources.files import create_locked, take_lock
from resources.settings import Settings

if TYPE_CHECKING:
    import dagster as dg


@contextmanager
def announced(settings: Settings, run_id: str) -> Iterator[None]:
    """Lock a file during the block, so that other commands see that this run has a process."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run_id}.run"
    with create_locked(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def end_abandoned(settings: Settings, instance: "dg.DagsterInstance") -> None:
    """Mark runs as canceled if their process is gone."""
    for path in sorted(_folder(settings).glob("*.run")):
        with suppress(FileNotFoundError), path.open() as file:
            if not take_lock(file.fileno(), waits=False):
                continue  # its process lives, or another command is ending the run
            run = instance.get_run_by_id(path.stem)
            if run is not None and not run.is_finished:
                instance.report_run_canceled(run, "The process of this run was killed.")
            path.unlink(missing_ok=True)


def _folder(settings: Settings) -> Path:
    return settings.dagster_home / "commands"
