"""State of a training in a checkpoint: values by name, so that they fit any later layout over ranks.

    parameters    name → value
    optimizer     name of a parameter / key of its optimizer state → value
    compression   name of a parameter / key of its gradient compression's state → value; only with compression
    average       name of a parameter → its moving average; only with `training.average`
    buffers       other values of the model, name → value
    average_buffers   name of a buffer → its moving average
    progress      position of the training

The first four are equal on all ranks, or shards of a whole. The others come from rank 0.

Values that follow from the job (learning rate, weight decay) or from the position (random numbers) are left out. Not
here: files (parts, checkpoints).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ml_assets.model.training.checkpoint.parts import Like, State
from resources.job.errors import Diverged

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
