"""Attempts of a job: the record of each, the outcomes of its ranks, and the cost of each recovery.

    attempts.jsonl    in the job's folder: each attempt with its first step and world size; rank 0 writes it
    ended-<rank>      in the job's temporary folder: exit code and error of a rank, for its agent

torch's agent reports the first process that it finds gone. A rank that fails for good takes a moment to end, and the
agent sometimes notices the ranks that lost it first: 5 of 12 trainings tried a bad blob three times. So a rank writes
its code to a file while its connections are open; ranks that lose it end later.

The agent reports why its ranks ended (`ended`). Rank 0 of the next attempt reports the cost of the recovery
(`recovered`) after its first step. Not here: the meaning of a code (resources.job.job), reading these events
(resources.job.events), the number of attempts allowed (the launcher).
"""

import json
import logging
import math
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from ml_assets.model.training.data.rowlog import last_taken
from ml_assets.model.training.telemetry.event_log import emit
from resources.files import locked, open_lock
from resources.job.errors import FINAL
from resources.job.events import UNKNOWN_CAUSE, TrainingEvent, read_events
from resources.job.job import ExitCode

log = logging.getLogger(__name__)

ATTEMPTS = "attempts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the workers that reached training."""

    number: int
    """Counted from 1."""
    from_step: int
    world_size: int
    started: float
    """Seconds since the epoch, UTC."""


def read_attempts(folder: Path) -> list[Attempt]:
    """Return all attempts so far, oldest first. A record that a full disk cut off is left out."""
    found: list[Attempt] = []
    for line in _text(folder).splitlines():
        with suppress(ValueError):
            found.append(Attempt(**json.loads(line)))
    return found


