"""Agreement among ranks on facts that only some of them know: a stop was requested, or a save is due.

An exchange after every step would cost each step a network round trip. The ranks exchange about every 0.1 s instead, or
after each step if a step takes longer. Rank 0 computes the next step to exchange at, from the pace of the last steps,
and all ranks receive it. No rank waits for an answer: it arrives during the next step and applies after that step.
"""

import time
from collections.abc import Callable

from ml_assets.model.training.process.group import Group

_EVERY_SECONDS = 0.1
_MOST_STEPS = 20
"""Most steps between two exchanges, so that a training that suddenly slows down still notices a stop request."""


class Agreement:
    """Joint decisions in a loop that all ranks run equally often."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._steps = 0
        self._asked, self._next = 0, 1
        self._began = time.monotonic()
        self._answer: Callable[[], list[float]] | None = None

    def step(self, *, stops: bool, saves: bool) -> tuple[bool, bool]:
        """Return two flags: any rank was asked to stop, and any rank has a save due. Call it after each step.

        The answer is the same on every rank and describes the state one step ago. It is (False, False) between
        exchanges.
        """
        self._steps += 1
        any_stops = any_saves = False
        if self._answer is not None:
            stopping, saving, further = self._answer()
            any_stops, any_saves = stopping > 0, saving > 0
            self._answer, self._next = None, self._asked + int(further)
        if self._steps >= self._next and not any_stops:
            self._ask(stops, saves)
        return any_stops, any_saves

    def change_pace(self) -> None:
        """Prepare for steps of another kind: the next exchange follows the first of them. Drops a pending answer; a
        rank that was asked to stop repeats the request."""
        if self._answer is not None:
            self._answer()
            self._answer = None
        self._next = self._steps + 1
        self._asked, self._began = self._steps, time.monotonic()

    def _ask(self, stops: bool, saves: bool) -> None:
        seconds = max(time.monotonic() - self._began, 1e-6)
        fitting = int((self._steps - self._asked) / seconds * _EVERY_SECONDS)
        proposed = min(max(fitting, 1), _MOST_STEPS) if self._group.is_first else 0
        self._answer = self._group.begin_sum([stops, saves, proposed])
        self._asked, self._began = self._steps, time.monotonic()
