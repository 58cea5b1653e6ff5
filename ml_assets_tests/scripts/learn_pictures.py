"""A script that learns from pictures: all of them in memory, whole-batch steps, nothing saved."""

import torch
from torch import nn
from torch.nn import functional

from ml_assets.model.training.script import attach

training = attach()


class Looking(nn.Module):
    """A linear model of a picture, beside a level for each category."""

    def __init__(self, points: int) -> None:
        super().__init__()
        self.level = nn.Embedding(training.inputs.cardinalities[0], 1)
        self.seen = nn.Linear(points, 1)

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, blob: torch.Tensor) -> torch.Tensor:
        """`[B, F]`, `[B, C]`, `[B, ...]` → `[B]`."""
        return (self.level(category[:, 0]) + self.seen(blob.flatten(1).float() / 255)).squeeze(1)


def main() -> None:
    """Train on everything at once."""
    torch.manual_seed(training.job.seed)
    data = {split: (*training.tensors(split), training.blobs(split)) for split in ("train", "validation")}
    model = Looking(data["train"][3][0].numel())
    optimizer = torch.optim.Adam(model.parameters(), lr=training.hyperparameters["lr"])

    def loss_of(split: str) -> torch.Tensor:
        numeric, category, label, blob = data[split]
        return functional.mse_loss(model(numeric, category, blob), label)

    steps: int = training.hyperparameters["steps"]
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of("train").backward()
        optimizer.step()
    with torch.no_grad():
        loss = loss_of("validation").item()
    training.log(steps, validation_loss=loss)
    training.finish(model, steps=steps, epochs=steps, validation_loss=loss)


if __name__ == "__main__":
    main()
