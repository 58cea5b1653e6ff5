"""A script as XGBoost's guide has it: matrices, parameters, `train` with evals, a saved model.

`boosting_adapted.py` is the same script as a pipeline's script.
"""

import argparse

import numpy as np
import xgboost as xgb


def load_data(split: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng({"train": 1, "validation": 2}[split])
    x = draw.random((2000, 3))
    return x, 10 + x @ [20.0, 5.0, 1.0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--max-depth", type=int, default=4)
    args = parser.parse_args()
    dtrain = xgb.DMatrix(*load_data("train"))
    dvalidation = xgb.DMatrix(*load_data("validation"))
    params = {
        "objective": "reg:squarederror",
        "eta": args.eta,
        "max_depth": args.max_depth,
        "tree_method": "hist",
        "nthread": 1,
    }
    booster = xgb.train(
        params,
        dtrain,
        num_boost_round=args.rounds,
        evals=[(dvalidation, "validation")],
        verbose_eval=20,
    )
    booster.save_model("booster.ubj")


if __name__ == "__main__":
    main()
