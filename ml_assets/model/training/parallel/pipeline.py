"""Pipeline parallelism: layers divided over ranks that pass values on, by the model's plan and torch's schedule.

A module of the model may have

    pipeline_plan = ("enter", "layers.*", "leave")

with the names of its parts in calling order; `*` matches any name. The first part receives the model's inputs, each
other part the output of the previous part. Each rank keeps its share of the parts. A step consists of several passes
of a few rows (`gradient_accumulation_steps`), so that all ranks compute at once, each on another pass:

    rank 0   F0 F1    B0 F2 B1 F3 B2    B3      F: forward of a pass, B: its backward
    rank 1      F0 B0 F1 B1 F2 B2 F3 B3         ("1F1B", Narayanan et al. 2019, PipeDream)

Here: one model on the ranks of one pipeline. Not here: several pipelines that average gradients (layouts).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of torch are partial)

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ml_assets.model.training.process.group import Group
from ml_assets.model.training.step.load import matching
from ml_assets.model.training.step.precision import computing
from resources.job.errors import BadConfiguration
from resources.job.training_settings import Precision
from resources.words import name_some

LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(output, target) → scalar, summed over rows."""


class Stage(nn.Module):
    """Stage of a pipeline: consecutive parts of a model; in training mode, computed in `precision`."""

    def __init__(self, parts: Sequence[nn.Module], precision: Precision, device: torch.device) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._precision: Precision = precision
        self._device = device
        self._knows_shapes = False

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Compute this stage from the model's inputs, or from the output of the previous stage.

        In the first call in training mode, torch only asks for the output shapes, with arbitrary memory contents. That
        call must not move a running mean or draw a random number, so it runs in evaluation mode.
        """
        first, *others = self.parts
        learns = first.training
        asks_shapes, self._knows_shapes = learns and not self._knows_shapes, learns or self._knows_shapes
        if asks_shapes:
            self.parts.eval()
        with computing(self._precision if learns else "fp32", self._device):
            values: torch.Tensor = first(*inputs)
            for part in others:
                values = part(values)
        if asks_shapes:
            self.parts.train()
        return values


def stage_of(core: nn.Module, stages: Group, precision: Precision) -> Stage:
    """Keep only the parameters and buffers of this rank's stage in `core`, under their names; return the stage."""
    mine = [module for _, module in _share(_parts(core), stages.rank, stages.world_size)]
    kept = {module for part in mine for module in part.modules()}
    for module in core.modules():
        if module not in kept:
            for name in dict(module.named_parameters(recurse=False)):
                module.register_parameter(name, None)
            for name in dict(module.named_buffers(recurse=False)):
                module.register_buffer(name, None)
    return Stage(mine, precision, stages.device)


def refuse_undivided(core: nn.Module, stages: int) -> None:
    """Raise `BadConfiguration` if `core` does not declare its parts, or has fewer parts than `stages`."""
    parts = _parts(core)
    if len(parts) < stages:
        raise BadConfiguration(
            f"parallel.pipeline {stages} is more than the {len(parts)} parts of {type(core).__name__}: each worker "
            f"needs a part, use {len(parts)} at most"
        )
    for number in range(stages):
        mine = _share(parts, number, stages)
        if not any(one.requires_grad for _, part in mine for one in part.parameters()):
            raise BadConfiguration(
                f"parallel.pipeline {stages} gives a worker only {', '.join(name for name, _ in mine)} of "
                f"{type(core).__name__}, which has nothing to train: use fewer stages"
            )
    owners: dict[nn.Parameter, str] = {}
    for name, part in parts:
        for parameter in part.parameters():
            if owners.setdefault(parameter, name) != name:
                raise BadConfiguration(
                    f"{owners[parameter]} and {name} share a parameter, but may be on different workers: give each "
                    "its own, or leave parallel.pipeline out"
                )
    left_over = [name for name, parameter in core.named_parameters() if parameter not in owners]
    if left_over:
        raise BadConfiguration(
            f"pipeline_plan of {type(core).__name__} leaves out {name_some(left_over)}: every parameter belongs to "
            "a part"
        )
    for name, part in core.named_modules():
        if getattr(part, "track_running_stats", False):
            raise BadConfiguration(
                f"{name} ({type(part).__name__}) keeps running statistics, and a pipeline pads its passes with rows "
                "that must not count: use nn.LayerNorm or nn.GroupNorm, or leave parallel.pipeline out"
            )


