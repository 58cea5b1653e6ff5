"""LightGBM as a script: trees on the training rows, as many as lower the log loss of the validation rows.

Trees see few columns, and leaves have many rows: flights of the same hours share their weather and delays, so the rows
hold far fewer independent outcomes than flights. Training takes a minute, so there are no checkpoints.
"""

import argparse
import os
from typing import TYPE_CHECKING, Any

import lightgbm

from ml_assets.model.training.script import attach

if TYPE_CHECKING:
    from ml_assets.model.training.script.api import Training

EVERY = 10
"""Trees between two figures of the log."""


def main() -> None:
    """Train on the snapshot of the job and hand in the trees."""
    training = attach()
    booster, loss = grow(training, tree_arguments().parse_args())
    training.finish(booster, steps=booster.best_iteration, validation_loss=loss)


def tree_arguments() -> argparse.ArgumentParser:
    """Return the parser of the settings of `grow`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3000, help="most trees")
    parser.add_argument("--patience", type=int, default=100, help="trees without a lower validation loss")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--leaves", type=int, default=15, help="most leaves of a tree")
    parser.add_argument("--leaf-rows", type=int, default=200, help="fewest rows of a leaf")
    parser.add_argument("--columns", type=float, default=0.5, help="share of the columns that a tree sees")
    parser.add_argument("--rows", type=float, default=0.7, help="share of the rows that a tree sees")
    parser.add_argument("--l2", type=float, default=10.0)
    return parser


def grow(training: "Training", args: argparse.Namespace) -> tuple[Any, float]:
    """Return the trees, a `lightgbm.Booster`, and their validation loss. Steps of the log are trees."""
    options = {
        "objective": "binary",
        "learning_rate": args.rate,
        "num_leaves": args.leaves,
        "min_data_in_leaf": args.leaf_rows,
        "feature_fraction": args.columns,
        "bagging_fraction": args.rows,
        "bagging_freq": 1,
        "lambda_l2": args.l2,
        "seed": training.job.seed,
        "deterministic": True,  # the same trees with any number of threads
        "force_row_wise": True,
        "num_threads": os.cpu_count(),  # a rank has one thread unless it asks for more
        "verbose": -1,
    }
    data = lightgbm.Dataset(*training.matrix("train"), params=options)
    validation = lightgbm.Dataset(*training.matrix("validation"), reference=data)
    training.check_model(lightgbm.train(options, data, 1))

    def report(step: lightgbm.callback.CallbackEnv) -> None:
        training.moved()
        if (step.iteration + 1) % EVERY == 0 and step.evaluation_result_list:
            training.log(step.iteration + 1, validation_loss=step.evaluation_result_list[0][2])

    booster = lightgbm.train(
        options,
        data,
        args.rounds,
        [validation],
        callbacks=[lightgbm.early_stopping(args.patience, verbose=False), report],
    )
    return booster, booster.best_score["valid_0"]["binary_logloss"]


if __name__ == "__main__":
    main()
