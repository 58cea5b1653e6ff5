"""Contents as files named by their SHA-256: written once, never changed, read in place.

Belongs here: writing bytes to disk and checking them. Does not: the paths and branches that name them
(`refs.py`, `tree.py`).

A writer finishes and syncs a file in `tmp/`, then renames it to `objects/<first two digits>/<sha256>`. So a file
under its digest is complete even if its writer was killed. `make_durable` syncs the folders of a whole batch once,
before the commit that names its files. Not `resources.files.write_whole`: the name of a file is known only when its
last byte is written.
"""

import contextlib
import hashlib
import io
import os
import uuid
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import BinaryIO

from resources.disk import disk_of
from resources.files import purge, sync
from resources.lake import LakeError

_CHUNK = 1 << 20
"""Bytes copied per read."""
_LEFTOVER_AGE = 3600.0
"""Seconds after its last write until a temporary file of a dead process is purged. The age protects the files of
containers that share the folder but not the process table, whose processes look dead."""


class ObjectFiles:
    """Content-addressed files of one repository. Safe for any number of threads and processes."""

    def __init__(self, root: Path, *, synced: bool = True) -> None:
        """Use `root/objects` and `root/tmp`; create them if they are missing.

        `synced=False` does not wait for the disk. Use it for copies of content that is durable elsewhere.
        """
        self._root = root
        self._synced = synced
        self._objects = root / "objects"
        self._read: dict[str, tuple[int, ...]] = {}
        """SHA-256 → state of the file when its content last matched that digest."""
        self._temporary = root / "tmp"
        self._objects.mkdir(parents=True, exist_ok=True)
        self._temporary.mkdir(exist_ok=True)

    def path(self, sha256: str) -> Path:
        """Return the path for the content with this digest. The file may be missing."""
        return self._objects / sha256[:2] / sha256

    def write(self, source: Path | bytes | BinaryIO) -> tuple[str, int]:
        """Store the content of a file, of bytes or of the rest of a stream; return its SHA-256 and its size in bytes.

        Content that is already stored undamaged is not stored again. Raise `DiskFull`.
        """
        temporary = self._temporary / f"{os.getpid()}-{uuid.uuid4().hex}"
        try:
            with disk_of(self._root, temporary), _open(source) as stream, temporary.open("xb") as target:
                # Hash the copied bytes: a source that changes meanwhile cannot get a wrong name.
                sha256, size = _copy(stream, target)
                if self.is_whole(sha256, size):
                    return sha256, size
                target.flush()
                os.fchmod(target.fileno(), 0o444)
                if self._synced:
                    os.fsync(target.fileno())
            self._name(temporary, sha256)
        finally:
            temporary.unlink(missing_ok=True)
        return sha256, size

    def make_durable(self, contents: Iterable[tuple[str, int]]) -> None:
        """Sync the folders that hold these (SHA-256, size in bytes), so that the files survive a power cut.

        Raise `LakeError` if a file is missing or has another size. A power cut before the commit can lose a file.
        """
        folders: set[Path] = set()
        for sha256, size in contents:
            if not self.holds(sha256, size):
                raise LakeError(
                    f"Object {sha256} ({size} bytes) was put but is not under {self._objects}: lost before "
                    "it was committed, or deleted by hand. Put it again, then commit."
                )
            folders.add(self.path(sha256).parent)
        if folders:
            for folder in (self._root, self._objects, *sorted(folders)):
                sync(folder)

    def existing(self, sha256: str, size: int, name: str) -> Path:
        """Return the path of a file with this content. Raise `LakeError`, which names `name`, if it is missing or
        damaged."""
        if not self.is_whole(sha256, size):
            raise LakeError(
                f"{name} is committed ({size} bytes) but {self.path(sha256)} is missing or has other content. If the "
                "commit is older than ML_ASSETS_HISTORY_DAYS, `ml-assets gc` deleted it. Otherwise the store was "
                "changed by hand or its disk is damaged: restore the file from a backup, or put the same content again."
            )
        return self.path(sha256)

    def is_whole(self, sha256: str, size: int, *, touch: bool = False) -> bool:
        """True if the content with this digest is stored undamaged.

        Each process reads the file at its first call and again after the file changed, because a disk or a person may
        have damaged a validated partition. `touch` sets the file's modification time to now.
        """
        if not self.holds(sha256, size):
            return False
        path = self.path(sha256)
        try:
            before = _state_of(path)
            if self._read.get(sha256) != before:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                        return False
            if touch:
                os.utime(path)
            # The state before the read: a file that changed meanwhile is read again at the next call.
            self._read[sha256] = _state_of(path) if touch else before
        except FileNotFoundError:
            return False
        return True

    def purge(self) -> None:
        """Delete temporary files that dead processes left, an hour after their last write."""
        dead = (one for one in self._temporary.iterdir() if not _lives(one.name.partition("-")[0]))
        purge(dead, _LEFTOVER_AGE)

    def holds(self, sha256: str, size: int) -> bool:
        """True if a file for this digest exists and has this size in bytes. Does not read it."""
        try:
            return self.path(sha256).stat().st_size == size
        except FileNotFoundError:
            return False

    def _name(self, temporary: Path, sha256: str) -> None:
        final = self.path(sha256)
        try:
            temporary.rename(final)
        except FileNotFoundError:
            final.parent.mkdir(exist_ok=True)
            temporary.rename(final)


@contextlib.contextmanager
def _open(source: Path | bytes | BinaryIO) -> Generator[BinaryIO, None, None]:
    if isinstance(source, Path):
        with source.open("rb") as stream:
            yield stream
    else:
        yield io.BytesIO(source) if isinstance(source, bytes) else source


def _state_of(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _copy(source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        target.write(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def _lives(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
