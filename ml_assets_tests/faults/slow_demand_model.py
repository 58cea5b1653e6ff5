"""The shipped model of `store_demand` with a delay and a kill switch in each step.

Apart from `demand_project`, because each worker imports it.
"""

import time
from typing import Any

from ml_assets.defs.store_demand import model
from ml_assets_tests.faults.kill_points import RankKillSwitch


def build(inputs: Any, *, hidden: int, pace: float) -> Any:
    """Return the model; a training step takes `pace` seconds more, and may kill its rank."""
    import torch

    kill_switch = RankKillSwitch()

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.demand = model.build(inputs, hidden=hidden)

        def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
            if self.training:
                kill_switch.begin_step()
                time.sleep(pace)
            return self.demand(numeric, category)

    return Slow()
