"""The shipped model of `store_demand` for workers that are to be killed. Apart from `shop`, because each worker
imports it."""

import time
from typing import Any

from ml_assets.defs.store_demand import model
from ml_assets_tests.chaos.moments import Pulse


def build(inputs: Any, *, hidden: int, pace: float) -> Any:
    """It takes `pace` seconds a step while it trains, and may die at it."""
    import torch

    pulse = Pulse()

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.demand = model.build(inputs, hidden=hidden)

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            if self.training:
                pulse.beat()
                time.sleep(pace)
            return self.demand(numeric, category)

    return Slow()
