"""Observer of a drill's training: does the damage at the right moment, and reports what it led to."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob, TrainingResult
from resources.job.recoveries import Recovery, recoveries_of
from resources.launcher.local import LocalLauncher

_END_SECONDS = 10.0


class Witness:
    """Both callbacks of a launcher. `damage` is called once, in the launcher's thread, at the metrics of `at_step`, and
    in the attempt after it `mend`, at those of `mend_at_step`."""

    def __init__(
        self,
        at_step: int,
        damage: Callable[["Witness"], None],
        tell: Callable[[str], None],
        mend_at_step: int | None = None,
        mend: Callable[[], None] = lambda: None,
    ) -> None:
        self._at_step, self._damage, self._tell = at_step, damage, tell
        self._mend_at_step, self._mend = mend_at_step, mend
        self.events: list[TrainingEvent] = []
        self.log: list[str] = []
        self.damaged_at: float | None = None
        """Seconds since the epoch."""
        self.mended_at: float | None = None
        """Seconds since the epoch."""

    def run(self, job: TrainingJob, folder: Path, launcher: LocalLauncher) -> TrainingResult:
        """Train `job`; raises what the launcher raises."""
        return launcher.run(job, folder, self._on_event, self.log.append)

    @property
    def pids(self) -> list[int]:
        """Processes of the newest attempt's ranks."""
        return [event.values["pids"] for event in self.events if event.kind == "started"][-1]

    @property
    def recoveries(self) -> list[Recovery]:
        """Return the recoveries that the training recorded."""
        return recoveries_of(self.events)

    @property
    def attempts(self) -> int:
        """Return how often the ranks started to train."""
        return sum(event.kind == "started" for event in self.events)

    def seconds_to_next_step(self) -> float:
        """From the damage to the first step that was trained in the next attempt; infinite where there is none."""
        return self._seconds_to_step(self.damaged_at, attempt=2)

    def seconds_to_step_after_mending(self) -> float:
        """From `mend` to the first step of the attempt that it led to; infinite where there is none."""
        return self._seconds_to_step(self.mended_at, attempt=3)

    def _seconds_to_step(self, moment: float | None, attempt: int) -> float:
        starts = [number for number, event in enumerate(self.events) if event.kind == "started"]
        if moment is None or len(starts) < attempt:
            return float("inf")
        steps = (event.time for event in self.events[starts[attempt - 1] :] if event.kind == "metrics")
        return next(steps, float("inf")) - moment

    def end(self, *ranks: int, by: signal.Signals) -> None:
        """Send a signal to some of the ranks."""
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(self.pids[rank], by)

    def wait_until_ended(self) -> None:
        """Until no rank of this attempt runs any more; the launcher waits for this thread meanwhile."""
        deadline = time.monotonic() + _END_SECONDS
        while any(map(_runs, self.pids)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _on_event(self, event: TrainingEvent) -> None:
        self.events.append(event)
        self._tell(f"{event.kind} at step {event.step}")
        if event.kind == "metrics" and event.step >= self._at_step and self.damaged_at is None:
            self.damaged_at = time.time()
            self._damage(self)
        is_late = self._mend_at_step is not None and event.step >= self._mend_at_step
        if event.kind == "metrics" and is_late and self.attempts > 1 and self.mended_at is None:
            self.mended_at = time.time()
            self._mend()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