class Pipe:
    """Pipeline of ranks, as one of them sees it. All its ranks call each method together, with the same rows."""

    def __init__(self, stage: nn.Module, group: Group, passes: int, rows_a_pass: int) -> None:
        """`group`: the ranks of the pipeline, by stage. A batch takes `passes` passes of at most `rows_a_pass` rows."""
        self._group = group
        self.stages = group.world_size
        """Number of stages."""
        self.rows = rows_a_pass * passes
        """Most rows of a batch."""
        place = (group.rank, group.world_size, group.device)
        self._loss: Callable[[torch.Tensor, int, int], torch.Tensor]
        self._training = Schedule1F1B(
            PipelineStage(stage, *place, group=group.process_group),
            passes,
            loss_fn=self._loss_of_pass,
            scale_grads=False,
        )
        self._validation = ScheduleGPipe(PipelineStage(stage, *place, group=group.process_group), passes)

    def backward(
        self, inputs: Sequence[torch.Tensor], target: torch.Tensor, loss_sum: LossSum, weight: float
    ) -> float:
        """Return the loss of these rows; add the gradients of loss times `weight` to this stage's parameters."""
        rows, losses = len(target), list[torch.Tensor]()

        def loss(output: torch.Tensor, first: int, last: int) -> torch.Tensor:
            real = min(last, rows) - first
            if real <= 0:
                return 0 * output.sum()  # backward must still go through all stages
            return loss_sum(output[:real].float(), target[first : first + real]) * weight

        self._loss = loss
        if self._is_first:
            self._training.step(*map(self._filled, inputs), return_outputs=False)
        elif self._is_last:
            self._training.step(target=torch.arange(self.rows), losses=losses, return_outputs=False)
        else:
            self._training.step(return_outputs=False)
        return self._from_last(torch.stack(losses).sum() / weight if self._is_last else None)

    def loss(self, inputs: Sequence[torch.Tensor], target: torch.Tensor, loss_sum: LossSum) -> float:
        """Return the loss of these rows, without gradients."""
        output: Any = self._validation.step(*(map(self._filled, inputs) if self._is_first else ()))
        return self._from_last(loss_sum(output[: len(target)].float(), target) if self._is_last else None)

    def norm(self, of_stage: torch.Tensor) -> torch.Tensor:
        """Return the norm of the whole model's gradient from the norms of all stages."""
        squared = of_stage.square()
        distributed.all_reduce(squared, group=self._group.process_group)
        return squared.sqrt()

    @property
    def _is_first(self) -> bool:
        return self._group.rank == 0

    @property
    def _is_last(self) -> bool:
        return self._group.rank == self._group.world_size - 1

    def _filled(self, values: torch.Tensor) -> torch.Tensor:
        """Pad with rows of zeros to the full number of rows: values between ranks have one fixed shape."""
        filled = values.new_zeros((self.rows, *values.shape[1:]))
        filled[: len(values)] = values
        return filled

    def _loss_of_pass(self, output: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self._loss(output, int(places[0]), int(places[-1]) + 1)

    def _from_last(self, loss: torch.Tensor | None) -> float:
        told = torch.zeros((), device=self._group.device) if loss is None else loss.detach()
        distributed.broadcast(told, group=self._group.process_group, group_src=self._group.world_size - 1)
        return told.item()


def _share(
    parts: Sequence[tuple[str, nn.Module]], number: int, stages: int
) -> Sequence[tuple[str, nn.Module]]:
    return parts[len(parts) * number // stages : len(parts) * (number + 1) // stages]


def _parts(core: nn.Module) -> list[tuple[str, nn.Module]]:
    plan = getattr(core, "pipeline_plan", None)
    if not isinstance(plan, tuple | list) or not plan:
        raise BadConfiguration(
            f"parallel.pipeline needs a model that declares its parts, and {type(core).__name__} has no "
            'pipeline_plan, such as ("enter", "layers.*", "leave")'
        )
    return [found for pattern in plan for found in matching(core, str(pattern), "pipeline_plan")]
