"""Causes of ended attempts and the cost of going on, written as events where they happen.

The agent says why its ranks ended (`ended`), rank 0 of the next attempt what that cost (`recovered`), once it has
trained a step. Not here: reading them (resources.job.recoveries), trying again (the launcher).
"""

import logging
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ml_assets.training.attempt.attempts import Attempt, read_attempts
from ml_assets.training.attempt.outcome import RankOutcome
from ml_assets.training.data.rowlog import last_taken
from ml_assets.training.telemetry.event_log import emit
from resources.job.events import TrainingEvent, read_events
from resources.job.job import ExitCode
from resources.job.recoveries import UNKNOWN_CAUSE

log = logging.getLogger(__name__)

_SIGNS = ("started", "metrics", "epoch", "checkpoint")


def report_end(end: RankOutcome, hung: Mapping[int, str], killed: list[int]) -> None:
    """The agent: all ranks are gone, and another attempt may follow.

    `end` explains those of the others; `hung` were ended for a reason, `killed` vanished without a word. All are
    ranks of the job.
    """
    cause = cause_of(end, hung, killed)
    if end.code not in (ExitCode.PREEMPTED, ExitCode.PEER_LOST):
        # Last in the log, which errors quote: the others say more, and later, of what this one did to them.
        log.error("%s", "\n".join([f"the first to fail: {cause}", *end.said]))
    if (known := ExitCode.of(end.code)) is not None and known.is_final:
        return
    with suppress(OSError):  # a full disk may be the cause
        emit("ended", 0, code=int(end.code), cause=cause)


def cause_of(end: RankOutcome, hung: Mapping[int, str], killed: list[int]) -> str:
    """Return in words why an attempt ended; see `report_end`."""
    if hung:
        first = min(hung)
        return f"rank {first} {hung[first]}"
    if end.code == ExitCode.PREEMPTED:
        return "it was asked to stop (SIGTERM), and saved"
    if end.code > 128:
        return f"rank {end.rank} was ended by {_signal(end.code - 128)}"
    if (
        killed and end.code == ExitCode.PEER_LOST
    ):  # a signal, or another code than 0, would have been noticed first
        return f"rank {killed[0]} ended without a word, as by os._exit(0)"
    if end.code == ExitCode.PEER_LOST:
        return "a rank of another node was lost"
    raised = f": {end.said[-1]}" if end.said else ""
    return f"rank {end.rank} ended with exit code {end.code}{raised}"


def recovery_of(folder: Path, attempt: Attempt) -> Callable[[int], None]:
    """Rank 0, before `attempt` trains: what to call with its first step done."""
    events = read_events(folder)
    before = read_attempts(folder)[attempt.number - 2]
    taken = last_taken(folder, before.number)
    signs = [event for event in events if event.kind in _SIGNS]
    # All of its events may be lost with its machine.
    last_sign = max([sign.time for sign in signs] + [taken.time, before.started])
    begun = max([sign.step for sign in _since_last_start(signs)] + [taken.steps])
    ends = [event for event in _since_last_start(events) if event.kind == "ended"]
    # Each node says how it ended; one that lost a peer knows no cause.
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
    return f"{name} (the kernel sends it where memory runs out)" if name == "SIGKILL" else name
