"""When ranks tell each other what only one of them may know: that it was asked to stop, that a save is due.

Telling after every step would cost each a round over the network. They do it so often instead that a request waits for
a tenth of a second, at steps that all of them know beforehand: rank 0 says, by its pace, when the next time is. Nobody
waits for the answer: it comes while the next step is computed, and counts after it.
"""

import time
from collections.abc import Callable

from ml_assets.training.group import Group

_EVERY_SECONDS = 0.1


class Agreement:
    """What all ranks have decided, of a training that goes on after `step` steps."""

    def __init__(self, group: Group, step: int) -> None:
        self._group = group
        self._last, self._next = step, step + 1
        self._began = time.monotonic()
        self._answer: Callable[[], list[float]] | None = None

    def after(self, step: int, *, stops: bool, saves: bool) -> tuple[bool, bool]:
        """Whether any rank was asked to stop, and whether any finds that a save is due: the same on every rank.

        Said of what was so a step ago, every so many steps.
        """
        if self._answer is not None:
            any_stops, any_saves, further = self._answer()
            self._answer, self._next = None, step + int(further)
            return any_stops > 0, any_saves > 0
        if step >= self._next:
            pace = (step - self._last) / max(time.monotonic() - self._began, 1e-6)
            proposed = max(1, int(pace * _EVERY_SECONDS)) if self._group.is_first else 0
            self._answer = self._group.begin_sum([stops, saves, proposed])
            self._last, self._began = step, time.monotonic()
        return False, False
