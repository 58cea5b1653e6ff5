"""A module of an author that keeps something and computes something; functions import it in their body."""

from datetime import date
from typing import ClassVar

SEEN: list[date | int] = []
FACTOR = 3


class Rule:
    """A rule with a constant."""

    LIMITS: ClassVar[tuple[int, ...]] = (5, 6)

    def of(self, value: int) -> int:
        """Return a multiple."""
        return value * self.LIMITS[0]


def scale(value: int, by: int = 2) -> int:
    """Return a multiple."""
    return value * FACTOR * by
