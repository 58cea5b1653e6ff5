"""Saving while training goes on: the loop waits only for a copy in memory, and a thread does the rest.

A state holds values by name, so that they fit any later layout over ranks:

    parameters    name → value
    optimizer     name of a parameter / key of its optimizer state → value
    compression   name of a parameter / key of its gradient compression's state → value; only with compression
    average       name of a parameter → its moving average; only with `training.average`
    buffers       other values of the model, name → value
    average_buffers   name of a buffer → its moving average
    progress      position of the training

The first four are equal on all ranks, or shards of a whole. The others come from rank 0. Values that follow from the
job (learning rate, weight decay) or from the position (random numbers) are left out.

A copy uses the same memory for each save: fresh memory costs four times as much. Plain tensors are copied directly, at
the speed of memory. Sharded tensors go through torch's stager, measured at 1.3 to 1.8 times that time.

The thread replaces that of `torch.distributed.checkpoint.async_save` and also commits the checkpoint: rows first, then
the parts of all ranks, the commit marker last. Its collectives use their own connections, since gradients use the
default ones. Not here: files (parts, checkpoints).
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)
# `DefaultStager`, the public class around this one, can be used for one save alone in torch 2.11.

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.checkpoint._state_dict_stager import StateDictStager
from torch.distributed.tensor import DTensor

from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets.model.training.checkpoint.parts import Like, State, share_of, write
from ml_assets.model.training.process.group import Group, PeerFailed
from resources.job.errors import Diverged, TrainingFailed
from resources.job.training_settings import CheckpointStorage

AVERAGE, AVERAGE_BUFFERS = "average", "average_buffers"
ALIKE = ("parameters", "optimizer", "compression", AVERAGE)


def state_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Mapping[str, Any],
    compression: Mapping[str, torch.Tensor] | None = None,
    average: State | None = None,
) -> State:
    """Return the current state; `average` has sections of its own. The tensors are those that training goes on with,
    not copies."""
    # Comes first: it puts parameters that were gathered for computation back into shards.
    values = model.state_dict()
    kept = {
        f"{name}/{what}": value
        for name, parameter in model.named_parameters()
        for what, value in optimizer.state.get(parameter, {}).items()
    }
    state: State = {"parameters": {}, "optimizer": kept, "buffers": {}, "progress": dict(progress)}
    if compression:
        state["compression"] = dict(compression)
    state |= average or {}
    names = {name for name, _ in model.named_parameters()}
    for name, value in values.items():
        state["parameters" if name in names else "buffers"][name] = value
    return state


def weights_of(state: State) -> dict[str, Any]:
    """Return the model's part of a state, its `state_dict`."""
    return {**state["parameters"], **state.get("buffers", {})}


def exported_of(state: State) -> dict[str, Any]:
    """Return the weights of a state that a training exports, a `state_dict` of its model: the average, if it keeps
    one."""
    return weights_of(state) | state.get(AVERAGE, {}) | state.get(AVERAGE_BUFFERS, {})


