"""Pace of the checkpoints: when the next save is due, by a fixed interval or by the measured one (`auto`).

The interval between two saves that loses the least time is about sqrt(2 · cost of a save · time between losses): Young,
"A first order approximation to the optimum checkpoint interval" (1974). Here in the higher-order form of Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps" (2006).

* The cost is the time that a save takes from the steps: the loop waits for the copy, and steps are slower while a
  thread writes. The length of the write costs nothing by itself.
* The time between losses counts this training and earlier ones of the pipeline, in time × workers. An end that saved
  first, such as an orderly preemption, loses no work and does not count.

The interval changes no weights, so it is not part of a training's fingerprint. Rank 0 alone decides when a save is due
by `auto`; the ranks agree on the step as for any save (process.group). Not here: the history of earlier trainings
(ml_assets.model.steps.loss_history).
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from ml_assets.model.training.attempt.attempts import worker_seconds
from ml_assets.model.training.telemetry.event_log import emit
from resources.job.errors import FINAL
from resources.job.events import TrainingEvent, read_events
from resources.job.job import ExitCode, LossHistory, TrainingJob

if TYPE_CHECKING:  # loads torch, which readers of the records do not need
    from ml_assets.model.training.process.group import Group

INTERVAL = "interval"
"""Kind of the event that reports a chosen interval."""
PRIOR_LOSS_WORKER_SECONDS = 1000 * 3600.0
"""Without a loss on record: worker seconds to the first one, a thousand hours. Careful: Kokolis et al., "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters" (2024) count 6.5 failures in 1000 days of a machine with
8 GPUs, one in 29,500 hours of a GPU. But machines of the cheap kind are taken back more often."""
PRIOR_SAVE_SECONDS = 1.0
"""Cost of a save that nobody measured."""
_FIRST_SAVE_SECONDS = 60.0
"""Longest time to the first save of an attempt if nobody measured one: it measures the cost."""
_TOLD_CHANGE = 0.1
"""Least change of the interval that is reported."""
_STEPS, _SAVES = 200, 9
"""Newest steps without a save whose mean time is the usual one; newest saves whose median cost counts."""
_WARM_UP = 5
"""First steps of an attempt, which are slower."""


def best_interval(save_seconds: float, loss_seconds: float) -> float:
    """Return the seconds from one save to the begin of the next that lose the least time, after Daly (2006).

    `save_seconds`: what a save costs. `loss_seconds`: mean time between losses; both above 0.
    """
    ratio = save_seconds / (2 * loss_seconds)
    if ratio >= 1:
        return loss_seconds
    root = math.sqrt(2 * save_seconds * loss_seconds)
    return root * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds


def loses_work(events: Iterable[TrainingEvent]) -> bool:
    """True if an attempt, by its events up to the next start, was lost with the steps after its last checkpoint.

    False if it finished, saved before it ended, or failed for good: then it ends by its own code, whose errors do not
    come at a rate.
    """
    own = list(events)
    if any(one.kind == "finished" for one in own):
        return False
    ends = [one for one in own if one.kind == "ended"]
    if any(one.values.get("code") in FINAL or one.values.get("place") for one in ends):
        return False
    if not ends or ends[-1].values.get("code") != ExitCode.PREEMPTED:
        return True
    # A cluster also says so of a node that vanished.
    saved = max((one.step for one in own if one.kind == "checkpoint"), default=0)
    return max((one.step for one in own if one.kind in ("metrics", "epoch")), default=0) > saved


@dataclass(frozen=True, kw_only=True)
class SaveInterval:
    """Chosen interval, with the measurements behind it: the values of an `interval` event."""

    checkpoint_interval_seconds: float
    checkpoint_cost_seconds: float
    """Prior if `is_save_measured` is False."""
    loss_interval_seconds: float
    """Mean time between losses of a worker of this training."""
    losses: int
    """Losses on record; at 0, the time between them is the prior, or the whole time without one."""
    is_save_measured: bool

    @classmethod
    def of(cls, event: TrainingEvent) -> Self:
        """Read the event."""
        return cls(**{name: event.values[name] for name in cls.__dataclass_fields__})

    def in_words(self) -> str:
        """Return a line for people."""
        cost = f"{1000 * self.checkpoint_cost_seconds:.3g} ms"
        lost = f"{self.loss_interval_seconds / 3600:.3g} hours"
        return (
            f"a checkpoint every {self.checkpoint_interval_seconds / 60:.3g} minutes: a save takes "
            f"{cost} from the steps ({'measured' if self.is_save_measured else 'assumed'}), and a loss of a worker is "
            f"expected every {lost} ({self.losses or 'none'} on record)"
        )


class SavePace:
    """Time of the next save by a fixed interval in seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._saved = clock()

    @property
    def is_due(self) -> bool:
        """True if the last save is longer ago than the interval."""
        return self._clock() - self._saved > self.seconds

    def stepped(self, step: int, *, is_saving: bool) -> None:
        """Take note of the end of a step. `is_saving`: a save still goes on beside the steps."""

    def leave_out(self) -> None:
        """Do not count the time since the last step to the next one: the ranks validated."""

    @contextmanager
    def saving(self) -> Generator[None]:
        """Begin a save in the block, which waits as long as the loop does."""
        yield
        self._saved = self._clock()


