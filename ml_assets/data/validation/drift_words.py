"""A drift of a column in words: its mean, the value whose share moved most, or its missing values.

Not here: the decision (`table_drift.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Profile = Mapping[str, Any]

_MISSING = 0.05
"""Change of the share of rows without a value that is worth a word."""


def change_in_words(column: str, before: Sequence[Profile], now: Profile) -> str:
    """Return the largest change of a column, such as `mean 1,040 to 1,310`."""
    past = [one["columns"][column] for one in before if column in one["columns"]]
    rows = [one["rows"] for one in before if column in one["columns"]]
    here = now["columns"][column]
    said: list[str] = []
    was, is_now = sum(one["nulls"] for one in past) / max(1, sum(rows)), here["nulls"] / now["rows"]
    if abs(is_now - was) >= _MISSING:
        said.append(f"without a value {was:.1%} to {is_now:.1%}")
    known = [(one["mean"], n - one["nulls"]) for one, n in zip(past, rows, strict=True) if "mean" in one]
    if "mean" in here and known:
        mean = sum(value * n for value, n in known) / max(1, sum(n for _, n in known))
        said.append(f"mean {number_in_words(mean)} to {number_in_words(here['mean'])}")
    elif "distinct" in here:
        said.append(_value_in_words([one for one in past if "distinct" in one], here))
    return "; ".join(filter(None, said)) or "its values"


def _value_in_words(past: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> str:
    """Return the listed value whose share moved most."""
    before, current = _shares(past), _shares([now])
    moved = {value: current[value] - before[value] for value in {*before, *current}}
    if not moved:
        return ""
    value = max(moved, key=lambda one: (abs(moved[one]), str(one)))
    return f"{value!r} {before[value]:.1%} to {current[value]:.1%} of the rows"


def _shares(columns: Sequence[Mapping[str, Any]]) -> Counter[Any]:
    counts = Counter[Any]()
    for column in columns:
        for value, rows in column["values"]:
            counts[value] += rows
    total = sum(sum(rows for _, rows in column["values"]) + column["others"] for column in columns)
    return Counter({value: rows / total for value, rows in counts.items()})  # type: ignore[arg-type]


def number_in_words(value: float) -> str:
    """Return a mean with four digits, or all digits before the point."""
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
