"""Files of this machine whose path matches a pattern: all of them, or an error.

Each folder that the pattern names is listed, links to folders included. One that cannot be listed ends the search:
a list without its files would look like a source without these rows. Not here: S3 (`file_source`), and which names are
left out (`file_names`).
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ml_assets.data.sources.file_names import is_left_out

State = tuple[object, ...]
"""Number of the file, time of its last change in nanoseconds, and bytes; empty for a link without a file."""


def files_like(pattern: str, expression: Callable[[str], re.Pattern[str]]) -> dict[str, State]:
    """Return path → state of all files on paths like `pattern`, an absolute path.

    `expression` gives the regular expression of a name between two slashes. Whether equal parts of the pattern are
    equal in a path is for the caller to check. Raises `OSError` for a folder that cannot be listed.
    """
    *folders, last = pattern.split("/")[1:]
    places = [Path("/")]
    for part in folders:
        places = [one for place in places for one in _below(place, part, expression) if _is_folder(one)]
    found = ((one, _state_in_listing(one)) for place in places for one in _below(place, last, expression))
    return {str(path): state for path, state in found if state is not None}


def state_of(path: Path) -> State:
    """Return what changes when a file is replaced. Raises `OSError`."""
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _below(place: Path, part: str, expression: Callable[[str], re.Pattern[str]]) -> Iterator[Path]:
    if "*" not in part and "%" not in part:
        yield place / part
        return
    matches = expression(part).fullmatch
    try:
        found = list(place.iterdir())
    except FileNotFoundError:  # deleted since its own folder was listed
        return
    yield from (one for one in found if matches(one.name) and not is_left_out(one.name, part))


def _is_folder(path: Path) -> bool:
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(errno.ENOENT, "a link to a folder that is not there", os.fspath(path))
    return path.is_dir()


def _state_in_listing(path: Path) -> State | None:
    """Return the state of a file; None for what is no file, or was deleted since the folder was listed."""
    try:
        return None if path.is_dir() else state_of(path)
    except FileNotFoundError:
        return () if path.is_symlink() else None
