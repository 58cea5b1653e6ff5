"""A rank that makes a group and a DDP model in it, and destroys the group before the model, again and again.

    python -m ml_assets_tests.training.destroy_groups <rank> <port> <times>

Without `keep_connections`, one of two ranks soon waits for ever; see `test_scripts`.
"""

# pyright: reportPrivateImportUsage=false
# (torch exports its stores, and does not say so)

import os
import sys
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ml_assets.model.training.process.group import keep_connections

_PATIENCE = timedelta(seconds=60)


def main(rank: int, port: int, times: int) -> None:
    """Train, gather the last predictions, destroy; what remains of the group goes with the model."""
    torch.set_num_threads(1)
    keep_connections()
    store = distributed.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=_PATIENCE)
    for turn in range(times):
        train(rank, distributed.PrefixStore(str(turn), store))
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)


def train(rank: int, store: distributed.Store) -> None:
    """Do one training of two ranks."""
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=_PATIENCE)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    for _ in range(3):
        model(torch.rand(16, 8)).sum().backward()
    mine = model(torch.rand(16, 8)).detach()
    predictions = [torch.empty_like(mine) for _ in range(2)]
    distributed.all_gather(predictions, mine)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
