"""Exchange among ranks of what only one of them may know: that it was asked to stop, that a save is due.

Telling after every step would cost each a round over the network. They do it so often instead that a request waits for
a tenth of a second, or one step where those take longer, at steps that all of them know beforehand: rank 0 says, by its
pace, when the next time is. Nobody waits for the answer: it comes while the next step is computed, and counts after it.
"""

import time
from collections.abc import Callable

from ml_assets.training.process.group import Group

_EVERY_SECONDS = 0.1
_MOST_STEPS = 20
"""Between two rounds: a training that gets slower all at once listens all the same."""


class Agreement:
    """Decisions of all ranks in a loop that each rank runs equally often."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._steps = 0
        self._asked, self._next = 0, 1
        self._began = time.monotonic()
        self._answer: Callable[[], list[float]] | None = None

    def step(self, *, stops: bool, saves: bool) -> tuple[bool, bool]:
        """After a step: whether any rank was asked to stop, and whether any finds that a save is due: the same on every
        rank.

        Said of what was so a step ago, every so many steps.
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
        """Steps of another kind follow: ask after the first of them. An answer on its way is not heard: whoever was
        asked to stop says so again."""
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
