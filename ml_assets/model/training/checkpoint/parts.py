"""Parts of a checkpoint: one state in the files of several ranks, in torch's distributed checkpoint format.

    __0_0.distcp    part of rank 0
    __1_0.distcp    part of rank 1
    .metadata       location of each tensor

Here: the share of each rank, writing together, and reading the whole on any number of ranks. Not here: the location of
the files and their commit (checkpoints), saving while training goes on (saving).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint._extension import ExtensionRegistry
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from ml_assets.model.training.checkpoint.byteshuffle import ByteShuffle
from ml_assets.model.training.checkpoint.hashed_files import Create, HashedFiles
from ml_assets.model.training.process.group import Group, PeerFailed

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
