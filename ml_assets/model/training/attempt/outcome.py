"""Outcomes of a machine's ranks, left for their agent, and the outcome that explains the end of an attempt.

torch's agent reports the first process that it finds gone. A rank that fails for good takes a moment to end, and the
agent sometimes notices the ranks that lost it first: 5 of 12 trainings tried a bad blob three times. So a rank writes
its code to a file while its connections are open; ranks that lose it end later. The files are in the job's temporary
folder, like heartbeats. Not here: the meaning of a code (resources.job.job).
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
"""Lines of a traceback to keep: an error quotes the last 15 lines of a log."""


@dataclass(frozen=True, kw_only=True)
class RankOutcome:
    """Exit code of a rank, and the error behind it."""

    rank: int
    """Local rank."""
    code: int
    said: tuple[str, ...] = ()
    """Last lines of its traceback; empty if the rank was killed."""
    place: str = ""
    """Place of its error (attempt.place); empty if it was killed, or if another attempt may succeed."""


def leave_code(code: int, error: BaseException | None = None, place: str = "") -> None:
    """Write this rank's exit code, its error and the error's place to a file, before it ends. Does nothing without an
    agent."""
    if (rank := os.environ.get("LOCAL_RANK")) is None:
        return
    said = "" if error is None else "".join(traceback.format_exception(error, chain=False))
    facts = {"code": int(code), "at": time.monotonic(), "said": said.splitlines()[-_LINES:], "place": place}
    with suppress(OSError):  # a full disk: the agent then relies on torch's report
        _path(int(rank)).write_text(json.dumps(facts))


def forget_codes(local_ranks: Iterable[int]) -> None:
    """Remove the files of an earlier attempt."""
    for rank in local_ranks:
        _path(rank).unlink(missing_ok=True)


def explaining(local_ranks: Iterable[int], noticed: Mapping[int, int]) -> RankOutcome:
    """Return the outcome that explains the others. `noticed`: local rank → exit code of the ranks that torch found gone
    before it ended the rest, in that order.

    Order of precedence: a final failure; a rank without a file, which was killed or ended without Python; the rank that
    failed first, by the time in its file; last, a rank that only lost a peer.
    """
    left = {end.rank: end for end in _read(local_ranks) if end.code != ExitCode.DONE}
    ends = list(left.values())
    wordless = [RankOutcome(rank=rank, code=code) for rank, code in noticed.items() if rank not in left]
    final = [end for end in (*ends, *wordless) if end.code in FINAL]
    own = [end for end in ends if end.code not in (ExitCode.PEER_LOST, ExitCode.PREEMPTED)]
    return [*final, *wordless, *own, *(left[rank] for rank in noticed if rank in left)][0]


def _read(local_ranks: Iterable[int]) -> list[RankOutcome]:
    """Read the outcomes that ranks left, earliest first."""
    found: list[tuple[float, RankOutcome]] = []
    for rank in local_ranks:
        with suppress(FileNotFoundError, ValueError):  # a truncated file counts as missing
            facts = json.loads(_path(rank).read_text())
            end = RankOutcome(rank=rank, code=facts["code"], said=tuple(facts["said"]), place=facts["place"])
            found.append((facts["at"], end))
    return [end for _, end in sorted(found, key=lambda one: one[0])]


def _path(local_rank: int) -> Path:
    return Path(tempfile.gettempdir()) / _NAME.format(local_rank)
