"""Tensor parallelism: layers cut over several ranks, by the model's plan and torch's tensor parallelism.

A module of the model may have

    tensor_plan = {"layers.*.attention.query": "colwise", "layers.*.attention.out": "rowwise", …}

with names of its parts; `*` matches any name. `colwise` divides a layer's outputs: each rank computes a part of them.
`rowwise` divides its inputs: each rank takes a part, and the layer returns the whole sum. An `nn.Linear` or
`nn.Embedding` can be cut, or another module with one of torch's `ParallelStyle`s. If attention is cut, each rank has
some of the heads, and the module must declare their number as `heads`. Every rank computes all other parts in full.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

from collections.abc import Iterator, Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from ml_assets.model.training.step.plans import matching
from resources.job.errors import BadConfiguration

_STYLES: dict[str, tuple[type[ParallelStyle], int]] = {
    "colwise": (ColwiseParallel, 0),
    "rowwise": (RowwiseParallel, 1),
}
"""Style, and the dimension of a linear layer's weight that it divides."""


def cut_layers(core: nn.Module, mesh: DeviceMesh) -> None:
    """Reduce each layer that the plan names to this rank's part, in place. Before, every rank must have the same
    model."""
    for _, module, style in _planned(core):
        made = style if isinstance(style, ParallelStyle) else _STYLES[style][0]()
        parallelize_module(module, mesh, made, src_data_rank=None)


def refuse_uncuttable(core: nn.Module, ranks: int) -> None:
    """Raise `BadConfiguration` if `core` has no plan, or a layer in it is not divisible by `ranks`."""
    for name, module in core.named_modules():
        heads = getattr(module, "heads", None)
        if isinstance(heads, int) and heads % ranks:
            raise BadConfiguration(
                f"parallel.tensor {ranks} cannot divide the {heads} heads of {name or type(core).__name__}: "
                f"{heads} / {ranks} = {heads / ranks:g}; use {_divisors(heads)}"
            )
    for name, module, style in _planned(core):
        if not isinstance(style, str):
            continue
        if style not in _STYLES or not isinstance(module, nn.Linear | nn.Embedding):
            raise BadConfiguration(
                f"tensor_plan of {type(core).__name__}: {name} ({type(module).__name__}) is {style!r}; nn.Linear and "
                "nn.Embedding are colwise or rowwise, for others give a ParallelStyle of torch"
            )
        dimension = _STYLES[style][1]
        if isinstance(module, nn.Embedding):
            dimension = 1 - dimension  # its outputs are the columns
        if (size := module.weight.shape[dimension]) % ranks:
            raise BadConfiguration(
                f"parallel.tensor {ranks} cannot divide the {size} {'outputs' if style == 'colwise' else 'inputs'} of "
                f"{name}: {size} / {ranks} = {size / ranks:g}; use {_divisors(size)}"
            )


def _planned(core: nn.Module) -> Iterator[tuple[str, nn.Module, str | ParallelStyle]]:
    """Yield name, module and style of each layer to cut."""
    plan = getattr(core, "tensor_plan", None)
    if not isinstance(plan, Mapping) or not plan:
        raise BadConfiguration(
            f"parallel.tensor needs a model that declares its divisible layers, and {type(core).__name__} has no "
            'tensor_plan, such as {"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
        )
    for pattern, style in plan.items():
        for name, module in matching(core, str(pattern), "tensor_plan"):
            yield name, module, style


def _divisors(number: int) -> str:
    return " or ".join(str(one) for one in range(1, number + 1) if number % one == 0)
