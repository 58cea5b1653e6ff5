"""Difference of a study from the study before it, in words: a change of the space must not begin a new study silently.

Not here: what decides a study (`pipeline.tune`).
"""

import re
from collections.abc import Mapping

_MOST_CHANGES = 8
"""Changes that a sentence lists."""
_DIGEST = re.compile(r"[0-9a-f]{32,}")


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return each fact that differs, with its value before and now, in the order of `now`; empty if none does."""
    names = [*now, *(name for name in before if name not in now)]
    changes = [
        _changed(name, before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)
    ]
    more = len(changes) - _MOST_CHANGES
    return "; ".join(changes[:_MOST_CHANGES]) + (f"; and {more} more" if more > 0 else "")


def _changed(name: str, before: str | None, now: str | None) -> str:
    if now is None:
        return f"{name} was removed ({_short(before or '')})"
    if before is None:
        return f"{name} is new ({_short(now)})"
    return f"{name} changed from {_short(before)} to {_short(now)}"


def _short(value: str) -> str:
    """Return a value with digests cut to the length that people compare."""
    return _DIGEST.sub(lambda digest: digest[0][:12], value)
