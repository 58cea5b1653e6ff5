"""LightGBM as a pipeline's `model.script`: one round is tried before training; finish takes the booster as it is."""

import argparse

import lightgbm
import numpy as np

from ml_assets.model.training.script import attach

training = attach()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--categories", action="store_true")
    args = parser.parse_args()
    x, y = training.matrix("train")
    validation_x, validation_y = training.matrix("validation")
    places = range(len(training.inputs.numeric), x.shape[1]) if args.categories else ()
    data = lightgbm.Dataset(x, y, categorical_feature=list(places))
    options = {"objective": "regression", "num_leaves": 15, "verbose": -1, "num_threads": 1}
    if classes := len(training.inputs.classes):
        options |= {"objective": "multiclass", "num_class": classes}
    training.check_model(lightgbm.train(options, data, 1))

    booster = lightgbm.train(options, data, args.rounds)
    answers = booster.predict(validation_x)
    if classes:
        loss = float(-np.log(answers[np.arange(len(answers)), validation_y]).mean())
    else:
        loss = float(np.mean((answers - validation_y) ** 2))
    training.log(args.rounds, validation_loss=loss)
    with training.checkpoint(args.rounds) as folder:
        booster.save_model(folder / "booster.txt")
    training.finish(booster, steps=args.rounds, validation_loss=loss)


if __name__ == "__main__":
    main()
