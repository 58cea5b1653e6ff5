"""Models of the GPU benchmark: the flights network, and a decoder that declares its operations.

Not here: their training (cases).
"""

from typing import Any

from torch import nn

from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.defs.flights.model import build
from ml_assets_tests.layouts.decoder import TextDecoder


def flights(inputs: InputSpec, **hyperparameters: Any) -> nn.Module:
    """Return the network of the pipeline `flight_delay`."""
    return build(inputs, **hyperparameters)


class MeasuredDecoder(TextDecoder):
    """The decoder of the layout tests, with the number of operations that MFU needs."""

    def __init__(self, tokens: int, width: int, heads: int, blocks: int) -> None:
        super().__init__(tokens, width, heads, blocks)
        matrices = sum(part.weight.numel() for part in self.modules() if isinstance(part, nn.Linear))
        # Attention: scores and their use, 2 · 2 · T² · width forward, twice that backward; causal, so half.
        self.flops_per_row = 6 * matrices * tokens + 6 * blocks * width * tokens**2


def decoder(inputs: InputSpec, *, tokens: int, width: int, heads: int, blocks: int) -> MeasuredDecoder:
    """Return a decoder over bytes; `inputs` has only the text."""
    return MeasuredDecoder(tokens, width, heads, blocks)
