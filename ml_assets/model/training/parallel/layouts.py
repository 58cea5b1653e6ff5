"""Layout of one model on the ranks of a job: a whole model on each rank, or parts of it.

    parallel: {shard: full, tensor: 2, pipeline: 2} on eight workers

                 stage 0                stage 1
                 tensor 0   tensor 1    tensor 0   tensor 1
        data 0    rank 0     rank 1      rank 2     rank 3     read the same rows; a stage has some of the layers, and
                                                               each rank of it half of each layer that can be cut
        data 1    rank 4     rank 5      rank 6     rank 7     read other rows; each rank of a column holds a shard,
                                                               half of what the column has

Ranks of a row compute one model together. Adjacent ranks share the same layers, since they communicate most. Here:
placement of ranks, layers cut over several ranks, shards of a model, the optimizer over them, the norm of a gradient
that no rank holds whole. Not here: stages of layers (pipeline), computing with the parts (training.gradients), storing
the parts (checkpoint.saving, checkpoint.parts).

Layers are cut by the model's plan and torch's tensor parallelism. A module of the model may have

    tensor_plan = {"layers.*.attention.query": "colwise", "layers.*.attention.out": "rowwise", …}

with names of its parts; `*` matches any name. `colwise` divides a layer's outputs: each rank computes a part of them.
`rowwise` divides its inputs: each rank takes a part, and the layer returns the whole sum. An `nn.Linear` or
`nn.Embedding` can be cut, or another module with one of torch's `ParallelStyle`s. If attention is cut, each rank has
some of the heads, and the module must declare their number as `heads`. Every rank computes all other parts in full.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ml_assets.model.training.checkpoint.parts import State, share_of
from ml_assets.model.training.checkpoint.saving import ALIKE
from ml_assets.model.training.parallel.pipeline import Pipe, refuse_undivided, stage_of
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.step.load import matching
from ml_assets.model.training.step.memory import layers_of, passes, rows_at_once
from ml_assets.model.training.step.precision import shard_policy
from resources.job.errors import BadConfiguration
from resources.job.training_settings import Parallel, TrainingSettings

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


class DataParallelWrapper:
    """Wrapper that a forward pass of training calls, so that backward averages gradients over the ranks."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        """Called with the inputs of the pipeline's own model."""

    @contextmanager
    def accumulating(self) -> Generator[None]:
        """Add up gradients on this rank only. For all passes of a step but the last, forward and backward."""
        if isinstance(self.module, DistributedDataParallel):
            with self.module.no_sync():
                yield
        elif isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(False)
            yield
            self.module.set_requires_gradient_sync(True)
        else:
            yield


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of a model on the ranks, as this rank sees it."""

    group: Group
    """All ranks."""
    data: Group
    """Place of this rank among those that read different rows. Ranks that read the same rows are in different such
    groups: a sum over the group counts each row once."""
    core: nn.Module
    """Part of the pipeline's model that this rank computes."""
    optimizer: torch.optim.Optimizer
    """Optimizer that steps all parameters."""
    parameters: list[list[nn.Parameter]]
    """This rank's part of the parameters, grouped by the ranks that hold them."""
    pipe: Pipe | None
    """Pipeline that this rank is a stage of; None if the rank computes all layers."""
    local_optimizer: torch.optim.Optimizer
    """Optimizer whose state this rank keeps: `optimizer`, or its own part of it."""

    @property
    def is_first_copy(self) -> bool:
        """False if another rank reads the same rows and records them."""
        return self.group.rank % (self.group.world_size // self.data.world_size) == 0

    @property
    def is_sharded(self) -> bool:
        """True under FSDP: all ranks of `data` must run each forward pass together, since they gather parameters in
        it."""
        return isinstance(self.core, FSDPModule)

    def spread(self) -> DataParallelWrapper:
        """Return the wrapper for training. Call it once, before training: replicas leave hooks in the model."""
        is_whole = not self.is_sharded and self.data.world_size == self.group.world_size
        return DataParallelWrapper(DistributedDataParallel(self.core) if is_whole else self.core)

    def clip(self, most: float) -> float:
        """Scale the gradient, with all its parts on all ranks, to a norm of at most `most`; return the norm before, the
        same number on every rank."""
        norms = [_norm(together) for together in self.parameters]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        if self.pipe is not None:
            norm = self.pipe.norm(norm)
        for together in self.parameters:
            clip_grads_with_norm_(together, most, norm)
        return norm.item()

    def share(self, state: State) -> State:
        """Return the part of `state` that this rank writes into a checkpoint."""
        own = () if self.local_optimizer is self.optimizer else ("optimizer",)
        stages = 1 if self.pipe is None else self.pipe.stages
        # The ranks of a stage hold equal state: `neighbours` adjacent ranks in each group that reads the same rows.
        neighbours = self.group.world_size // (self.data.world_size * stages)
        place = self.data.rank * neighbours + self.group.rank % neighbours
        return share_of(state, ALIKE, place, self.data.world_size * neighbours, own)


def refuse_unfit(core: nn.Module, group: Group, settings: TrainingSettings) -> None:
    """Raise `BadConfiguration` if the model does not fit these ranks as `settings.parallel` requires."""
    parallel = settings.parallel
    if group.world_size % parallel.model_workers:
        raise BadConfiguration(
            f"{group.world_size} ranks cannot be divided into models of {parallel.model_workers} (parallel.tensor x "
            f"pipeline): {group.world_size} / {parallel.model_workers} = "
            f"{group.world_size / parallel.model_workers:g}"
        )
    if parallel.pipeline > 1:
        refuse_undivided(core, parallel.pipeline)
    if parallel.tensor > 1:
        refuse_uncuttable(core, parallel.tensor)
    scalars = [name for name, parameter in core.named_parameters() if parameter.ndim == 0]
    for asked, what in (
        (parallel.shard in ("gradients", "full"), f"parallel.shard {parallel.shard} divides parameters"),
        (settings.gradient_compression == "powersgd", "gradient_compression powersgd compresses gradients"),
    ):
        if scalars and asked:
            raise BadConfiguration(
                f"{what} along their first dimension, and {scalars[0]} has none: give it the shape (1,)"
            )


def lay_out(model: nn.Module, core: nn.Module, group: Group, settings: TrainingSettings) -> Layout:
    """Reduce `model` to this rank's part, in place; `core` is its part that trains. Names do not change.

    Collective call: each rank passes the same whole model.
    """
    parallel, data, pipe = settings.parallel, group, None
    if parallel.model_workers > 1 or parallel.shard in ("gradients", "full"):
        mesh = _mesh(group, parallel)
        data = _along(mesh, "data", group)
        if parallel.tensor > 1:
            cut_layers(core, mesh["tensor"])
        if parallel.pipeline > 1:
            stages = _along(mesh, "pipeline", group)
            # FSDP casts shards when it gathers them.
            core = stage_of(core, stages, "fp32" if _has_shards(mesh, parallel) else settings.precision)
            done = passes(settings, group.world_size)
            pipe = Pipe(core, stages, done, rows_at_once(settings, group.world_size))
        _shard(core, mesh, settings)
    parameters = _by_mesh(model.parameters())
    optimizer, local_optimizer = _optimizers(parameters, settings)
    return Layout(
        group=group,
        data=data,
        core=core,
        parameters=parameters,
        pipe=pipe,
        optimizer=optimizer,
        local_optimizer=local_optimizer,
    )


def _along(mesh: DeviceMesh, dimension: str, group: Group) -> Group:
    """Return the ranks that differ from this one in `dimension` alone."""
    return replace(
        group,
        rank=mesh.get_local_rank(dimension),
        world_size=mesh[dimension].size(),
        process_group=mesh.get_group(dimension),
    )


def _mesh(group: Group, parallel: Parallel) -> DeviceMesh:
    names, sizes = ["data"], [group.world_size // parallel.model_workers]
    if parallel.shard == "none":
        # Replicas of a model that is cut otherwise: shards over one rank, gradients averaged over all.
        names.append("whole")
        sizes.append(1)
    for name, size in (("pipeline", parallel.pipeline), ("tensor", parallel.tensor)):
        if size > 1:
            names.append(name)
            sizes.append(size)
    return init_device_mesh(group.device.type, tuple(sizes), mesh_dim_names=tuple(names))


def _has_shards(mesh: DeviceMesh, parallel: Parallel) -> bool:
    """Return False if this rank has no other rank to divide parameters or average gradients with."""
    return parallel.shard != "none" or mesh["data"].size() > 1


def _shard(core: nn.Module, mesh: DeviceMesh, settings: TrainingSettings) -> None:
    """Shard `core` with FSDP2: a unit for each layer of the model, and one for the rest. A layer's parameters are whole
    while it computes (`full`), or from forward to backward (`gradients`)."""
    parallel, policy = settings.parallel, shard_policy(settings.precision)
    if not _has_shards(mesh, parallel):
        return
    dimensions = ("data", "whole") if parallel.shard == "none" else "data"
    # None: reshard all units but the outermost, with which backward begins.
    reshards = None if parallel.shard == "full" else False
    for unit in [*layers_of(core), core]:
        fully_shard(unit, mesh=mesh[dimensions], reshard_after_forward=reshards, mp_policy=policy)


def _optimizers(
    parameters: list[list[nn.Parameter]], settings: TrainingSettings
) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Return AdamW over the parameters of this rank, and the optimizer that keeps the state of those it steps."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.parallel.shard == "optimizer":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        dealt = ZeroRedundancyOptimizer(
            parameters[0], torch.optim.AdamW, lr=rate, weight_decay=decay, fused=True
        )
        return dealt, dealt.optim
    # Tensors on different meshes cannot be operands of one operation.
    groups = [{"params": together} for together in parameters]
    whole = torch.optim.AdamW(groups, lr=rate, weight_decay=decay, fused=True)
    return whole, whole


def _by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by the ranks that hold them; one list if every rank holds all of them whole."""
    found: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(mesh, []).append(parameter)
    return list(found.values())


def _norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    norm = get_total_norm([one.grad for one in parameters if one.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
