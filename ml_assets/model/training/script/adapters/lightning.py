"""Callback for Lightning's trainer: logs and saves after each epoch, on all ranks; hands in a module.

callback = LightningCallback(training, monitor="validation_loss")
trainer = pl.Trainer(devices=training.world_size, callbacks=[callback], enable_checkpointing=False, …)
trainer.fit(module, data, ckpt_path=callback.ckpt_path)
callback.finish(trainer, module.net)
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and Lightning are partial)

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch import nn

from ml_assets.model.training.script.adapters.torch_loop import seed_of_epoch
from ml_assets.model.training.script.api import Training
from resources.job.errors import BadConfiguration

_FILE = "last.ckpt"


class LightningCallback(pl.Callback):
    """Logs, saves and seeds at the end of each epoch.

    Lightning restores weights, optimizers, schedulers and its loops; it does not restore random numbers. Each epoch is
    seeded anew, so that a resumed epoch draws the same ones.
    """

    def __init__(self, training: Training, monitor: str = "validation_loss") -> None:
        """`monitor` is the name under which the module logs its validation loss in each epoch."""
        self._training, self._monitor = training, monitor
        self._loss: float | None = None

    @property
    def ckpt_path(self) -> Path | None:
        """Newest checkpoint, for `trainer.fit`; None at the first start."""
        return self._training.resumed_from and self._training.resumed_from / _FILE

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Seed the first epoch of this attempt, before its batches are drawn."""
        seed_of_epoch(self._training, self._training.resumed_step + 1)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Show progress."""
        self._training.moved()

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """Show progress."""
        self._training.moved()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the metrics of the epoch and save it, on all ranks."""
        epoch = trainer.current_epoch + 1
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if self._monitor not in figures:
            raise BadConfiguration(
                f"the module logged no {self._monitor!r} in epoch {epoch}; it logged {sorted(figures)}: log it in "
                "validation_step, or name the metric as LightningCallback(training, monitor=…)"
            )
        self._loss = figures.pop(self._monitor)
        self._training.log(epoch, **figures | {"validation_loss": self._loss})
        with self._training.checkpoint(epoch, all_ranks=True) as folder:
            trainer.save_checkpoint(folder / _FILE)
        seed_of_epoch(self._training, epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return what `finish` needs if no epoch is left after a resume."""
        return {"loss": self._loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._loss = state_dict["loss"]

    def finish(self, trainer: pl.Trainer, model: nn.Module) -> None:
        """Hand in `model`, which takes numbers and category ids, with the newest validation loss."""
        if self._loss is None:
            raise BadConfiguration("trainer.fit ended before its first epoch: raise max_epochs")
        self._training.finish(
            model, steps=trainer.global_step, epochs=trainer.current_epoch, validation_loss=self._loss
        )
