"""Sums of gradients that do not depend on how the addends were grouped: the arithmetic of `determinism: bitwise`.

Floating-point addition rounds, so that (a + b) + c and a + (b + c) differ. Here all addends of a tensor are first
rounded to multiples of one power of two, the quantum, chosen so that every partial sum of them is again a multiple
with at most 24 bits: then no addition rounds, and any grouping gives the same bits.

One quantum per tensor would lose the small gradients of a tensor that also has large ones: 91 % of a value of 10⁻⁶ of
the largest, with 8 addends. So each addend is a high and a low part, with a quantum each; both sums are exact, and the
result is their sum, rounded once. Not here: whose gradients they are, and what of them is summed where (gradients).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

from collections.abc import Sequence

import torch

_MANTISSA_BITS = 24
"""Mantissa bits of float32, the hidden one included: whole numbers up to 2^24 are exact."""
_SMALLEST = -126
"""Exponent of the smallest normal float32: multiples of less would be flushed to zero on some devices."""


def largest(addends: Sequence[torch.Tensor]) -> torch.Tensor:
    """`[tensors]`: the largest absolute value of each; infinite or NaN where one of its values is."""
    return torch.stack([torch.linalg.vector_norm(tensor, ord=torch.inf) for tensor in addends])


def quanta(largest_of_all: torch.Tensor, addends: int) -> torch.Tensor:
    """`[tensors]` powers of two: what to round to, where each tensor is the sum of `addends` and none of them
    is beyond `largest_of_all`.

    Rounded, an addend is at most largest / quantum + 1/2, their sum at most 2^23 + addends / 2: below 2^24.
    """
    _, exponent = torch.frexp(largest_of_all * addends)  # 2^exponent is beyond it
    exponent = (exponent - (_MANTISSA_BITS - 1)).clamp(min=_SMALLEST)
    return torch.ldexp(torch.ones_like(largest_of_all), exponent)


def low_quanta(high: torch.Tensor, addends: int) -> torch.Tensor:
    """`[tensors]` powers of two for what rounding to `high` leaves over, which is half of it at most."""
    return quanta(high / 2, addends)


def round_to(tensor: torch.Tensor, quantum: torch.Tensor) -> None:
    """Round all values to the nearest multiple, in place."""
    tensor.div_(quantum).round_().mul_(quantum)


def split_off(tensor: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Round `tensor` to multiples of `high` in place; return what that left over, rounded to multiples of `low`.

    The difference of a value and its multiple is exact in float32 (both are multiples of the value's last bit).
    """
    rest = tensor.clone()
    round_to(tensor, high)
    rest.sub_(tensor)
    round_to(rest, low)
    return rest
