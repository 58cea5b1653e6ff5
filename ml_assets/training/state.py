"""What a checkpoint holds of a training: values by name, so that they fit however it is spread over ranks later.

    parameters    name → value
    optimizer     name of a parameter / what the optimizer keeps for it → value
    buffers       what else the model has, name → value
    progress      where the training stands

The first two are the same on all ranks, or shards of one whole; of the others rank 0's are meant.

What follows from the job (learning rate, weight decay) or from the position (random numbers) is not in it. Not here:
files (parts, checkpoints).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from ml_assets.training.parts import State
from resources.launcher.errors import Diverged

ALIKE = ("parameters", "optimizer")


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, progress: Mapping[str, Any]) -> State:
    """The state as it is: tensors are the ones that training goes on with, not copies."""
    # First: what was gathered to be computed with is in shards again after it.
    values = model.state_dict()
    kept = {
        f"{name}/{what}": value
        for name, parameter in model.named_parameters()
        for what, value in optimizer.state.get(parameter, {}).items()
    }
    state: State = {"parameters": {}, "optimizer": kept, "buffers": {}, "progress": dict(progress)}
    names = {name for name, _ in model.named_parameters()}
    for name, value in values.items():
        state["parameters" if name in names else "buffers"][name] = value
    return state


def weights_of(state: State) -> dict[str, Any]:
    """What the model itself keeps: its `state_dict`."""
    return {**state["parameters"], **state.get("buffers", {})}


def restore(state: State, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Inverse of `state_of`, besides progress: of `state`, which is whole, this rank's part of each value."""
    parts = model.state_dict()
    # What has other names is of other stages.
    here = {name: value for name, value in weights_of(state).items() if name in parts}
    model.load_state_dict({name: _part(value, parts[name]) for name, value in here.items()})
    parameters = dict(model.named_parameters())
    kept: dict[str, dict[str, Any]] = {}
    for path, value in state.get("optimizer", {}).items():
        name, _, what = path.rpartition("/")
        kept.setdefault(name, {})[what] = _part(value, parameters.get(name))
    names = {parameter: name for name, parameter in parameters.items()}
    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    document = optimizer.state_dict()
    document["state"] = {i: kept[name] for i, name in enumerate(order) if name in kept}
    optimizer.load_state_dict(document)


def _part(whole: Any, like: torch.Tensor | None) -> Any:
    """Of `whole` what this rank has of it, where it has `like`; values of another shape (counts of steps) stay."""
    if isinstance(like, DTensor) and isinstance(whole, torch.Tensor) and whole.shape == like.shape:
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole


def refuse_infinite(state: State, step: int) -> None:
    """Raise `Diverged` where a weight is not finite, of what is here: such a state is not worth keeping."""
    for name, value in state["parameters"].items():
        if isinstance(value, DTensor):
            value = value.to_local()
        if isinstance(value, torch.Tensor) and not bool(torch.isfinite(value).all()):
            raise Diverged(
                f"after step {step} {name} has a value that is not finite; the last checkpoint is kept. "
                "Lower learning_rate"
            )
