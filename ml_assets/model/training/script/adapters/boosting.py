"""Callback for `xgboost.train`: logs each round, saves every few rounds, hands in the booster.

callback = BoostingCallback(training, every=10)
booster = xgboost.train(
    params, data, callback.rounds_left(100), evals=[(validation, "validation")], callbacks=[callback],
    xgb_model=callback.xgb_model,
)
callback.finish(booster)
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of XGBoost are partial)

from pathlib import Path
from typing import Any

import xgboost
from xgboost.callback import TrainingCallback

from ml_assets.model.training.script.api import Training
from resources.job.errors import BadConfiguration

_FILE = "booster.ubj"
_LOSS = "validation_loss_{}"
"""Attribute of the booster with its validation loss after a number of rounds: a resume reads it, and early stopping
with `save_best` hands in fewer rounds than were trained."""
_GAINS = {"auc", "aucpr", "map", "ndcg", "pre", "interval-regression-accuracy"}
"""XGBoost's metrics of which more is better, without the variants `@5` and `-`."""


class BoostingCallback(TrainingCallback):
    """Logs the last metric of the last set in `evals`, as XGBoost's early stopping does, and saves the booster."""

    def __init__(self, training: Training, every: int = 10) -> None:
        """`every`: rounds between two checkpoints."""
        super().__init__()
        self._training, self._every = training, every

    @property
    def xgb_model(self) -> Path | None:
        """Newest checkpoint, for `xgboost.train`; None at the first start."""
        return self._training.resumed_from and self._training.resumed_from / _FILE

    def rounds_left(self, rounds: int) -> int:
        """Return how many of `rounds` are left after the newest checkpoint."""
        return max(0, rounds - self._training.resumed_step)

    def after_iteration(self, model: Any, epoch: int, evals_log: dict[str, dict[str, list[Any]]]) -> bool:
        """Log the round; save it if it is due."""
        if not evals_log:
            raise BadConfiguration(
                "xgboost.train has no evals: give evals=[(validation, 'validation')], whose loss is logged"
            )
        name, losses = list(list(evals_log.values())[-1].items())[-1]
        if name.partition("@")[0].rstrip("-") in _GAINS:
            raise BadConfiguration(
                f"{name} is no loss: name a loss last in eval_metric, such as logloss or rmse"
            )
        newest = losses[-1]
        loss = float(newest[0]) if isinstance(newest, tuple) else float(newest)
        step = int(model.num_boosted_rounds())
        model.set_attr(**{_LOSS.format(step): repr(loss)})
        self._training.log(step, validation_loss=loss)
        if step % self._every == 0:
            with self._training.checkpoint(step) as folder:
                model.save_model(folder / _FILE)
        return False

    def finish(self, booster: xgboost.Booster) -> None:
        """Hand in `booster` with the validation loss of its last round."""
        rounds = booster.num_boosted_rounds()
        loss = booster.attr(_LOSS.format(rounds))
        if loss is None:
            raise BadConfiguration(
                f"this callback saw no loss after round {rounds} of the booster: train it with the callback, from its "
                "first round, and hand in what xgboost.train returned"
            )
        self._training.finish(booster, steps=rounds, validation_loss=float(loss))
