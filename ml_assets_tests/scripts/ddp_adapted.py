"""`ddp.py` as the `model.script` of a pipeline: its loop, its optimizer, its DDP; data and snapshots elsewhere."""

import argparse

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ml_assets.model.training.script import attach

training = attach()


def load_data() -> tuple[Dataset, Dataset]:
    return TensorDataset(*training.tensors("train")), TensorDataset(*training.tensors("validation"))


class Net(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        x = torch.cat([numeric, functional.one_hot(category[:, 0], training.inputs.cardinalities[0])], dim=1)
        return 20 * self.layers(x).squeeze(1)


class Trainer:
    def __init__(self, model: nn.Module, data: Dataset, args: argparse.Namespace) -> None:
        self.rank = distributed.get_rank()
        self.sampler = DistributedSampler(data, shuffle=True)
        self.data = DataLoader(data, batch_size=args.batch_size, sampler=self.sampler)
        self.epochs_run = 0
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        if training.resumed_from:
            self._load_snapshot()
        self.model = DistributedDataParallel(self.model)

    def _load_snapshot(self) -> None:
        snapshot = torch.load(training.resumed_from / "snapshot.pt")
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
        with training.checkpoint(epoch) as folder:
            torch.save(snapshot, folder / "snapshot.pt")

    def _run_batch(self, x: list[torch.Tensor], targets: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = functional.mse_loss(self.model(*x), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def _run_epoch(self, epoch: int) -> float:
        self.sampler.set_epoch(epoch)
        losses = [self._run_batch(x, targets) for *x, targets in self.data]
        return sum(losses) / len(losses)

    def train(self, epochs: int, validation: Dataset) -> None:
        for epoch in range(self.epochs_run, epochs):
            loss = self._run_epoch(epoch)
            validation_loss = self.validate(validation)
            training.log(epoch + 1, loss=loss, validation_loss=validation_loss)
            if self.rank == 0:
                self._save_snapshot(epoch + 1)

    def validate(self, data: Dataset) -> float:
        *x, targets = data[:]
        with torch.no_grad():
            return functional.mse_loss(self.model.module(*x), targets).item()


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
    features = len(training.inputs.numeric) + training.inputs.cardinalities[0]
    trainer = Trainer(Net(features, args.hidden), train, args)
    trainer.train(args.epochs, validation)
    loss = trainer.validate(validation)
    training.finish(trainer.model, steps=args.epochs, epochs=args.epochs, validation_loss=loss)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
