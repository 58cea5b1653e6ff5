"""Gradient-boosted trees as one finds them in a notebook: no torch, a file of its own to go on from.

`trees_adapted.py` is the same script as a pipeline's `model.script`.
"""

import argparse
from pathlib import Path

import joblib
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_squared_error


def load_data(split: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng({"train": 1, "validation": 2}[split])
    x = draw.random((2000, 3))
    return x, 10 + x @ [20.0, 5.0, 1.0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--trees-a-round", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    args = parser.parse_args()
    x, y = load_data("train")
    validation_x, validation_y = load_data("validation")

    saved = Path("trees.joblib")
    if saved.exists():
        model = joblib.load(saved)
    else:
        model = HistGradientBoostingRegressor(
            learning_rate=args.learning_rate,
            max_iter=0,
            warm_start=True,
            early_stopping=False,
            random_state=0,
        )
    while model.max_iter < args.trees:
        model.set_params(max_iter=model.max_iter + args.trees_a_round)
        model.fit(x, y)
        loss = mean_squared_error(validation_y, model.predict(validation_x))
        print(f"{model.max_iter} trees: validation loss {loss:.4f}")
        joblib.dump(model, saved)


if __name__ == "__main__":
    main()