class MeasuredPace(SavePace):
    """Time of the next save by the interval that loses the least time. For rank 0.

    `losses` and `worker_seconds` are those on record, `workers` train now. `save_seconds` is None if nobody measured
    a save. `tell` gets each choice that differs from the last one by a tenth.
    """

    def __init__(
        self,
        *,
        losses: int,
        worker_seconds: float,
        save_seconds: float | None,
        workers: int,
        step: int,
        tell: Callable[[int, SaveInterval], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(math.inf, clock)
        self._losses, self._worker_seconds, self._workers = losses, worker_seconds, workers
        self._save_seconds = save_seconds
        self._tell = tell
        self._began = self._stepped = clock()
        self._steps_seen = 0
        self._usual: deque[float] = deque(maxlen=_STEPS)
        self._costs: deque[float] = deque(maxlen=_SAVES)
        self._write_seconds = 0.0
        """Duration of the newest write: an interval below it would make the loop wait."""
        self._blocked: float | None = None
        """Seconds for which the save that goes on has held the loop; None without one."""
        self._waited = False
        """True if the save that goes on waited for the one before, which says nothing about its own cost."""
        self._slower = 0.0
        """Seconds by which the steps beside it were longer than usual."""
        self._is_alone = False
        """True if the last step was beside no save."""
        self._choose(step)

    @property
    def is_due(self) -> bool:
        """See `SavePace.is_due`. A save that goes on is awaited beside the steps."""
        # Steps of an hour, or a write of one, would all be beside a save, and its cost would never be known.
        can_measure = self._is_alone or self._save_seconds is not None
        return self._blocked is None and can_measure and super().is_due

    def stepped(self, step: int, *, is_saving: bool) -> None:
        """Measure the step; at the end of a save, choose anew."""
        now = self._clock()
        seconds, self._stepped = now - self._stepped, now
        self._steps_seen += 1
        self._is_alone = self._blocked is None
        if self._blocked is None:
            if self._steps_seen > _WARM_UP:
                self._usual.append(seconds)
            return
        if self._usual:
            self._slower += seconds - statistics.fmean(self._usual)
        if is_saving:
            return
        if len(self._usual) >= _WARM_UP and not self._waited:
            # Noise may make the steps faster than usual; the wait is certain.
            self._costs.append(self._blocked + max(0.0, self._slower))
            self._save_seconds = max(statistics.median(self._costs), 1e-6)
            self._write_seconds = now - self._saved
            self._choose(step)
        self._blocked = None

    def leave_out(self) -> None:
        """See `SavePace.leave_out`."""
        self._stepped = self._clock()

    @contextmanager
    def saving(self) -> Generator[None]:
        """See `SavePace.saving`."""
        began, self._waited = self._clock(), self._blocked is not None
        with super().saving():
            yield
        self._stepped = self._clock()
        self._blocked, self._slower = self._stepped - began, 0.0

    def _choose(self, step: int) -> None:
        observed = self._worker_seconds + self._workers * (self._clock() - self._began)
        apart = observed / self._losses if self._losses else max(PRIOR_LOSS_WORKER_SECONDS, observed)
        between = max(apart / self._workers, 1e-3)
        cost = PRIOR_SAVE_SECONDS if self._save_seconds is None else self._save_seconds
        seconds = max(best_interval(cost, between), self._write_seconds)
        if self._save_seconds is None:
            seconds = min(seconds, _FIRST_SAVE_SECONDS)
        if math.isinf(self.seconds) or abs(seconds - self.seconds) > _TOLD_CHANGE * self.seconds:
            chosen = SaveInterval(
                checkpoint_interval_seconds=seconds,
                checkpoint_cost_seconds=cost,
                loss_interval_seconds=between,
                losses=self._losses,
                is_save_measured=self._save_seconds is not None,
            )
            self._tell(step, chosen)
            self.seconds = seconds


def pace_of(job: TrainingJob, folder: Path, group: "Group", step: int) -> SavePace:
    """Return the pace of this rank for the attempt that begins at `step`; its event `started` is in `folder`."""
    minutes = job.settings.checkpoint_every_minutes
    if minutes != "auto":
        return SavePace(60 * minutes)
    if not group.is_first:
        return SavePace(math.inf)
    history = job.loss_history or LossHistory(losses=0, worker_seconds=0.0, save_seconds=None)
    events = read_events(folder)
    told = [SaveInterval.of(one) for one in events if one.kind == INTERVAL]
    costs = [one.checkpoint_cost_seconds for one in told if one.is_save_measured]
    return MeasuredPace(
        losses=history.losses + sum(map(loses_work, _attempts(events)[:-1])),
        worker_seconds=history.worker_seconds + worker_seconds(folder),
        save_seconds=costs[-1] if costs else history.save_seconds,
        workers=group.world_size,
        step=step,
        tell=_emit,
    )


def _emit(step: int, chosen: SaveInterval) -> None:
    emit(INTERVAL, step, **asdict(chosen))


def _attempts(events: Sequence[TrainingEvent]) -> list[list[TrainingEvent]]:
    """Return the events of each attempt, from its start to the next start."""
    starts = [number for number, one in enumerate(events) if one.kind == "started"]
    return [list(events[a:b]) for a, b in zip(starts, [*starts[1:], len(events)], strict=True)]
