"""Pause of a training that gets nowhere before its next attempt. Used by every launcher."""

LONGEST_SECONDS = 300.0
_DOUBLINGS = 9
"""Until the longest pause."""


def pause_after(fruitless: int) -> float:
    """Seconds, after so many attempts in a row that were ended from outside before they had trained a step.

    Such attempts use no budget: any may be interrupted as it starts. But what ends one after the other (a machine short
    of memory, pods of a higher priority) is not to be asked again at once: nothing after the first, then twice as long
    each time.
    """
    return min(2.0 ** min(fruitless - 2, _DOUBLINGS), LONGEST_SECONDS) if fruitless > 1 else 0.0


def in_words(pause: float) -> str:
    """For the line that says what comes next; empty where that comes at once."""
    return f" in {pause:g} s: it was ended each time before it had trained a step" if pause else ""
