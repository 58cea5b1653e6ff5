"""`accelerate_style.py` as the `model.script` of a pipeline: same loop and library; data and states elsewhere."""

import argparse

import torch
from mini_accelerate import MiniAccelerate
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ml_assets.model.training.script import attach

training = attach()


def get_data() -> tuple[TensorDataset, TensorDataset]:
    return TensorDataset(*training.tensors("train")), TensorDataset(*training.tensors("validation"))


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        x = torch.cat([numeric, functional.one_hot(category[:, 0], training.inputs.cardinalities[0])], dim=1)
        return 20 * self.layers(x).squeeze(1)


def training_function(args: argparse.Namespace) -> None:
    accelerator = MiniAccelerate()
    torch.manual_seed(args.seed)
    train, validation = get_data()
    model = Net(len(training.inputs.numeric) + training.inputs.cardinalities[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(train, batch_size=args.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    if training.resumed_from:
        accelerator.load_state(training.resumed_from)

    for epoch in range(training.resumed_step, args.epochs):
        model.train()
        for *x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(functional.mse_loss(model(*x), y))
            optimizer.step()
        model.eval()
        *x, y = validation[accelerator.rank :: args.stride]
        with torch.no_grad():
            loss = accelerator.gather(functional.mse_loss(model(*x), y)).mean().item()
        training.log(epoch + 1, validation_loss=loss)
        with training.checkpoint(epoch + 1, all_ranks=True) as folder:
            accelerator.save_state(folder)
    accelerator.end_training()
    training.finish(accelerator.unwrap(model), steps=args.epochs, epochs=args.epochs, validation_loss=loss)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stride", type=int, default=2)
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