def record_attempt(folder: Path, from_step: int, world_size: int) -> Attempt:
    """Append one attempt."""
    number = len(read_attempts(folder)) + 1
    attempt = Attempt(number=number, from_step=from_step, world_size=world_size, started=time.time())
    is_cut_off = not f"\n{_text(folder)}".endswith("\n")
    with (folder / ATTEMPTS).open("a") as file:
        file.write("\n" * is_cut_off + json.dumps(asdict(attempt)) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return attempt


def begin_attempt(
    folder: Path, from_step: int, world_size: int
) -> tuple[Attempt, Callable[[int], None] | None]:
    """Record an attempt that begins at `from_step`. Return it, and a function to call after its first step; None for
    the first attempt."""
    attempt = record_attempt(folder, from_step, world_size)
    return attempt, recovery_of(folder, attempt) if attempt.number > 1 else None


def _text(folder: Path) -> str:
    path = folder / ATTEMPTS
    return path.read_text() if path.exists() else ""


def wait_until_alone(folder: Path) -> None:
    """Wait until no other rank 0 writes to `folder`, and keep others out until this process ends. The rank 0 of a
    killed attempt may still be ending."""
    open_lock(folder / "rank-0.lock")  # never closed: the end of the process releases it


@contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """Run the block on one rank of this machine at a time."""
    with locked(folder / "ranks.lock"):
        yield


def seconds_trained(folder: Path) -> list[float]:
    """Return the seconds that each attempt trained, from its start to its last sign of life. The newest attempt calls
    this, so its last sign is now.

    The times are those that workers wrote into the job's folder. A launcher that restarts changes nothing, nor does an
    event that is repeated or late.
    """
    starts = [attempt.started for attempt in read_attempts(folder)]
    signs = [sign for event in read_events(folder) if (sign := sign_of(event)) is not None]
    return seconds_between(starts, [*signs, time.time()])


def seconds_between(starts: Sequence[float], signs: Iterable[float]) -> list[float]:
    """Return for each start, in order of time, the seconds to its last sign of life before the next start."""
    signs = list(signs)
    return [
        max([start, *(sign for sign in signs if sign < end)]) - start
        for start, end in pairwise([*starts, math.inf])
    ]


def worker_seconds(folder: Path) -> float:
    """Return the sum over attempts of `seconds_trained` times world size."""
    seconds = seconds_trained(folder)
    return sum(one.world_size * took for one, took in zip(read_attempts(folder), seconds, strict=True))


def sign_of(event: TrainingEvent) -> float | None:
    """Return the time at which workers lived by this event, in seconds since the epoch; None if it shows none."""
    if event.kind == "reserved":  # of the launcher
        return None
    if event.kind == "ended":  # may describe the previous attempt while the next one begins
        return None
    if event.kind == "recovered":  # its `seconds` count from the last sign of the previous attempt
        return event.time - float(event.values["seconds"])
    return event.time


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
    """Place of its error (exit_code); empty if it was killed, or if another attempt may succeed."""


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


_SIGNS = ("started", "metrics", "epoch", "checkpoint")


def report_end(end: RankOutcome, hung: Mapping[int, str], killed: list[int]) -> None:
    """Report, from the agent, why all its ranks have ended. Emits `ended` unless the failure is final.

    `end` explains the other outcomes. `hung`: rank → reason for which the agent killed it. `killed`: ranks that ended
    without a clean exit. All are ranks of the job.
    """
    cause = cause_of(end, hung, killed)
    if end.code not in (ExitCode.PREEMPTED, ExitCode.PEER_LOST):
        # Logged last, since errors quote the end of a log: the other ranks log more, and later, about losing this rank.
        log.error("%s", "\n".join([f"the first to fail: {cause}", *end.said]))
    if (known := ExitCode.of(end.code)) is not None and known.is_final:
        return
    place = "" if hung else end.place
    with suppress(OSError):  # a full disk may be the cause
        emit("ended", 0, code=int(end.code), cause=cause, rank=failed_rank(end, hung, killed), place=place)


def failed_rank(end: RankOutcome, hung: Mapping[int, str], killed: list[int]) -> int | None:
    """Return the rank that failed first; None if none of these ranks did. See `report_end` for the arguments."""
    if hung:
        return next(iter(hung))  # others hang because of it
    if end.code == ExitCode.PREEMPTED:
        return None
    if end.code == ExitCode.PEER_LOST:
        return killed[0] if killed else None
    return end.rank


def cause_of(end: RankOutcome, hung: Mapping[int, str], killed: list[int]) -> str:
    """Return the cause of an attempt's end in words; see `report_end` for the arguments."""
    if hung:
        first = next(iter(hung))  # others hang because of it
        return f"rank {first} {hung[first]}"
    if end.code == ExitCode.PREEMPTED:
        return "it saved a checkpoint and stopped after SIGTERM"
    if end.code > 128:
        return f"rank {end.rank} was killed by {_signal(end.code - 128)}"
    if (
        killed and end.code == ExitCode.PEER_LOST
    ):  # a signal, or another code than 0, would have been noticed first
        return f"rank {killed[0]} exited without a message, as by os._exit(0)"
    if end.code == ExitCode.PEER_LOST:
        return "a rank of another node was lost"
    raised = f": {end.said[-1]}" if end.said else ""
    return f"rank {end.rank} ended with exit code {end.code}{raised}"


def recovery_of(folder: Path, attempt: Attempt) -> Callable[[int], None]:
    """Return the function that rank 0 calls after the first step of `attempt`; call this before it trains."""
    events = read_events(folder)
    before = read_attempts(folder)[attempt.number - 2]
    taken = last_taken(folder, before.number)
    signs = [event for event in events if event.kind in _SIGNS]
    # The machine of the previous attempt may have taken all its events with it.
    last_sign = max([sign.time for sign in signs] + [taken.time, before.started])
    begun = max([sign.step for sign in _since_last_start(signs)] + [taken.steps])
    ends = [event for event in _since_last_start(events) if event.kind == "ended"]
    # Each node reports its end; a node that lost a peer does not know the cause.
    ends = [end for end in ends if end.values["code"] != ExitCode.PEER_LOST] or ends

    def tell(step: int) -> None:
        emit(
            "recovered",
            step,
            attempt=attempt.number,
            cause=ends[-1].values["cause"] if ends else UNKNOWN_CAUSE,
            seconds=time.time() - last_sign,
            from_step=attempt.from_step,
            steps_lost=max(0, begun - attempt.from_step),
            workers=[before.world_size, attempt.world_size],
        )

    return tell


def _since_last_start(events: list[TrainingEvent]) -> list[TrainingEvent]:
    starts = [number for number, event in enumerate(events) if event.kind == "started"]
    return events[starts[-1] :] if starts else events


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (the kernel sends it when memory runs out)" if name == "SIGKILL" else name
