"""Figures of a report as text."""

import math


def number(value: float | None, *, signed: bool = False) -> str:
    """Format a measurement: four decimals, fewer if it is large; `–` if undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    return format(value, f"{'+' if signed else 'z'},.{decimals(value)}f").replace("-", "−")


def decimals(value: float) -> int:
    """Return the number of decimals with which `number` formats a value of this size."""
    size = abs(value)
    return 4 if size < 10 else 3 if size < 100 else 2 if size < 1000 else 0


def share(value: float | None, *, signed: bool = False) -> str:
    """Format a fraction in percent with two decimals; `–` if undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    return format(100 * value, "+.2f" if signed else ".2f").replace("-", "−") + "\u00a0%"


def count(number: int) -> str:
    """Format a whole number: `53,991`."""
    return f"{number:,}"
