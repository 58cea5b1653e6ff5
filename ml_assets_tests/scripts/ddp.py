"""A script as tutorials have it: torchrun starts it, a trainer of its own averages by DDP and keeps a snapshot.

`ddp_adapted.py` is the same script as a pipeline's `model.script`.
"""

import argparse
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load_data() -> tuple[Dataset, Dataset]:
    x = torch.rand(3000, 3)
    y = 10 + x @ torch.tensor([20.0, 5.0, 1.0])
    return TensorDataset(x[:2500], y[:2500]), TensorDataset(x[2500:], y[2500:])


class Net(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 20 * self.layers(x).squeeze(1)


class Trainer:
    def __init__(self, model: nn.Module, data: Dataset, args: argparse.Namespace) -> None:
        self.rank = distributed.get_rank()
        self.sampler = DistributedSampler(data, shuffle=True)
        self.data = DataLoader(data, batch_size=args.batch_size, sampler=self.sampler)
        self.snapshot_path = Path("snapshot.pt")
        self.epochs_run = 0
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        if self.snapshot_path.exists():
            self._load_snapshot()
        self.model = DistributedDataParallel(self.model)

    def _load_snapshot(self) -> None:
        snapshot = torch.load(self.snapshot_path)
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.epochs_run = snapshot["epochs_run"]
        print(f"resuming at epoch {self.epochs_run}")

    def _save_snapshot(self, epoch: int) -> None:
        snapshot = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs_run": epoch,
        }
        torch.save(snapshot, self.snapshot_path)

    def _run_batch(self, x: torch.Tensor, targets: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(x), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch: int) -> float:
        self.sampler.set_epoch(epoch)
        losses = [self._run_batch(x, targets) for x, targets in self.data]
        return sum(losses) / len(losses)

    def train(self, epochs: int, validation: Dataset) -> None:
        for epoch in range(self.epochs_run, epochs):
            loss = self._run_epoch(epoch)
            validation_loss = self.validate(validation)
            print(f"rank {self.rank} epoch {epoch} loss {loss:.4f} validation {validation_loss:.4f}")
            if self.rank == 0:
                self._save_snapshot(epoch + 1)

    def validate(self, data: Dataset) -> float:
        x, targets = data[:]
        with torch.no_grad():
            return functional.mse_loss(self.model.module(x), targets).item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--hidden", type=int, default=16)
    args = parser.parse_args()
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    train, validation = load_data()
    trainer = Trainer(Net(3, args.hidden), train, args)
    trainer.train(args.epochs, validation)
    if distributed.get_rank() == 0:
        torch.save(trainer.model.module.state_dict(), "model.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
