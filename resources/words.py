"""Names for sentences that people read."""

from collections.abc import Collection
from itertools import islice


def name_some(names: Collection[str], most: int = 5) -> str:
    """All of a few; the first `most` of many, and how many more."""
    named = ", ".join(islice(names, most))
    return named if len(names) <= most else f"{named} and {len(names) - most} more"
