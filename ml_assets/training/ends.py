"""Exit codes that the ranks of a machine leave for their agent, and the one that explains the end of an attempt.

torch's agent reports the first process that it finds gone. A rank that fails for good takes a moment to end, and the
others, whose connections it closes, are sometimes found before it: one bad sample was tried three times in 5 of 12
trainings. So a rank writes its code down while it still holds its connections: whoever ends for its sake ends later.
Files in the job's folder for temporary files, as heartbeats are. Not here: what a code means (resources.launcher.job).
"""

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from resources.launcher.errors import FINAL
from resources.launcher.job import ExitCode

_NAME = "ended-{}"


def leave_code(code: int) -> None:
    """Write down how this rank ends; before it ends. A process that no agent started tells nobody."""
    if (rank := os.environ.get("LOCAL_RANK")) is None:
        return
    with suppress(OSError):  # a full disk: the agent then has what torch found
        _path(int(rank)).write_text(f"{code} {time.monotonic()}")


def forget_codes(local_ranks: Iterable[int]) -> None:
    """Remove what an earlier attempt left."""
    for rank in local_ranks:
        _path(rank).unlink(missing_ok=True)


def explaining(local_ranks: Iterable[int], noticed: tuple[int, int]) -> tuple[int, int]:
    """Return (local rank, exit code) of the end that explains the others; `noticed` is what torch found first.

    A final failure explains all. Else what torch found does, unless that rank only lost another: then the first that
    failed of itself.
    """
    left = sorted(_read(local_ranks), key=lambda end: end[0])
    ends = [(rank, code) for _, rank, code in left if code != ExitCode.DONE]
    final = [end for end in ends if end[1] in FINAL]
    if final:
        return final[0]
    if noticed[1] != ExitCode.PEER_LOST:
        return noticed
    return next((end for end in ends if end[1] not in (ExitCode.PEER_LOST, ExitCode.PREEMPTED)), noticed)


def _read(local_ranks: Iterable[int]) -> Iterable[tuple[float, int, int]]:
    for rank in local_ranks:
        with suppress(FileNotFoundError, ValueError):  # a file that is cut off says nothing
            code, at = _path(rank).read_text().split()
            yield float(at), rank, int(code)


def _path(local_rank: int) -> Path:
    return Path(tempfile.gettempdir()) / _NAME.format(local_rank)
