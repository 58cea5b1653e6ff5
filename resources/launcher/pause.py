"""Pause before the next attempt of a training whose attempts were ended before their first step."""

LONGEST_SECONDS = 300.0
_DOUBLINGS = 9
"""Doublings of the pause until it exceeds `LONGEST_SECONDS`."""


def pause_after(fruitless: int) -> float:
    """Return the pause in seconds after `fruitless` consecutive attempts that were preempted before their first step.

    Such attempts use no budget: any attempt may be preempted as it starts. But if one after the other is (a machine
    short of memory, pods of a higher priority), an immediate retry does not help. No pause after the first attempt,
    1 s after the second, then twice as long each time, at most 300 s.
    """
    return min(2.0 ** min(fruitless - 2, _DOUBLINGS), LONGEST_SECONDS) if fruitless > 1 else 0.0


def in_words(pause: float) -> str:
    """Return a clause on the pause for a log line; empty without a pause."""
    return f" in {pause:g} s: each of the last attempts ended before its first step" if pause else ""
