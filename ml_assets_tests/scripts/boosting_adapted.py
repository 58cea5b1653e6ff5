"""`boosting.py` as a pipeline's script: same parameters; other matrices, and the platform's callback."""

import argparse

import xgboost as xgb

from ml_assets.model.training.script import attach
from ml_assets.model.training.script.adapters.boosting import BoostingCallback

training = attach()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--eta", type=float, default=0.1)
    parser.add_argument("--max-depth", type=int, default=4)
    args = parser.parse_args()
    dtrain = xgb.DMatrix(*training.matrix("train"))
    dvalidation = xgb.DMatrix(*training.matrix("validation"))
    params = {
        "objective": "reg:squarederror",
        "eta": args.eta,
        "max_depth": args.max_depth,
        "tree_method": "hist",
        "nthread": 1,
    }
    callback = BoostingCallback(training)
    booster = xgb.train(
        params,
        dtrain,
        num_boost_round=callback.rounds_left(args.rounds),
        evals=[(dvalidation, "validation")],
        verbose_eval=20,
        callbacks=[callback],
        xgb_model=callback.xgb_model,
    )
    callback.finish(booster)


if __name__ == "__main__":
    main()
