"""Files whose path matches a pattern: the days in their paths, the names that `*` leaves out, the listing of folders.

`*` leaves out names that are hidden, temporary or marks of another program. Each folder of this machine that the
pattern names is listed, links to folders included. One that cannot be listed ends the search: a list without its files
would look like a source without these rows. Not here: listings of S3, and the content of files (`file_source`).
"""

import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path

HIDDEN = (".", "_", "~", "#")
"""First characters of hidden names: `.2024-03-08.csv`, `._sales.csv`, `_SUCCESS`, `_temporary`, `~$sales.csv`,
`#sales.csv#`."""
UNFINISHED = (
    "~",
    ".tmp",
    ".temp",
    ".part",
    ".partial",
    ".filepart",
    ".crdownload",
    ".download",
    ".incomplete",
    ".inprogress",
    "._copying_",
    ".swp",
    ".bak",
)
"""Ends of names that a program gives to a file until it is whole, or to a copy; in small or capital letters."""


def is_left_out(path: str, pattern: str) -> bool:
    """Return True if a part of `path` that `*` matches is hidden or unfinished, or empty.

    `pattern` has as many parts between slashes as `path`. A mark that the pattern itself writes counts for nothing:
    `_exports/*.tmp` finds what it names.
    """
    return any(
        _marks(name) - _marks(part) or not name
        for name, part in zip(path.split("/"), pattern.split("/"), strict=True)
        if "*" in part
    )


def _marks(name: str) -> set[str]:
    first = {mark for mark in HIDDEN if name.startswith(mark)}
    return first | {f"…{mark}" for mark in UNFINISHED if name.lower().endswith(mark)}


DAY = {"%Y": r"(?P<Y>\d{4})", "%m": r"(?P<m>\d{2})", "%d": r"(?P<d>\d{2})"}
MOMENT = {**DAY, "%H": r"(?P<H>\d{2})"}


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as a listing shows it."""

    path: str
    version: tuple[object, ...]
    """Facts that change when the file is written again: ETag or identity and time, and size."""
    day: date | None = None
    """Day in its path, or hour; None if paths tell no day."""


def fixed_part(pattern: str) -> str:
    return re.split(r"[*%]", pattern, maxsplit=1)[0]


def each_once(files: Sequence[FoundFile]) -> list[FoundFile]:
    """Return files of this machine, each once: of several paths by links to one file of a day, the path without a link,
    or else the first."""
    alike: dict[tuple[date | None, tuple[object, ...]], list[FoundFile]] = defaultdict(list)
    for one in files:
        alike[one.day, one.version].append(one)
    kept = [one for some in alike.values() for one in (some if len(some) == 1 else _without_links(some))]
    return sorted(kept, key=lambda one: one.path)


def _without_links(files: Sequence[FoundFile]) -> list[FoundFile]:
    kept: dict[object, FoundFile] = {}
    for one in sorted(files, key=lambda one: os.path.realpath(one.path) != one.path):
        kept.setdefault(_identity(one.path), one)
    return list(kept.values())


def _identity(path: str) -> object:
    """Return what all paths of a file have in common: its path without links, or its number if it has several."""
    real = os.path.realpath(path)
    try:
        facts = Path(real).stat()
    except OSError:  # it is gone since the folder was listed, and reading it says so
        return real
    # Some file systems number all files alike, and each of these has one path.
    return (facts.st_dev, facts.st_ino) if facts.st_nlink > 1 else real


def of_day(pattern: str, day: date) -> str:
    for part in MOMENT if isinstance(day, datetime) else DAY:
        pattern = pattern.replace(part, day.strftime(part))
    return pattern


def expression_of(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a path with `*` and, for a day of any file, `%Y`, `%m`, `%d`, `%H`."""
    seen: set[str] = set()

    def part(piece: str) -> str:
        if piece == "*":
            return "[^/]*"
        if piece not in MOMENT:
            return re.escape(piece)
        if piece in seen:
            return f"(?P={piece[1]})"
        seen.add(piece)
        return MOMENT[piece]

    return re.compile("".join(map(part, re.split(r"(\*|%Y|%m|%d|%H)", pattern))))


def day_in(match: re.Match[str], *, is_hourly: bool) -> date | None:
    """Return the day in a path, or the hour; None if the path tells none, or one that is not in the calendar."""
    parts = match.groupdict()
    if "Y" not in parts:
        return None
    try:
        day = date(int(parts["Y"]), int(parts["m"]), int(parts["d"]))
        return datetime.combine(day, time(int(parts["H"])), UTC) if is_hourly else day
    except ValueError:
        return None


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
