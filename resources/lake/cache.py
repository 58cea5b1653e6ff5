"""Local copies of what a server holds, by SHA-256: read in place, shared by all processes, bounded.

Belongs here: which copies there are and which have to go. Does not: where content comes from (`lakefs_content.py`)
or how a file becomes whole (`objects.py`).

The bound is kept over days, not at every moment: a path that was handed out stays for `kept` seconds, because
polars opens files when it collects, not when it is told of them.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import BinaryIO

from resources.files import locked
from resources.lake.objects import ObjectFiles

_LIMIT = 50 << 30
"""Bytes after which the copies that were not asked for longest are deleted."""
_KEPT = 24 * 3600.0
"""Seconds a copy stays after it was last asked for, however full the cache is."""
_TRIM_EVERY = 16
"""One process looks at the bound again after it added the sixteenth part of it, or a day later."""


class ContentCache:
    """Files named by the SHA-256 of their content. Safe for any number of threads and processes."""

    def __init__(self, root: Path, *, limit: int = _LIMIT, kept: float = _KEPT) -> None:
        """Use the folder `root`, making it if it is not there. `limit` in bytes, `kept` in seconds."""
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
        """Copy content here; return its SHA-256 and its size in bytes. A stream is read to its end."""
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
        """SHA-256 → file, of those of (SHA-256, size) that are here; each stays for `kept` seconds now."""
        found: dict[str, Path] = {}
        with locked(self.root / "lock", shared=True):
            for sha256, size in contents:
                if self._files.is_whole(sha256, size, touch=True):
                    found[sha256] = self._files.path(sha256)
        return found

    def digest_of(self, address: str) -> str | None:
        """The SHA-256 that was remembered for content at an address of a server, None if none was."""
        try:
            return self._note(address).read_text()
        except FileNotFoundError:
            return None

    def remember_digest(self, address: str, sha256: str) -> None:
        """Remember what the content at an address is; the address must never stand for other content."""
        note = self._note(address)
        writing = note.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        writing.write_text(sha256)
        writing.rename(note)

    def trim(self) -> None:
        """Delete the copies not asked for longest until a tenth of the bound is free again."""
        copies = sorted(_copies(self.root / "objects"))
        surplus = sum(size for _, size, _ in copies) - self._limit
        if surplus > 0:
            surplus += self._limit // 10
            with locked(self.root / "lock"):
                for _, size, copy in copies:
                    # Asked for since it was listed? Nobody can ask while we hold the lock.
                    if surplus <= 0 or _age(copy) < self._kept:
                        break
                    copy.unlink(missing_ok=True)
                    surplus -= size
        (self.root / "trimmed").touch()

    def _note(self, address: str) -> Path:
        return self._digests / hashlib.sha256(address.encode()).hexdigest()


def _copies(folder: Path) -> Generator[tuple[float, int, Path], None, None]:
    """(last asked for, bytes, file) of every copy."""
    for copy in folder.glob("*/*"):
        # Another process may trim at the same time.
        with contextlib.suppress(FileNotFoundError):
            stat = copy.stat()
            yield stat.st_mtime, stat.st_size, copy


def _age(file: Path) -> float:
    """Seconds since the last change, infinite where there is no file."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return float("inf")
