"""Memory of a process, as the kernel counts it. Not here: when to look."""

from pathlib import Path


def resident_kib(pid: int) -> dict[str, int]:
    """Return the resident memory of a process in KiB: `RssAnon`, which is private, and `RssShmem`, which is shared.

    Raises `FileNotFoundError` or `ProcessLookupError` for a process that is gone.
    """
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {words[0].rstrip(":"): int(words[1]) for words in lines if words[0].startswith("Rss")}
    return {"RssAnon": 0, "RssShmem": 0} | found
