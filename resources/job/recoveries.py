"""Records of a training's recoveries after interruptions, read from its events.

Standard library only. Here: the record, and reading it. Not here: writing the events (ml_assets.model.training).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from resources.job.events import TrainingEvent

UNKNOWN_CAUSE = "the agent of the ranks, or its machine, was lost"
"""Cause of an attempt whose agent could not report its end."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One interruption from which a training resumed."""

    attempt: int
    """Number of the attempt that resumed, from 2."""
    cause: str
    """Cause of the previous attempt's end."""
    seconds: float
    """Seconds from the last sign of training before the interruption to the next trained step."""
    from_step: int
    """Step of the checkpoint from which it resumed."""
    steps_lost: int
    """Steps after that checkpoint that had begun and were trained again."""
    workers: tuple[int, int]
    """Number of workers before and after."""
    rows_repeated: int | None = None
    """Rows that the final weights learned from more than once in an epoch because of this recovery. Any value but 0 is
    a bug. None while the training is not finished."""

    @classmethod
    def of(cls, event: TrainingEvent, repeated: int | None = None) -> Self:
        """Read a `recovered` event. `repeated`: value of `rows_repeated`."""
        values = event.values
        return cls(
            attempt=int(values["attempt"]),
            cause=str(values["cause"]),
            seconds=float(values["seconds"]),
            from_step=int(values["from_step"]),
            steps_lost=int(values["steps_lost"]),
            workers=(int(values["workers"][0]), int(values["workers"][1])),
            rows_repeated=repeated,
        )

    def in_words(self) -> str:
        """Return a line on the recovery, for people."""
        rows = "" if self.rows_repeated is None else f", {self.rows_repeated} rows trained twice"
        before, after = self.workers
        workers = "" if before == after else f"with {after} workers instead of {before} "
        return (
            f"{self.cause}: resumed {workers}from step {self.from_step} after {self.seconds:.1f} s, "
            f"{self.steps_lost} steps repeated{rows}"
        )


def recoveries_of(events: Iterable[TrainingEvent]) -> list[Recovery]:
    """Return the recoveries of a job, in order of their attempts, from all its events."""
    told: dict[int, TrainingEvent] = {}
    repeated: dict[int, int] = {}
    for event in events:
        if event.kind == "recovered":
            told[int(event.values["attempt"])] = event
        elif event.kind == "finished":
            found: dict[str, int] = event.values.get("rows_repeated", {})
            repeated = {int(attempt): int(rows) for attempt, rows in found.items()}
    return [Recovery.of(told[attempt], repeated.get(attempt)) for attempt in sorted(told)]


def rows_lost(events: Iterable[TrainingEvent]) -> int | None:
    """Return the rows that epochs left out, summed; None if the job was not interrupted or is not finished."""
    found = [event.values["rows_lost"] for event in events if "rows_lost" in event.values]
    return int(found[-1]) if found else None
