"""Compression that loses nothing: bytes of equal significance together, then Zstandard.

Exponents of neighbouring weights are alike, their last bits are noise: side by side they hide each other. HDF5 calls
the step before the compressor `shuffle`. Not here: which checkpoints are compressed (saving).

A stream is a sequence of chunks: number of bytes, number of bytes stored (both 32 bits, little-endian), those bytes.
"""

# pyright: reportIncompatibleMethodOverride=false
# (the annotations of torch name files by what they are used for)

import io
import struct
from importlib import import_module
from typing import IO, Any, cast

import numpy as np
from torch.distributed.checkpoint._extension import StreamTransformExtension

from resources.chunks import ChunkedFile

_pa: Any = import_module("pyarrow")  # it ships no types
_CODEC: Any = _pa.Codec("zstd", compression_level=1)  # higher levels: a tenth of the speed for one percent
_WORD = 4
"""Bytes of a float32."""
_CHUNK = 4 << 20
_HEADER = struct.Struct("<II")


class ByteShuffle(StreamTransformExtension):
    """As torch's checkpoint writer takes it; readers find it by its name in the index."""

    @staticmethod
    def registry_name() -> str:
        """Its name there."""
        return "stream.byteshuffle-zstd"

    @staticmethod
    def from_descriptor(version: str) -> "ByteShuffle":
        """Return the codec that reads streams of a version; one version exists."""
        if version != "1":
            raise ValueError(
                f"version {version} of {ByteShuffle.registry_name()} is unknown to this software"
            )
        return ByteShuffle()

    def get_descriptor(self) -> str:
        """Name and version."""
        return f"{self.registry_name()}/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        """Return a stream that compresses into `output`; closing it flushes the rest."""
        return cast(IO[bytes], _Writer(output))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        """Return a stream of the bytes that were written."""
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
    """First bytes of all words, then second ones, …; what makes no whole word at the end stays there."""
    values = np.frombuffer(chunk, np.uint8)
    whole = len(values) // _WORD * _WORD
    return values[:whole].reshape(-1, _WORD).T.tobytes() + values[whole:].tobytes()


def _unshuffled(chunk: Any) -> bytes:
    values = np.frombuffer(chunk, np.uint8)
    whole = len(values) // _WORD * _WORD
    return values[:whole].reshape(_WORD, -1).T.tobytes() + values[whole:].tobytes()
