"""The record of each time a training went on after an interruption, read from its events.

Standard library only. Here: what a record says, and finding them. Not here: writing them (ml_assets.training).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from resources.job.events import TrainingEvent

UNKNOWN_CAUSE = "the agent of the ranks, or its machine, was lost"
"""An attempt of which nobody was left to say how it ended."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One interruption that was survived."""

    attempt: int
    """The attempt that went on, from 2."""
    cause: str
    """Cause of the previous attempt's end."""
    seconds: float
    """From the last sign of training before to the next step that was trained."""
    from_step: int
    """The checkpoint it went on from."""
    steps_lost: int
    """Steps after that checkpoint which had begun, and were done again."""
    workers: tuple[int, int]
    """Before and after."""
    rows_repeated: int | None = None
    """Rows that the final weights learned from more than once in an epoch, because of this recovery: 0, or there is
    a bug. None while the training is not finished."""

    @classmethod
    def of(cls, event: TrainingEvent, repeated: int | None = None) -> Self:
        """From a `recovered` event."""
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
        """One line for a person."""
        rows = "" if self.rows_repeated is None else f", {self.rows_repeated} rows learned twice"
        before, after = self.workers
        workers = "" if before == after else f"with {after} workers instead of {before} "
        return (
            f"{self.cause}: went on {workers}from step {self.from_step} after {self.seconds:.1f} s, "
            f"{self.steps_lost} steps done again{rows}"
        )


def recoveries_of(events: Iterable[TrainingEvent]) -> list[Recovery]:
    """The recoveries of a job, by attempt, from all its events."""
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
    """Rows that an epoch left out, summed over epochs; None where the job was not interrupted or is not finished."""
    found = [event.values["rows_lost"] for event in events if "rows_lost" in event.values]
    return int(found[-1]) if found else None
