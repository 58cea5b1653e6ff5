"""Names that `*` in a path leaves out: files and folders that are hidden, temporary or marks of another program.

Not here: the search for files and the day in a path (`file_source`).
"""

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