def restore(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a state from `state_of`, with the parts that `like_of` requested. Leaves out progress, compression and
    average."""
    model.load_state_dict(weights_of(state))
    kept: dict[str, dict[str, Any]] = {}
    for path, value in state.get("optimizer", {}).items():
        name, _, what = path.rpartition("/")
        kept.setdefault(name, {})[what] = value
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    document = optimizer.state_dict()
    document["state"] = {i: kept[name] for i, name in enumerate(order) if name in kept}
    optimizer.load_state_dict(document)


def like_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Like:
    """Return the values of a checkpoint that this rank needs, in this rank's layout."""
    values = model.state_dict()
    stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    kept = {name: parameter for name, parameter in model.named_parameters() if parameter in stepped}

    def like(section: str, name: str) -> torch.Tensor | None:
        if section in ("optimizer", "compression"):
            return (kept if section == "optimizer" else values).get(name.rpartition("/")[0])
        return values.get(name)

    return like


def refuse_infinite(state: State, step: int) -> None:
    """Raise `Diverged` if a weight on this rank is not finite: such a state is not worth keeping."""
    for name, value in state["parameters"].items():
        if isinstance(value, DTensor):
            value = value.to_local()
        if isinstance(value, torch.Tensor) and not bool(torch.isfinite(value).all()):
            raise Diverged(
                f"after step {step} {name} has a value that is not finite; the last checkpoint is kept. "
                "Lower learning_rate"
            )


class Copies:
    """Reused memory for one job's copies, on the CPU. Each `take` overwrites the previous copy."""

    def __init__(self, *, pinned: bool, rounded: bool) -> None:
        """`pinned` memory copies faster from a GPU; `rounded` copies are bf16 where the original is float32."""
        self._pinned = pinned
        self._rounded = rounded
        self._kept: dict[tuple[str, str], torch.Tensor] = {}
        self._stager = StateDictStager(pin_memory=pinned, share_memory=False)

    def take(self, state: State) -> State:
        """Return a copy of all values; afterwards the originals may change."""
        copy: State = {section: {} for section in state}
        others: State = {section: {} for section in state}
        for section, values in state.items():
            for name, value in values.items():
                dtype = self._dtype(section, value)
                if isinstance(value, DTensor):
                    others[section][name] = value if dtype == value.dtype else value.detach().to(dtype)
                elif isinstance(value, torch.Tensor):
                    copy[section][name] = self._copied((section, name), value, dtype)
                else:
                    others[section][name] = value
        for section, values in cast(State, self._stager.stage(others, non_blocking=self._pinned)).items():
            copy[section].update(values)
        if self._pinned:
            torch.accelerator.synchronize()  # the next step changes the originals
        return copy

    def _dtype(self, section: str, value: Any) -> torch.dtype | None:
        """Return the dtype of the copy. Only values that each step changes a little are rounded: no counters and no
        column scales.
        """
        if not isinstance(value, torch.Tensor):
            return None
        is_many = section in ALIKE and value.dtype == torch.float32 and value.dim() > 0
        return torch.bfloat16 if self._rounded and is_many else value.dtype

    def _copied(self, key: tuple[str, str], value: torch.Tensor, dtype: torch.dtype | None) -> Any:
        kept = self._kept.get(key)
        if kept is None or (kept.shape, kept.dtype) != (value.shape, dtype):
            kept = self._kept[key] = torch.empty(value.shape, dtype=dtype, pin_memory=self._pinned)
        with torch.no_grad():
            return kept.copy_(value, non_blocking=self._pinned)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Committed checkpoint."""

    step: int
    best_step: int
    """Step of the best checkpoint at that time; 0: none yet."""
    seconds: float
    """Seconds from the request to the commit."""
    blocked_seconds: float
    """Seconds for which the loop waited."""


class Saver:
    """Saves the state of all ranks together, one checkpoint at a time. All ranks call each method together."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        group: Group,
        share: Callable[[State], State] | None = None,
        storage: CheckpointStorage = "fp32",
        *,
        pinned: bool = False,
    ) -> None:
        """`group`: connections with a long timeout, unused by others during a save. `share`: returns the part of a
        state that this rank writes; by default `share_of`, for a state that all ranks hold. `pinned`: keep copies in
        pinned memory, to which a GPU copies while the host continues.
        """
        self._checkpoints = checkpoints
        self._share = share or partial(share_of, alike=ALIKE, rank=group.rank, world_size=group.world_size)
        self._group = group
        self._copies = Copies(pinned=pinned, rounded=storage == "bf16")
        self._compressed = storage == "compressed"
        self._has_memory = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[Any] | None = None

    def make_memory(self, state: Callable[[], State]) -> None:
        """Allocate the memory for copies in the background, once, when the state is complete. Then the first save
        blocks the loop no longer than later saves."""
        if not self._has_memory:
            self._has_memory = True
            share = self._share(state())
            # Training goes on during this copy, so its content is useless; only its memory is kept.
            self._saving = self._thread.submit(self._copies.take, share)

    def begin(
        self,
        step: int,
        state: State,
        best_step: int,
        first: Callable[[State], None],
        then: Callable[[Saved], None],
    ) -> None:
        """Wait for the previous save, copy the state after `step`, and begin to save it.

        The thread calls `first` with this rank's part of the copy before any write; an error in `first` prevents the
        commit. After the commit, rank 0 calls `then`. Raises the errors of `wait`.
        """
        began = time.monotonic()
        self.wait()
        copy = self._copies.take(self._share(state))
        blocked = time.monotonic() - began

        def save() -> None:
            self._save(step, copy, best_step, first)
            if self._group.is_first:
                then(
                    Saved(
                        step=step,
                        best_step=best_step,
                        seconds=time.monotonic() - began,
                        blocked_seconds=blocked,
                    )
                )

        self._saving = self._thread.submit(save)

    def wait(self) -> None:
        """Wait until the last save is committed, or its memory is allocated.

        Raises `StorageFailed` if this rank could not store its part, `PeerFailed` if another rank could not.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    @property
    def is_saving(self) -> bool:
        """True while a save, or the allocation of its memory, goes on beside the steps."""
        return self._saving is not None and not self._saving.done()

    @property
    def has_failed(self) -> bool:
        """True if `wait` would raise. Ranks learn of a failure at almost, but not exactly, the same time."""
        return self._saving is not None and self._saving.done() and self._saving.exception() is not None

    def _save(self, step: int, copy: State, best_step: int, first: Callable[[State], None]) -> None:
        group, checkpoints = self._group, self._checkpoints

        def begin() -> None:
            first(copy)
            if group.is_first:
                checkpoints.claim(step)

        def count() -> None:
            if group.is_first:
                checkpoints.count(step, sha256, best_step)

        try:
            group.all_succeed(begin)
            mine = write(copy, partial(checkpoints.create, step), group, compressed=self._compressed)
            sha256 = {name: digest for part in group.gather_objects(mine) for name, digest in part.items()}
            group.all_succeed(count)
        except (TrainingFailed, PeerFailed):
            if group.is_first:
                checkpoints.discard()
            raise
