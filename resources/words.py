"""Parts of sentences for messages: lists of names, suggestions, counts, places, keys."""

import re
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import cast


def name_some(names: Collection[str], most: int = 5) -> str:
    """Return up to `most` names, joined by commas, and the number of the others."""
    named = ", ".join(islice(names, most))
    return named if len(names) <= most else f"{named} and {len(names) - most} more"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown `word`: the nearest of `known`, or all if none is near."""
    nearest = get_close_matches(word, sorted(known), n=1)
    return f": did you mean '{nearest[0]}'?" if nearest else f"; there are: {', '.join(sorted(known))}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 partition`, `365 partitions`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def in_bytes(number: int) -> str:
    """Return a size for a person, in powers of 1,000: `1.4 GB`, `3.2 MB`."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def whole_number(text: str) -> int | None:
    """Return the number that `text` writes in plain digits; None for another text.

    Python's `int` reads `1_000`, ` 1` and digits of other scripts, too: a mistyped word would name something else.
    """
    return int(text) if re.fullmatch("-?(0|[1-9][0-9]*)", text) and text != "-0" else None


def has_remedy(error: Exception) -> bool:
    """Return True for error types of this project, whose messages have a remedy. Any other error is a bug to show in
    full."""
    return type(error).__module__.split(".")[0] in ("ml_assets", "resources")


def place_of(error: Exception) -> str:
    """Return the end of a sentence about a failed import: file and line, in parentheses.

    Empty for a syntax error, whose message names them, and if the importing function itself raised.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    return "" if isinstance(error, SyntaxError) or len(own) < 2 else f" ({own[-1].filename}:{own[-1].lineno})"


def dotted(values: Mapping[str, object], below: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings with their keys: `{"a": {"b": 1}}` has the key `a.b`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from dotted(cast("dict[str, object]", value), f"{below}{name}.")
        else:
            yield f"{below}{name}", value
