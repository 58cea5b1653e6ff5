"""Plan of the next attempt of a training, from the ends of the previous attempts. Pure functions.

An attempt has a fixed number of pods. If fewer of them find nodes, a smaller attempt follows. If there is room for
more, a larger attempt follows. Otherwise the next attempt has the same size. Not here: the end of an attempt
(classify), the search for room (capacity_probe).
"""

from dataclasses import dataclass, replace

from resources.launcher.kubernetes.classify import AttemptEnd

GROW_SECONDS, LONGEST_GROW_SECONDS = 10.0, 1800.0
"""Seconds until a training searches for room again: the first time, and at most."""


@dataclass(frozen=True, kw_only=True)
class AttemptPlan:
    """Plan of one attempt, and the counts of the attempts before it."""

    number: int
    """Number of the attempt, from 1; 0 before the first."""
    nodes: int
    """Number of its pods."""
    failures: int = 0
    """Earlier attempts that failed and so used budget."""
    fruitless: int = 0
    """Consecutive attempts directly before it that were preempted before they trained a step."""
    cause: str = ""
    """Cause that interrupted the last attempt that trained, if its own agents may have been unable to report it."""
    grow_after: float = GROW_SECONDS
    """Seconds from the start of its pods to the search for room for more. Doubles each time that pods did not fit."""

    def then(self) -> "AttemptPlan":
        """Return the plan of the next attempt, with the next number."""
        return replace(self, number=self.number + 1)

    def ended(self, end: AttemptEnd, *, has_trained: bool) -> "AttemptPlan":
        """Return this plan with the size and the counts that follow from the end of the attempt."""
        if end.nodes is not None and end.nodes < self.nodes:  # it never trained: the older cause stays
            longer = min(2 * self.grow_after, LONGEST_GROW_SECONDS)
            return replace(self, nodes=end.nodes, grow_after=longer)
        is_failure = end.kind == "failed"
        return replace(
            self,
            nodes=end.nodes or self.nodes,
            failures=self.failures + is_failure,
            fruitless=self.fruitless + 1 if end.kind == "preempted" and not has_trained else 0,
            cause="" if is_failure else end.said,
        )
