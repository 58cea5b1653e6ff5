"""Trees and a network as a script, handed in as one model: the weighted mean of their predictions.

Both learn from the same rows. Trees see steps in a number and the network sees sums of many columns, so they err on
different rows and their mean is better than either. The validation rows choose the weight, as they choose the number of
trees. Steps of the log are trees, then steps of the network.
"""

import argparse

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ml_assets.defs.flights.flight_delay_trees.train import grow, tree_arguments
from ml_assets.defs.flights.model import build
from ml_assets.model.training.script import attach
from ml_assets.model.training.script.api import Training
from ml_assets.model.training.script.blend import Blend

WEIGHTS = np.linspace(0, 1, 21)
"""Weights of the network to choose from."""
BATCH = 1024
WARM_UP = 0.1
"""Share of the network's steps in which its learning rate rises."""
AT_ONCE = 65_536
"""Rows that the network predicts at once."""


def main() -> None:
    """Train both on the snapshot of the job and hand in their mean."""
    training = attach()
    parser = tree_arguments()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--learning-rate", type=float, default=0.002, help="peak of the network's schedule")
    args = parser.parse_args()
    trees, _ = grow(training, args)
    network = fit(training, args)
    matrix, label = training.matrix("validation")
    of_trees, of_network = trees.predict(matrix, num_threads=1), predicted(network, training)
    losses = [log_loss(label, weight * of_network + (1 - weight) * of_trees) for weight in WEIGHTS]
    best = int(np.argmin(losses))
    steps = training.step + 1
    training.log(steps, validation_loss=losses[best], weight_of_the_network=float(WEIGHTS[best]))
    mean = Blend([trees, network], [1 - WEIGHTS[best], WEIGHTS[best]])
    training.finish(mean, steps=steps, epochs=args.epochs, validation_loss=losses[best])


def fit(training: Training, args: argparse.Namespace) -> torch.nn.Module:
    """Return the network of `flight_delay`, trained with AdamW and one cycle of the learning rate."""
    torch.manual_seed(training.job.seed)
    numeric, category, label = training.tensors("train")
    network = build(training.inputs, dropout=args.dropout)
    optimizer = torch.optim.AdamW(network.parameters(), lr=args.learning_rate)
    total = args.epochs * -(-len(label) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.learning_rate, total_steps=total, pct_start=WARM_UP
    )
    first_step = training.step
    for epoch in range(args.epochs):
        for rows in torch.randperm(len(label)).split(BATCH):
            loss = functional.binary_cross_entropy_with_logits(
                network(numeric[rows], category[rows]), label[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            training.moved()
        step = first_step + (epoch + 1) * total // args.epochs
        validation = log_loss(training.rows("validation").label, predicted(network, training))
        training.log(step, network_validation_loss=validation)
    return network


def predicted(network: torch.nn.Module, training: Training) -> NDArray[np.float64]:
    """Return the probability of each validation row, `[rows]`. Leaves the network in training mode."""
    numeric, category, _ = training.tensors("validation")
    network.eval()
    with torch.no_grad():
        batches = zip(numeric.split(AT_ONCE), category.split(AT_ONCE), strict=True)
        logits = torch.cat([network(*batch) for batch in batches])
    network.train()
    return torch.sigmoid(logits.double()).numpy()


def log_loss(label: NDArray[np.float32], probability: NDArray[np.float64]) -> float:
    """Return the mean log loss of `probability`, in nats."""
    return float(-np.mean(np.log(np.where(label == 1, probability, 1 - probability))))


if __name__ == "__main__":
    main()
