"""`trees.py` as the `model.script` of a pipeline: same loop and estimator; data, trees and model elsewhere."""

import argparse

import joblib
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_squared_error

from ml_assets.model.training.script import attach

training = attach()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--trees-a-round", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    args = parser.parse_args()
    x, y = training.matrix("train")
    validation_x, validation_y = training.matrix("validation")

    if training.resumed_from:
        model = joblib.load(training.resumed_from / "trees.joblib")
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
        training.log(model.max_iter, validation_loss=loss)
        with training.checkpoint(model.max_iter) as folder:
            joblib.dump(model, folder / "trees.joblib")
    loss = mean_squared_error(validation_y, model.predict(validation_x))
    training.finish(model, steps=model.max_iter, validation_loss=loss)


if __name__ == "__main__":
    main()
