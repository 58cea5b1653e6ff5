"""Archives of a shard, for blobs of 10 KB and more: a tar file beside the Arrow file of the same rows.

An archive holds one uncompressed member per row, in the order of the table. A member is named by the row's number
in the table. Any tool that reads tar reads it. The Arrow file holds the first byte and the length of each row's blob,
so nobody has to search the archive. Not here: choosing rows (row_choice), decoding a blob (the pipeline's `decode`).
"""

import mmap
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

MEMBER_BYTES = 2 * tarfile.BLOCKSIZE
"""Approximate bytes that tar adds to a member: a header, and zeros up to the next block."""
_END = bytes(2 * tarfile.BLOCKSIZE)


def member_name(row: int) -> str:
    """Return the name of a row's blob in an archive."""
    return f"{row:012d}.bin"


class Blobs:
    """Stored blobs of some rows. A blob is read only when it is requested."""

    def __init__(self, archives: Sequence[mmap.mmap], places: NDArray[np.int64]) -> None:
        """Take mapped archives and `places` `[rows, 3]`: index in `archives`, first byte, number of bytes.

        Raises `ValueError` if an archive ends before its last blob.
        """
        self.archives, self.places = tuple(archives), places
        sizes = np.array([len(archive) for archive in archives], dtype=np.int64)
        if len(places) and (places[:, 1] + places[:, 2] > sizes[places[:, 0]]).any():
            raise ValueError("its archive ends before the last blob does")

    @classmethod
    def map(cls, path: Path, places: NDArray[np.int64]) -> Self:
        """Map one archive; `places` `[rows, 2]`: first byte and number of bytes. Raises `OSError`, `ValueError`."""
        with path.open("rb") as file:
            archive = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls([archive], np.insert(places, 0, 0, axis=1))

    @classmethod
    def concatenate(cls, parts: Iterable[Self]) -> Self:
        """Join the blobs of all `parts`, in order."""
        archives: list[mmap.mmap] = []
        places: list[NDArray[np.int64]] = []
        for part in parts:
            places.append(part.places + np.array([len(archives), 0, 0]))
            archives += part.archives
        return cls(archives, np.concatenate(places))

    def reordered(self, rows: NDArray[np.int64]) -> Self:
        """Return the blobs of these rows, 0-based, in their order."""
        return type(self)(self.archives, self.places[rows])

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, row: int) -> bytes:
        """Return the blob of a row, 0-based."""
        return next(self.take(np.array([row])))

    def take(self, rows: NDArray[np.int64]) -> Iterator[bytes]:
        """Yield the blobs of these rows, in their order."""
        for archive, first, size in self.places[rows].tolist():
            yield self.archives[archive][first : first + size]


class ArchiveWriter:
    """Writer of one archive. The same blobs give the same bytes. The file is open only while blobs are added."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: list[tuple[int, int]] = []
        self._end = 0
        path.touch()

    def add(self, rows: Iterable[int], contents: Iterable[bytes]) -> None:
        """Append the blobs of these rows of the table."""
        with self._path.open("ab") as file:
            for row, content in zip(rows, contents, strict=True):
                member = tarfile.TarInfo(member_name(row))  # without time and owner
                member.size = len(content)
                header = member.tobuf(tarfile.USTAR_FORMAT)
                padding = -len(content) % tarfile.BLOCKSIZE
                file.write(header)
                file.write(content)
                file.write(bytes(padding))
                self._places.append((self._end + len(header), len(content)))
                self._end += len(header) + len(content) + padding

    def finish(self) -> Blobs:
        """End the archive and return its blobs."""
        with self._path.open("ab") as file:
            file.write(_END)
        return Blobs.map(self._path, np.array(self._places, dtype=np.int64).reshape(-1, 2))
