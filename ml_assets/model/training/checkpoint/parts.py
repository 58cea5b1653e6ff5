"""Parts of a checkpoint: one state in the files of several ranks, in torch's distributed checkpoint format.

    __0_0.distcp    part of rank 0
    __1_0.distcp    part of rank 1
    .metadata       location of each tensor

Each file is written once, in order, and hashed on the way. Compression is lossless: it groups bytes of equal
significance, then compresses with Zstandard. Exponents of neighbouring weights are alike, and their last bits are
noise; interleaved, the noise hides the likeness. HDF5 calls the grouping step `shuffle`. A compressed stream is a
sequence of chunks. Each has its size, its compressed size (both 32 bits, little-endian), and its bytes.

Here: the share of each rank, writing together, and reading the whole on any number of ranks. Not here: the location of
the files and their commit (checkpoints), saving while training goes on (saving).
"""

# pyright: reportIncompatibleMethodOverride=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch's annotations give file arguments other names)
# (the annotations of torch are partial)

import hashlib
import io
import os
import struct
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path, PurePath
from typing import IO, Any, cast

import numpy as np
import torch
from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from ml_assets.model.training.process.group import Group, PeerFailed
from resources.files import ChunkedFile

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


Create = Callable[[str], AbstractContextManager[IO[bytes]]]
"""Name → a file for writing in order; complete and durable after the block, absent if the block raises."""


class HashedFiles(FileSystemBase):
    """File system for torch's checkpoint writer that hashes each file."""

    def __init__(self, create: Create) -> None:
        self._create = create
        self.sha256: dict[str, str] = {}
        """Name of each written file → 64 hex digits."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        """Open a file for writing. Raises the errors of `create`."""
        # Torch writes the index as `.tmp` and renames it. Here, no file appears before it is complete anyway.
        name = PurePath(path).name.removesuffix(".tmp")
        with self._create(name) as file:
            stream = _Hashed(file)
            try:
                yield stream
            except RuntimeError:
                # Torch hides the first error: after a full disk it reports a wrong position in the file.
                if stream.failure is not None:
                    raise stream.failure from None
                raise
        self.sha256[name] = stream.sha256.hexdigest()

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        """Return the name alone; this file system has no folders."""
        return suffix

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return False: the folder is empty when a checkpoint begins."""
        return False

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Do nothing: the file already has its final name."""

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: the caller has made the folder."""

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Return `path`: there is only one folder."""
        return path

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: there is no older file to replace."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Accept any id: there is only one folder."""
        return True


class _Hashed(io.RawIOBase):
    """Stream that hashes the bytes it passes on."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._position = 0
        self.sha256 = hashlib.sha256()
        self.failure: Exception | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data)
        try:
            self._file.write(view)
        except Exception as error:
            self.failure = self.failure or error
            raise
        self.sha256.update(view)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True


INDEX = ".metadata"

State = dict[str, dict[str, Any]]
"""Section (`parameters`, `optimizer`, …) → name → tensor or plain value."""


def share_of(
    state: State, alike: Sequence[str], rank: int, world_size: int, own: Sequence[str] = ()
) -> State:
    """Return the part of `state` that `rank` writes: its shards, sections that are its `own`, and a share of the
    sections that are equal on all ranks (`alike`). Rank 0 writes all other sections.

    Equal values are divided by size, the largest first, so that all ranks copy and write about as much. The division
    depends on sizes and names alone, which every rank knows.
    """
    mine: State = {section: {} for section in state}
    loads = [0] * world_size
    to_deal: list[tuple[int, str, str]] = []
    for section, values in state.items():
        for name, value in values.items():
            if isinstance(value, DTensor) or section in own or (section not in alike and rank == 0):
                mine[section][name] = value
            elif section in alike:
                to_deal.append((-value.nbytes if isinstance(value, torch.Tensor) else 0, section, name))
    for size, section, name in sorted(to_deal):
        writer = loads.index(min(loads))
        loads[writer] -= size
        if writer == rank:
            mine[section][name] = state[section][name]
    return mine


def write(share: State, create: Create, group: Group, *, compressed: bool = False) -> dict[str, str]:
    """Write this rank's share together with all ranks of `group`, into files from `create`; return their names and
    SHA-256.

    Returns after all ranks have written. Raises the error of `create` on the rank that failed, `PeerFailed` on the
    others.
    """
    files = HashedFiles(create)
    writer = FileSystemWriter("", sync_files=False, _extensions=[ByteShuffle()] if compressed else None)
    writer.fs = cast(Any, files)
    try:
        save(share, storage_writer=writer, process_group=group.process_group)
    except CheckpointException as error:
        if group.rank not in error.failures:
            raise PeerFailed(1) from error
        raise error.failures[group.rank][0] from error
    return files.sha256


Like = Callable[[str, str], torch.Tensor | None]
"""(section, name) → a tensor with the layout that the value shall have; None if this rank does not need the value."""


def read(folder: Path, like: Like | None = None) -> State:
    """Return the whole state, with tensors on the CPU; with `like`, only the values and shards that this rank needs."""
    known = ExtensionRegistry()
    known.register(ByteShuffle)
    reader = FileSystemReader(folder, known)
    index = reader.read_metadata()
    flat: dict[str, Any] = {}
    for name, facts in index.state_dict_metadata.items():
        if not isinstance(facts, TensorStorageMetadata):
            flat[name] = None
            continue
        model = torch.empty(0) if like is None else like(*index.planner_data[name])
        if isinstance(model, DTensor) and model.shape == facts.size:
            flat[name] = torch.empty_like(model, dtype=facts.properties.dtype)
        elif model is not None:
            flat[name] = torch.empty(facts.size, dtype=facts.properties.dtype)
    with warnings.catch_warnings():
        # Reading alone is intended: the needs of this rank must not depend on the other ranks.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(flat, storage_reader=reader, no_dist=True)
    state: State = {}
    for name, value in flat.items():
        section, inner = index.planner_data[name]
        state.setdefault(section, {})[inner] = value
    return state
