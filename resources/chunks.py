"""A file that passes on what is written to it in chunks of one size.

Here: cutting. Not here: what becomes of a chunk (compressed by `ml_assets.training.checkpoint.byteshuffle`, sent by
`s3_upload`).
"""

import io
from typing import Any


class ChunkedFile(io.RawIOBase):
    """Collects up to `size` bytes; whoever inherits says where a full chunk goes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._chunk = bytearray()

    def write(self, data: Any) -> int:
        """Take all of `data`, anything with a buffer of bytes; their number."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            piece = view[at : at + self._size - len(self._chunk)]
            self._chunk += piece
            at += len(piece)
            if len(self._chunk) == self._size:
                self._pass_on(self._taken())
        return len(view)

    def writable(self) -> bool:
        """Always."""
        return True

    def _taken(self) -> bytearray:
        """Return the collected bytes and begin anew."""
        chunk, self._chunk = self._chunk, bytearray()
        return chunk

    def _pass_on(self, chunk: bytearray) -> None:
        raise NotImplementedError
