"""Layers cut over several ranks: what a model says of itself, and torch's tensor parallelism made of it.

A module of the model may have

    tensor_plan = {"blocks.*.attention.query": "colwise", "blocks.*.attention.out": "rowwise", …}

with names of its parts, `*` for any one, and of each whether its outputs are divided (`colwise`: it gives a rank's
part of them) or its inputs (`rowwise`: it takes such a part and gives the whole sum). An `nn.Linear` or `nn.Embedding`
can be, or another module with a `ParallelStyle` of torch's own. Where attention is cut, each rank has some of the
heads, and the module has to say how many there are: `heads`. What the plan does not name every rank computes alike.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

from collections.abc import Iterator, Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from ml_assets.training.parallel.plans import matching
from resources.job.errors import BadConfiguration

_STYLES: dict[str, tuple[type[ParallelStyle], int]] = {
    "colwise": (ColwiseParallel, 0),
    "rowwise": (RowwiseParallel, 1),
}
"""Style, and which dimension of a linear layer's weight is divided."""


def cut_layers(core: nn.Module, mesh: DeviceMesh) -> None:
    """Leave on this rank its part of each layer that the plan names; in place. Every rank has the same model before."""
    for _, module, style in _planned(core):
        made = style if isinstance(style, ParallelStyle) else _STYLES[style][0]()
        parallelize_module(module, mesh, made, src_data_rank=None)


def refuse_uncuttable(core: nn.Module, ranks: int) -> None:
    """Raise `BadConfiguration` where `core` has no plan, or something in it is not divisible by `ranks`."""
    for name, module in core.named_modules():
        heads = getattr(module, "heads", None)
        if isinstance(heads, int) and heads % ranks:
            raise BadConfiguration(
                f"parallel.tensor {ranks} cannot share out the {heads} heads of {name or type(core).__name__}: "
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
    """Name, module and style of each layer that is cut."""
    plan = getattr(core, "tensor_plan", None)
    if not isinstance(plan, Mapping) or not plan:
        raise BadConfiguration(
            f"parallel.tensor needs a model that says what of it can be cut, and {type(core).__name__} has no "
            'tensor_plan, such as {"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
        )
    for pattern, style in plan.items():
        for name, module in matching(core, str(pattern), "tensor_plan"):
            yield name, module, style


def _divisors(number: int) -> str:
    return " or ".join(str(one) for one in range(1, number + 1) if number % one == 0)
