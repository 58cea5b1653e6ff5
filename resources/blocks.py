"""A file that passes on what is written to it in blocks of one size.

Here: cutting. Not here: what becomes of a block (compressed by `ml_assets.training.checkpoint.byteshuffle`, sent by
`s3_upload`).
"""

import io
from typing import Any


class InBlocks(io.RawIOBase):
    """Collects up to `size` bytes; whoever inherits says where a full block goes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._block = bytearray()

    def write(self, data: Any) -> int:
        """Take all of `data`, anything with a buffer of bytes; their number."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            piece = view[at : at + self._size - len(self._block)]
            self._block += piece
            at += len(piece)
            if len(self._block) == self._size:
                self._pass_on(self._taken())
        return len(view)

    def writable(self) -> bool:
        """Always."""
        return True

    def _taken(self) -> bytearray:
        """Return the collected bytes and begin anew."""
        block, self._block = self._block, bytearray()
        return block

    def _pass_on(self, block: bytearray) -> None:
        raise NotImplementedError
