"""`lightning.py` as a pipeline's script: same module, same trainer; other places for data and checkpoints."""

import argparse

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ml_assets.model.training.script import attach
from ml_assets.model.training.script.adapters.lightning import LightningCallback

training = attach()


class Rainfall(pl.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.train, self.validation = (TensorDataset(*training.tensors(s)) for s in ("train", "validation"))

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.validation, batch_size=256)


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        x = torch.cat([numeric, functional.one_hot(category[:, 0], training.inputs.cardinalities[0])], dim=1)
        return 20 * self.layers(x).squeeze(1)


class Regression(pl.LightningModule):
    def __init__(self, net: nn.Module, lr: float) -> None:
        super().__init__()
        self.net, self.lr = net, lr

    def loss_of(self, batch: list[torch.Tensor]) -> torch.Tensor:
        *x, y = batch
        return functional.mse_loss(self.net(*x), y)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.loss_of(batch)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("validation_loss", self.loss_of(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.03)
    args = parser.parse_args()
    pl.seed_everything(0)
    module = Regression(Net(len(training.inputs.numeric) + training.inputs.cardinalities[0]), args.lr)
    callback = LightningCallback(training)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=training.world_size,
        strategy="ddp",
        max_epochs=args.epochs,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    data = Rainfall(args.batch_size)
    trainer.fit(module, data, ckpt_path=callback.ckpt_path)
    callback.finish(trainer, module.net)


if __name__ == "__main__":
    main()
