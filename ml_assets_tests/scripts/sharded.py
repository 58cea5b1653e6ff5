"""A script whose ranks keep shards (FSDP) and save them together, in torch's distributed checkpoint format.

Rank 1 dies once, while the checkpoint of epoch `dies_at` is written; with `machine` its agent dies with it.
"""

import os
import signal
import sys

import torch
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from ml_assets.model.training.script import attach

training = attach()


class Net(nn.Module):
    """Two layers over the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(len(training.inputs.numeric), 12)
        self.out = nn.Linear(12, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        """`[B, F]`, `[B, C]` → `[B]`."""
        return self.out(torch.relu(self.hidden(numeric))).squeeze(1)


def main() -> None:
    """Train on everything at once, save after each epoch what each rank has."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (training.world_size,))
    model = fully_shard(Net(), mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if training.resumed_from:
        found = sorted(path.name for path in training.resumed_from.glob("draws-*"))
        sys.stdout.write(f"rank {training.rank} resumes what {training.resumed_world_size} saved: {found}\n")
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=training.resumed_from)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    data = {split: training.tensors(split) for split in ("train", "validation")}

    def loss_of(split: str) -> torch.Tensor:
        numeric, category, label = data[split]
        return functional.mse_loss(model(numeric, category), label)

    epochs, loss = training.hyperparameters["epochs"], 0.0
    for epoch in range(training.resumed_step + 1, epochs + 1):
        optimizer.zero_grad()
        loss_of("train").backward()
        optimizer.step()
        with torch.no_grad():
            loss = loss_of("validation").item()
        training.log(epoch, validation_loss=loss)
        with training.checkpoint(epoch, all_ranks=True) as folder:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
            (folder / f"draws-{training.rank}").write_bytes(os.urandom(8))
            if (
                training.rank == 1
                and epoch == training.hyperparameters["dies_at"]
                and not training.resumed_from
            ):
                if training.hyperparameters.get("machine"):
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
    whole = Net()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=False)
    whole.load_state_dict(get_model_state_dict(model, options=options))
    distributed.destroy_process_group()
    training.finish(whole, steps=epochs, epochs=epochs, validation_loss=loss)


if __name__ == "__main__":
    main()
