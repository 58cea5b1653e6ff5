"""Sums of gradients with the same bits for any grouping of the addends: the arithmetic of `determinism: bitwise`.

Floating-point addition rounds, so (a + b) + c and a + (b + c) differ. Here all addends of a tensor are first rounded to
multiples of one power of two, the quantum. It is chosen so that every partial sum is again a multiple with at most 24
bits. Then no addition rounds, and any grouping gives the same bits.

A single quantum per tensor would lose the small gradients of a tensor that also has large ones: with 8 addends, 91 % of
a value of 10⁻⁶ of the largest. So each addend is split into a high and a low part with a quantum each. Both sums are
exact, and the result is their sum, rounded once. Not here: the gradients, and where they are summed
(training.gradients).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

from collections.abc import Sequence

import torch

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
