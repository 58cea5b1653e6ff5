"""Outcomes of a machine's ranks, left for their agent, and the one that explains the end of an attempt.

torch's agent reports the first process that it finds gone. A rank that fails for good takes a moment to end, and the
others, whose connections it closes, are sometimes found before it: one bad sample was tried three times in 5 of 12
trainings. So a rank writes its code down while it still holds its connections: whoever ends for its sake ends later.
Files in the job's folder for temporary files, as heartbeats are. Not here: what a code means (resources.job.job).
"""

import json
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resources.job.errors import FINAL
from resources.job.job import ExitCode

_NAME = "ended-{}"
_LINES = 9
"""Lines of a traceback: an error quotes the last 15 lines of a log."""


@dataclass(frozen=True, kw_only=True)
class RankOutcome:
    """Exit code of a rank, and the error behind it."""

    rank: int
    """Local."""
    code: int
    said: tuple[str, ...] = ()
    """Last lines of what it raised; none where something ended it from outside."""


def leave_code(code: int, error: BaseException | None = None) -> None:
    """Write down how this rank ends and what it raised, before it ends. Without an agent, nobody is told."""
    if (rank := os.environ.get("LOCAL_RANK")) is None:
        return
    said = "" if error is None else "".join(traceback.format_exception(error, chain=False))
    facts = {"code": int(code), "at": time.monotonic(), "said": said.splitlines()[-_LINES:]}
    with suppress(OSError):  # a full disk: the agent then has what torch found
        _path(int(rank)).write_text(json.dumps(facts))


def forget_codes(local_ranks: Iterable[int]) -> None:
    """Remove what an earlier attempt left."""
    for rank in local_ranks:
        _path(rank).unlink(missing_ok=True)


def explaining(local_ranks: Iterable[int], noticed: Mapping[int, int]) -> RankOutcome:
    """Return the end that explains the others. `noticed`: local rank → exit code of those that torch found gone before
    it ended the rest, the first one first.

    A final failure explains all. A rank that left no word was ended from outside, or by itself without Python: that
    comes next. Then the rank that failed first, by the time it wrote down; one that only lost another is the last.
    """
    left = {end.rank: end for end in _read(local_ranks) if end.code != ExitCode.DONE}
    ends = list(left.values())
    wordless = [RankOutcome(rank=rank, code=code) for rank, code in noticed.items() if rank not in left]
    final = [end for end in (*ends, *wordless) if end.code in FINAL]
    own = [end for end in ends if end.code not in (ExitCode.PEER_LOST, ExitCode.PREEMPTED)]
    return [*final, *wordless, *own, *(left[rank] for rank in noticed if rank in left)][0]


def _read(local_ranks: Iterable[int]) -> list[RankOutcome]:
    """Read the ends that ranks left, the first one first."""
    found: list[tuple[float, RankOutcome]] = []
    for rank in local_ranks:
        with suppress(FileNotFoundError, ValueError):  # a file that is cut off says nothing
            facts = json.loads(_path(rank).read_text())
            found.append((facts["at"], RankOutcome(rank=rank, code=facts["code"], said=tuple(facts["said"]))))
    return [end for _, end in sorted(found, key=lambda one: one[0])]


def _path(local_rank: int) -> Path:
    return Path(tempfile.gettempdir()) / _NAME.format(local_rank)
