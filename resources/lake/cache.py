"""Local copies of a server's objects, by SHA-256: read in place, shared by all processes, bounded in size.

Belongs here: finding copies and deleting old ones. Does not: downloading content (`lakefs_content.py`) or writing
files (`objects.py`).

The cache may exceed its bound for a day. A file stays for `kept` seconds after its path was returned, because
polars opens a file only when it collects, long after it received the path.
"""

import contextlib
import hashlib
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import BinaryIO

from resources.files import locked, whole_file
from resources.lake.objects import ObjectFiles

_LIMIT = 50 << 30
"""Bytes above which the cache deletes the least recently used copies."""
_KEPT = 24 * 3600.0
"""Seconds for which a copy stays after its last use, even if the cache is full."""
_TRIM_EVERY = 16
"""A process trims the cache after it added 1/16 of the bound, and at its start if the last trim is a day old."""


class ContentCache:
    """Files named by the SHA-256 of their content. Safe for any number of threads and processes."""

    def __init__(self, root: Path, *, limit: int = _LIMIT, kept: float = _KEPT) -> None:
        """Use the folder `root`; create it if it is missing. `limit` in bytes, `kept` in seconds."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._limit = limit
        self._kept = kept
        self._files = ObjectFiles(root, synced=False)
        self._files.purge()
        self._digests = root / "digests"
        self._digests.mkdir(exist_ok=True)
        self._added = 0
        self._counting = threading.Lock()
        if _age(root / "trimmed") > _KEPT:
            self.trim()

    def keep(self, source: Path | bytes | BinaryIO) -> tuple[str, int]:
        """Copy content into the cache; return its SHA-256 and its size in bytes. Reads a stream to its end."""
        sha256, size = self._files.write(source)
        with self._counting:
            self._added += size
            is_due = self._added > self._limit / _TRIM_EVERY
            if is_due:
                self._added = 0
        if is_due:
            self.trim()
        return sha256, size

    def find(self, contents: Iterable[tuple[str, int]]) -> dict[str, Path]:
        """Return SHA-256 → file for those (SHA-256, size) that are cached. Each file stays for `kept` seconds."""
        found: dict[str, Path] = {}
        with locked(self.root / "lock", shared=True):
            for sha256, size in contents:
                if self._files.is_whole(sha256, size, touch=True):
                    found[sha256] = self._files.path(sha256)
        return found

    def digest_of(self, address: str) -> str | None:
        """Return the SHA-256 that `remember_digest` stored for an address, or None."""
        try:
            return self._note(address).read_text()
        except FileNotFoundError:
            return None

    def remember_digest(self, address: str, sha256: str) -> None:
        """Store the SHA-256 of the content at a server's address. The content of that address must never change."""
        with whole_file(self._note(address)) as writing:
            writing.write_text(sha256)

    def trim(self) -> None:
        """Delete the least recently used copies, if the bound is exceeded, until a tenth of it is free."""
        copies = sorted(_copies(self.root / "objects"))
        surplus = sum(size for _, size, _ in copies) - self._limit
        if surplus > 0:
            surplus += self._limit // 10
            with locked(self.root / "lock"):
                for _, size, copy in copies:
                    # Another process may have used this copy since the listing. None can while we hold the lock.
                    if surplus <= 0 or _age(copy) < self._kept:
                        break
                    copy.unlink(missing_ok=True)
                    surplus -= size
        (self.root / "trimmed").touch()

    def _note(self, address: str) -> Path:
        return self._digests / hashlib.sha256(address.encode()).hexdigest()


def _copies(folder: Path) -> Generator[tuple[float, int, Path], None, None]:
    """Yield (time of last use, bytes, file) of every copy."""
    for copy in folder.glob("*/*"):
        # Another process may trim at the same time.
        with contextlib.suppress(FileNotFoundError):
            stat = copy.stat()
            yield stat.st_mtime, stat.st_size, copy


def _age(file: Path) -> float:
    """Return the seconds since the last change of a file, or infinity if it is missing."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
