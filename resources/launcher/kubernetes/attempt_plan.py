"""Plan of the next attempt of a training, from the ends of those before. Pure functions.

An attempt has a fixed number of pods. One that finds fewer nodes than that gives way to a smaller one, and one that
finds room for more than it has to a larger one; any other is followed by one of its size. Not here: how an attempt
ended (classify), whether there is capacity (capacity_probe).
"""

from dataclasses import dataclass, replace

from resources.launcher.kubernetes.classify import AttemptEnd

GROW_SECONDS, LONGEST_GROW_SECONDS = 10.0, 1800.0
"""Before a training looks for room again: at first, and at most."""


@dataclass(frozen=True, kw_only=True)
class AttemptPlan:
    """One attempt among those of a training."""

    number: int
    """From 1; 0 before the first."""
    nodes: int
    """Its pods."""
    failures: int = 0
    """Attempts before it that used up budget."""
    fruitless: int = 0
    """Attempts in a row before it that were taken away before they had trained a step."""
    cause: str = ""
    """Cause of the interruption of the last attempt that trained, where its own agents may have been unable to report
    it.
    """
    grow_after: float = GROW_SECONDS
    """Seconds after its pods run before it looks for room for more: twice as many each time that pods did not fit."""

    def then(self) -> "AttemptPlan":
        """The attempt after this one."""
        return replace(self, number=self.number + 1)

    def ended(self, end: AttemptEnd, *, has_trained: bool) -> "AttemptPlan":
        """This attempt, with what follows for the next from its end."""
        if end.nodes is not None and end.nodes < self.nodes:  # it never trained: what interrupted is older
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
