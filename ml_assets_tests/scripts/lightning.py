"""A script as users of Lightning write it: a module, a trainer with DDP, a checkpoint callback.

`lightning_adapted.py` is the same script as a pipeline's script.
"""

import argparse
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Rainfall(pl.LightningDataModule):
    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        x = torch.rand(3000, 3)
        y = 10 + x @ torch.tensor([20.0, 5.0, 1.0])
        self.train, self.validation = TensorDataset(x[:2500], y[:2500]), TensorDataset(x[2500:], y[2500:])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.validation, batch_size=256)


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 20 * self.layers(x).squeeze(1)


class Regression(pl.LightningModule):
    def __init__(self, net: nn.Module, lr: float) -> None:
        super().__init__()
        self.net, self.lr = net, lr

    def loss_of(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return functional.mse_loss(self.net(x), y)

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
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    pl.seed_everything(0)
    module = Regression(Net(3), args.lr)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint(dirpath="checkpoints", save_last=True)],
        logger=False,
        enable_progress_bar=False,
    )
    data = Rainfall(args.batch_size)
    trainer.fit(module, data, ckpt_path=args.resume)
    if trainer.is_global_zero:
        torch.save(module.net.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
