"""Goodput: the wall time of a training as seven parts, from the clocks of its launcher and its workers.

    queue       nothing is reserved: the training waits for a place
    start_up    a place is held, and no step was trained yet; and the end after the last step
    data_wait   the loop waits for rows
    compute     steps and validations whose result was kept
    checkpoint  the loop waits for a checkpoint
    lost_work   steps that the next attempt repeated, as they came after its checkpoint
    recovery    a place is held again after an interruption, until the next step

The parts are stretches of one time line, so they sum to the wall time. Not here: the record (usage), prices.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from resources.job.events import TrainingEvent
from resources.job.reserved import Reserved

MARKS = {
    "started": ("attempt", "world_size", "ranks_began"),
    "metrics": ("data_loading_latency_ms",),
    "epoch": (),
    "checkpoint": ("checkpoint_duration_ms", "blocked_ms"),
    "recovered": ("seconds",),
    "finished": (),
    "failed": ("error",),
    "ended": ("code", "place", "rank", "cause"),
}
"""Kinds of events on the time line → the values that count."""


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds of each part."""

    queue: float = 0.0
    start_up: float = 0.0
    data_wait: float = 0.0
    compute: float = 0.0
    checkpoint: float = 0.0
    lost_work: float = 0.0
    recovery: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall time."""
        return sum(getattr(self, one.name) for one in fields(self))

    @property
    def share(self) -> float:
        """Share of the wall time that computed what was kept, 0–1."""
        return self.compute / self.seconds if self.seconds else 0.0

    @property
    def idle_share(self) -> float:
        """Share, 0–1, of the time with places in which nothing was computed that was kept; 0 without such time."""
        held = self.seconds - self.queue
        return 1.0 - self.compute / held if held > 0 else 0.0


class LaunchSpan(NamedTuple):
    """Time from the begin of a launch to its end, or to its last record. Seconds since the epoch, UTC."""

    began: float
    until: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Time in which one attempt trained."""

    started: TrainingEvent
    marks: Sequence[TrainingEvent]
    """Events of the attempt, oldest first."""
    last_sign: float
    """Time of its last known step."""

    @property
    def is_finished(self) -> bool:
        """True if it trained the last step."""
        return any(one.kind == "finished" for one in self.marks)

    def kept(self, later: Sequence["Trained"], *, is_running: bool) -> float:
        """Return the newest step that counts; infinity if all do. `later`: the attempts after it."""
        if later:
            return min(one.started.step for one in later)
        if self.is_finished or is_running:
            return math.inf
        saved = [one.step for one in self.marks if one.kind == "checkpoint"]
        return max(saved, default=self.started.step)

    def kept_until(self, step: float) -> float:
        """Return the time at which `step` was done and its checkpoint no longer held up the loop."""
        if math.isinf(step):
            ends = [one.time for one in self.marks if one.kind == "finished"]
            return ends[0] if ends else self.last_sign
        if step <= self.started.step:
            return self.started.time
        for one in self.marks:
            if one.kind == "checkpoint" and one.step == step:
                return one.time - _seconds(one, "checkpoint_duration_ms") + _seconds(one, "blocked_ms")
        # Its event was lost with a machine: the newest report before that step is the best known.
        before = [one.time for one in self.marks if one.kind in ("metrics", "epoch") and one.step <= step]
        return max([self.started.time, *before])

    def data_wait(self, step: float) -> float:
        """Return the seconds that the loop waited for rows, up to `step`.

        Steps after the last report count with the mean of the others. A script's own loop reports none.
        """
        seconds, done = 0.0, self.started.step
        last = done
        for one in self.marks:
            if one.step > step:
                continue
            last = max(last, one.step)
            if one.kind == "metrics" and one.step > done:
                seconds += _seconds(one, "data_loading_latency_ms") * (one.step - done)
                done = one.step
        measured = done - self.started.step
        return seconds * (last - self.started.step) / measured if measured else 0.0

    def checkpoint(self, step: float) -> float:
        """Return the seconds that the loop waited for checkpoints up to that of `step`."""
        return sum(
            _seconds(one, "blocked_ms") for one in self.marks if one.kind == "checkpoint" and one.step <= step
        )


