"""Reduction of gradients between ranks: sums with the same bits for any grouping, and compression.

Sums (`determinism: bitwise`): floating-point addition rounds, so (a + b) + c and a + (b + c) differ. Here all addends
of a tensor are first rounded to multiples of one power of two, the quantum. It is chosen so that every partial sum is
again a multiple with at most 24 bits. Then no addition rounds, and any grouping gives the same bits.

A single quantum per tensor would lose the small gradients of a tensor that also has large ones: with 8 addends, 91 % of
a value of 10⁻⁶ of the largest. So each addend is split into a high and a low part with a quantum each. Both sums are
exact, and the result is their sum, rounded once.

Compression (`gradient_compression`): torch's communication hooks as this engine uses them, and PowerSGD's state between
steps. Not here: the gradients, and where they are summed (training.gradients), the parts of a model on each rank
(layouts), saving the state (training.run).
"""

# pyright: reportArgumentType=false, reportPrivateImportUsage=false, reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    _should_compress,  # pyright: ignore[reportPrivateUsage]
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

from ml_assets.model.training.process.group import Group

_MANTISSA_BITS = 24
"""Mantissa bits of float32, the hidden bit included: whole numbers up to 2^24 are exact."""
_SMALLEST = -126
"""Exponent of the smallest normal float32: some devices flush smaller multiples to zero."""


