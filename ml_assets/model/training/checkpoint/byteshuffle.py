"""Lossless compression of checkpoints: group bytes of equal significance, then compress with Zstandard.

Exponents of neighbouring weights are alike, and their last bits are noise; interleaved, the noise hides the likeness.
HDF5 calls the grouping step `shuffle`. Not here: the choice of checkpoints to compress (saving).

A stream is a sequence of chunks. Each has its size, its compressed size (both 32 bits, little-endian), and its bytes.
"""

# pyright: reportIncompatibleMethodOverride=false
# (torch's annotations give file arguments other names)

import io
import struct
from importlib import import_module
from typing import IO, Any, cast

import numpy as np
from torch.distributed.checkpoint._extension import StreamTransformExtension

from resources.chunks import ChunkedFile

_pa: Any = import_module("pyarrow")  # it ships no types
_CODEC: Any = _pa.Codec("zstd", compression_level=1)  # higher levels: a tenth of the speed for 1% of the size
_WORD = 4
"""Bytes of a float32."""
_CHUNK = 4 << 20
_HEADER = struct.Struct("<II")


class ByteShuffle(StreamTransformExtension):
    """Compression extension of torch's checkpoint writer. Readers look it up by its name in the index."""

    @staticmethod
    def registry_name() -> str:
        """Return the name under which readers look the extension up."""
        return "stream.byteshuffle-zstd"

    @staticmethod
    def from_descriptor(version: str) -> "ByteShuffle":
        """Return the codec that reads streams of a version; only version 1 exists."""
        if version != "1":
            raise ValueError(f"this software cannot read version {version} of {ByteShuffle.registry_name()}")
        return ByteShuffle()

    def get_descriptor(self) -> str:
        """Return name and version."""
        return f"{self.registry_name()}/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """Return a stream that compresses into `output`; closing it flushes the rest."""
        return cast(IO[bytes], _Writer(output))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """Return a stream of the decompressed bytes."""
        whole = io.BytesIO()
        while header := input.read(_HEADER.size):
            size, stored = _HEADER.unpack(header)
            whole.write(_unshuffled(_CODEC.decompress(input.read(stored), size)))
        whole.seek(0)
        return whole


class _Writer(ChunkedFile):
    def __init__(self, output: IO[bytes]) -> None:
        super().__init__(_CHUNK)
        self._output = output

    def close(self) -> None:
        if not self.closed:
            if self._chunk:
                self._pass_on(self._taken())
            self._output.close()
        super().close()

    def _pass_on(self, chunk: bytearray) -> None:
        stored: Any = _CODEC.compress(_shuffled(chunk))
        self._output.write(_HEADER.pack(len(chunk), stored.size))
        self._output.write(memoryview(stored))


def _shuffled(chunk: bytearray) -> bytes:
    """Return the first bytes of all words, then the second bytes, and so on; an incomplete last word stays at the
    end."""
    values = np.frombuffer(chunk, np.uint8)
    whole = len(values) // _WORD * _WORD
    return values[:whole].reshape(-1, _WORD).T.tobytes() + values[whole:].tobytes()


def _unshuffled(chunk: Any) -> bytes:
    values = np.frombuffer(chunk, np.uint8)
    whole = len(values) // _WORD * _WORD
    return values[:whole].reshape(_WORD, -1).T.tobytes() + values[whole:].tobytes()
