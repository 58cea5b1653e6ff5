"""A training function as accelerate's examples have it: prepared objects, a state saved by all ranks.

`accelerate_style_adapted.py` is the same script as a pipeline's `model.script`.
"""

import argparse
from pathlib import Path

import torch
from mini_accelerate import MiniAccelerate
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def get_data() -> tuple[TensorDataset, TensorDataset]:
    x = torch.rand(3000, 3)
    y = 10 + x @ torch.tensor([20.0, 5.0, 1.0])
    return TensorDataset(x[:2500], y[:2500]), TensorDataset(x[2500:], y[2500:])


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 20 * self.layers(x).squeeze(1)


def training_function(args: argparse.Namespace) -> None:
    accelerator = MiniAccelerate()
    torch.manual_seed(args.seed)
    train, validation = get_data()
    model = Net(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(train, batch_size=args.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    starting_epoch = 0
    if args.resume_from_checkpoint:
        accelerator.load_state(Path(args.resume_from_checkpoint))
        starting_epoch = int(Path(args.resume_from_checkpoint).stem.replace("epoch_", "")) + 1

    for epoch in range(starting_epoch, args.epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(functional.mse_loss(model(x), y))
            optimizer.step()
        model.eval()
        x, y = validation[accelerator.rank :: args.stride]
        with torch.no_grad():
            loss = accelerator.gather(functional.mse_loss(model(x), y)).mean().item()
        if accelerator.rank == 0:
            print(f"epoch {epoch}: {loss:.4f}")
        accelerator.save_state(Path(args.output_dir) / f"epoch_{epoch}")
    if accelerator.rank == 0:
        torch.save(accelerator.unwrap(model).state_dict(), Path(args.output_dir) / "model.pt")
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stride", type=int, default=2)
    parser.add_argument("--output-dir", default=".")
    parser.add_argument("--resume-from-checkpoint")
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