def largest(addends: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return `[tensors]`: the largest absolute value of each; infinite or NaN if the tensor has such a value, 0 if it
    has no values."""
    return torch.stack(
        [
            torch.linalg.vector_norm(tensor, ord=torch.inf) if tensor.numel() else tensor.new_zeros(())
            for tensor in addends
        ]
    )


def quanta(largest_of_all: torch.Tensor, addends: int) -> torch.Tensor:
    """Return `[tensors]` powers of two to round to, for sums of `addends` tensors that do not exceed `largest_of_all`.

    A rounded addend is at most largest / quantum + 1/2, and the sum at most 2^23 + addends / 2: below 2^24.
    """
    _, exponent = torch.frexp(largest_of_all * addends)  # 2^exponent exceeds the sum
    exponent = (exponent - (_MANTISSA_BITS - 1)).clamp(min=_SMALLEST)
    return torch.ldexp(torch.ones_like(largest_of_all), exponent)


def low_quanta(high: torch.Tensor, addends: int) -> torch.Tensor:
    """Return `[tensors]` powers of two for the remainder of rounding to `high`, which is at most half of it."""
    return quanta(high / 2, addends)


def round_to(tensor: torch.Tensor, quantum: torch.Tensor) -> None:
    """Round all values to the nearest multiple of `quantum`, in place."""
    tensor.div_(quantum).round_().mul_(quantum)


def split_off(tensor: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Round `tensor` to multiples of `high` in place; return the remainder, rounded to multiples of `low`.

    The difference of a value and its multiple is exact in float32: both are multiples of the value's last bit.
    """
    rest = tensor.clone()
    round_to(tensor, high)
    rest.sub_(tensor)
    round_to(rest, low)
    return rest


_RANK = 4
"""Rank of the two matrices that approximate a gradient: the larger of the two ranks with which Vogels et al. (2019)
match plain SGD.
"""
_FEWEST_STEPS = 2
"""Least number of steps without compression: torch refuses fewer."""
_LEAST_SAVED = 2
"""Compress a gradient only if that makes it at least this many times smaller; torch's default."""
_LEFT_OUT, _BASIS = "left_out", "basis"


def halve(replica: DistributedDataParallel, process_group: distributed.ProcessGroup | None) -> None:
    """Make `replica` send its gradients in bfloat16."""
    replica.register_comm_hook(process_group, bf16_compress_hook)


@dataclass(frozen=True)
class _Remembered:
    """PowerSGD's state for one parameter, whose gradient is a matrix of n rows."""

    left_out: torch.Tensor
    """Error of this rank's last approximation, shaped as the parameter: added to its next gradient."""
    basis: torch.Tensor
    """`[m * r]`: starting point of the next approximation, equal on all ranks."""


class PowerSgd:
    """Gradients sent as two thin matrices each, after some steps without compression; and the approximation errors.

    Let M be the mean over ranks of gradient plus own error. All ranks compute P = M Q, orthonormalise P, compute Q = Mᵀ
    P and use P Qᵀ as the gradient (Vogels et al. 2019, algorithm 1). Only the mean of the errors enters the result. So
    a checkpoint holds that mean and Q alone. Any number of ranks can resume from it, each with the mean as its own
    error. The result differs from an uninterrupted training only by rounding.
    """

    def __init__(self, model: nn.Module, seed: int, whole_steps: int) -> None:
        """Send whole gradients in the first `whole_steps` steps, when they change most, as the authors advise."""
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._seed, self._whole_steps = seed, whole_steps
        self._remembered: dict[str, _Remembered] = {}
        self._placed: dict[int, list[str]] = {}
        """Number of a bucket → the parameters whose gradients it holds, in the order of torch's state."""

    def attach(
        self, replica: DistributedDataParallel, process_group: distributed.ProcessGroup | None, step: int
    ) -> None:
        """Make `replica` compress its gradients from step `step` of the training on."""
        state = PowerSGDState(
            process_group,
            matrix_approximation_rank=_RANK,
            start_powerSGD_iter=max(self._whole_steps, _FEWEST_STEPS),
            orthogonalization_epsilon=1e-8,  # embeddings have columns of zeros
            min_compression_rate=_LEAST_SAVED,
            random_seed=self._seed,
        )
        state.iter = step
        replica.register_comm_hook(state, self._reduce)

    def memory(self, group: Group) -> dict[str, torch.Tensor]:
        """Return the state for a checkpoint: name of a parameter / `left_out` or `basis` → value, equal on all ranks.

        Collective call. Empty before the first compressed step.
        """
        known = [name for name in self._names.values() if name in self._remembered]
        if not known:
            return {}
        mine = [self._remembered[name] for name in known]
        mean = torch.cat([one.left_out.flatten() for one in mine])
        distributed.all_reduce(mean, group=group.process_group)
        parts = mean.div_(group.world_size).split([one.left_out.numel() for one in mine])
        found = {f"{name}/{_BASIS}": one.basis for name, one in zip(known, mine, strict=True)}
        for name, one, part in zip(known, mine, parts, strict=True):
            found[f"{name}/{_LEFT_OUT}"] = part.view_as(one.left_out)
        return found

    def restore(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Restore the state from `memory()` of an earlier attempt, before the next step."""
        self._placed.clear()
        self._remembered = {
            name: _Remembered(
                memory[f"{name}/{_LEFT_OUT}"].to(parameter), memory[f"{name}/{_BASIS}"].to(parameter)
            )
            for parameter, name in self._names.items()
            if f"{name}/{_BASIS}" in memory
        }

    def _reduce(
        self, state: PowerSGDState, bucket: distributed.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """Reduce one bucket; torch's hook for DDP.

        A bucket takes three all-reduces in sequence. All ranks must begin them in the same order, so the hook waits for
        each bucket. With several buckets in flight, the order would differ between ranks and sums would be mixed up.
        """
        compresses, index = state.iter >= state.start_powerSGD_iter, bucket.index()
        names = [self._names[parameter] for parameter in bucket.parameters()]
        gradients = dict(zip(names, bucket.gradients(), strict=True))
        if compresses:
            self._place(state, index, gradients)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(powerSGD_hook(state, bucket).wait())
        if compresses:
            self._keep(state, index, gradients)
        return done

    def _place(self, state: PowerSGDState, index: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Rearrange torch's state of a bucket in the order of its `gradients`: after a resume, and again one step
        later, when DDP has rebuilt its buckets."""
        names = list(gradients)
        if self._placed.get(index) == names:
            return
        self._placed[index] = names
        for of_buckets in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            of_buckets.pop(index, None)
        known, matrices = self._remembered, _matrices(gradients)
        if not matrices or not matrices.keys() <= known.keys():
            return  # torch begins with errors of zero
        errors = [
            known[name].left_out if name in known else torch.zeros_like(gradients[name]) for name in names
        ]
        state.error_dict[index] = torch.cat([error.flatten() for error in errors])
        state.p_memory_dict[index] = errors[0].new_empty(sum(n * r for n, _, r in matrices.values()))
        state.q_memory_dict[index] = torch.cat([known[name].basis for name in matrices])

    def _keep(self, state: PowerSGDState, index: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Store torch's state of a bucket after this step, by name of the parameter."""
        parts = state.error_dict[index].split([gradient.numel() for gradient in gradients.values()])
        left_out = dict(zip(gradients, parts, strict=True))
        matrices = _matrices(gradients)
        bases = state.q_memory_dict[index].split([m * r for _, m, r in matrices.values()])
        for name, basis in zip(matrices, bases, strict=True):
            self._remembered[name] = _Remembered(left_out[name].view_as(gradients[name]), basis)


def _matrices(gradients: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int, int]]:
    """Return rows, columns and rank of the compressed gradients, ordered as torch's Q: grouped by shape. Other
    gradients are sent whole and have no error."""
    by_shape: dict[tuple[int, int, int], list[str]] = {}
    for name, gradient in gradients.items():
        n, m = gradient.shape[0], gradient[0].numel()
        r = min(n, m, _RANK)
        if _should_compress(n, m, r, _LEAST_SAVED)[0]:
            by_shape.setdefault((n, m, r), []).append(name)
    return {name: shape for shape, names in by_shape.items() for name in names}
