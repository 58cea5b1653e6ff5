"""Causes of ended attempts and the cost of each recovery, as events.

The agent reports why its ranks ended (`ended`). Rank 0 of the next attempt reports the cost of the recovery
(`recovered`) after its first step. Not here: reading these events (resources.job.recoveries), retrying (the launcher).
"""

import logging
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ml_assets.model.training.attempt.attempts import Attempt, read_attempts
from ml_assets.model.training.attempt.outcome import RankOutcome
from ml_assets.model.training.data.rowlog import last_taken
from ml_assets.model.training.telemetry.event_log import emit
from resources.job.events import TrainingEvent, read_events
from resources.job.job import ExitCode
from resources.job.recoveries import UNKNOWN_CAUSE

log = logging.getLogger(__name__)

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
    with suppress(OSError):  # a full disk may be the cause
        emit("ended", 0, code=int(end.code), cause=cause, place="" if hung else end.place)


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