def mark_of(event: TrainingEvent) -> TrainingEvent | None:
    """Return what counts of an event; None if it has no place on the time line."""
    names = MARKS.get(event.kind)
    if names is None:
        return None
    values = {name: event.values[name] for name in names if name in event.values}
    return TrainingEvent(kind=event.kind, step=event.step, time=event.time, values=values)


def trained_of(marks: Iterable[TrainingEvent]) -> list[Trained]:
    """Return the times in which attempts trained, oldest first."""
    in_order = sorted(set_of(marks), key=lambda one: one.time)
    starts = [number for number, one in enumerate(in_order) if one.kind == "started"]
    found: list[Trained] = []
    ends = [*starts[1:], len(in_order), len(in_order)]
    for first, end, next_end in zip(starts, ends, ends[1:], strict=False):
        own = in_order[first:end]
        signs = [one.time for one in own if one.kind not in ("ended", "recovered")]
        # The next attempt read the log of the rows that this attempt took, which is newer than its events.
        after = [one for one in in_order[end:next_end] if one.kind == "recovered"][:1]
        signs += [one.time - float(one.values["seconds"]) for one in after]
        found.append(Trained(started=in_order[first], marks=own, last_sign=max(signs)))
    return found


def set_of(marks: Iterable[TrainingEvent]) -> list[TrainingEvent]:
    """Return marks without those that were told again, and each attempt's start once."""
    known: set[tuple[str, float]] = set()
    found: list[TrainingEvent] = []
    for one in marks:
        identity = (one.kind, one.values.get("attempt", one.time))
        if identity not in known:
            known.add(identity)
            found.append(one)
    return found


def goodput_of(
    spans: Iterable[LaunchSpan], held: Iterable[Reserved], marks: Iterable[TrainingEvent]
) -> Goodput:
    """Return the parts of a training's wall time.

    `spans`: its launches. `held`: the newest reading of each attempt. `marks`: see `mark_of`.
    """
    trained = trained_of(marks)
    attempts = sorted(held, key=lambda one: one.began)
    line = _TimeLine()
    in_order = sorted(spans)
    for place, span in enumerate(in_order):
        next_began = in_order[place + 1].began if place + 1 < len(in_order) else math.inf
        line.move(span.began)
        while attempts and attempts[0].began < next_began:
            one = attempts.pop(0)
            if one.began > span.until:  # a cluster began it without a launcher, which had waited until then
                line.take("queue", span.until)
                line.move(one.began)
            line.take("queue", one.began)
            until = attempts[0].began if attempts else math.inf
            here = [it for it in trained if one.began <= it.started.time < until]
            _take_attempt(line, one, here[:1], trained)
        is_over = bool(trained) and trained[-1].is_finished
        line.take("start_up" if is_over else "queue", span.until)
    return Goodput(**line.parts)


class _TimeLine:
    """Clock that only moves forward, and the parts of the time that it passed."""

    def __init__(self) -> None:
        self.parts = {one.name: 0.0 for one in fields(Goodput)}
        self._now = -math.inf

    def move(self, until: float) -> None:
        """Leave out the time until then."""
        self._now = max(self._now, until)

    def take(self, part: str, until: float) -> float:
        """Count the time until then to a part, and return it."""
        seconds = max(0.0, until - self._now)
        self.parts[part] += seconds
        self._now = max(self._now, until)
        return seconds


def _take_attempt(
    line: _TimeLine, held: Reserved, own: Sequence[Trained], trained: Sequence[Trained]
) -> None:
    """Count the time in which an attempt held places. `own`: the time in which it trained, if it did."""
    is_first = not trained or held.began <= trained[0].started.time
    beginning = "start_up" if is_first else "recovery"
    if not own:
        line.take(beginning, held.at)
        return
    (one,) = own
    later = trained[trained.index(one) + 1 :]
    step = one.kept(later, is_running=held.places > 0)
    line.take(beginning, min(one.started.time, held.at))
    kept = line.take("compute", min(one.kept_until(step), held.at))
    waits = {"checkpoint": one.checkpoint(step), "data_wait": one.data_wait(step)}
    for part, seconds in waits.items():
        seconds = min(seconds, kept)
        kept -= seconds
        line.parts[part] += seconds
        line.parts["compute"] -= seconds
    line.take("lost_work", min(one.last_sign, held.at))
    line.take("start_up" if one.is_finished else "recovery", held.at)


def _seconds(event: TrainingEvent, name: str) -> float:
    return float(event.values.get(name, 0.0)) / 1000
