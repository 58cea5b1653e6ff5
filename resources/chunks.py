"""File that passes on written bytes in chunks of one size.

Here: cutting. Not here: the use of a chunk (`ml_assets.model.training.checkpoint.parts` compresses it, `s3_upload`
sends it).
"""

import io
from typing import Any


class ChunkedFile(io.RawIOBase):
    """File that collects up to `size` bytes and then calls `_pass_on`, which subclasses implement."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._chunk = bytearray()

    def write(self, data: Any) -> int:
        """Take all bytes of `data`, any object with a buffer; return their number."""
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
        """Return True."""
        return True

    def _taken(self) -> bytearray:
        """Return the collected bytes and begin a new chunk."""
        chunk, self._chunk = self._chunk, bytearray()
        return chunk

    def _pass_on(self, chunk: bytearray) -> None:
        raise NotImplementedError
