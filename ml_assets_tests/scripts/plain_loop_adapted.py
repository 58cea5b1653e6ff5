"""`plain_loop.py` as a pipeline's script: same functions; other rows, and checkpoints."""

import argparse

import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ml_assets.model.training.script import attach
from ml_assets.model.training.script.adapters.torch_loop import LoopState

training = attach()


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, 16)
        self.dropout1 = nn.Dropout(0.05)
        self.fc2 = nn.Linear(16, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        x = torch.cat([numeric, functional.one_hot(category[:, 0], training.inputs.cardinalities[0])], dim=1)
        x = functional.relu(self.fc1(x))
        x = self.dropout1(x)
        return 20 * self.fc2(x).squeeze(1)


def load_data() -> tuple[Dataset, Dataset]:
    return TensorDataset(*training.tensors("train")), TensorDataset(*training.tensors("validation"))


def train(
    args: argparse.Namespace, model: nn.Module, loader: DataLoader, optimizer: optim.Optimizer, epoch: int
) -> None:
    model.train()
    for batch_idx, (*data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(*data)
        loss = functional.mse_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}/{len(loader)}]\tLoss: {loss.item():.6f}")


def test(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    test_loss = 0.0
    with torch.no_grad():
        for *data, target in loader:
            output = model(*data)
            test_loss += functional.mse_loss(output, target, reduction="sum").item()
    test_loss /= len(loader.dataset)
    print(f"\nTest set: Average loss: {test_loss:.4f}\n")
    return test_loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--gamma", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dataset1, dataset2 = load_data()
    train_loader = DataLoader(dataset1, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(dataset2, batch_size=1000)
    model = Net(len(training.inputs.numeric) + training.inputs.cardinalities[0])
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    state = LoopState(training, model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in state.epochs(args.epochs):
        train(args, model, train_loader, optimizer, epoch)
        scheduler.step()
        state.save(epoch, validation_loss=test(model, test_loader))
    training.finish(model, steps=args.epochs, epochs=args.epochs, validation_loss=test(model, test_loader))


if __name__ == "__main__":
    main()
