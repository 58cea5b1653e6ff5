"""Callback for the `Trainer` of transformers, its rows, and handing in its model.

callback = TransformersCallback(training)  # args=TrainingArguments(output_dir=callback.output_dir, …)
trainer = Trainer(
    model=model, args=arguments, train_dataset=SplitDataset(training, "train"),
    eval_dataset=SplitDataset(training, "validation"), callbacks=[callback],
)
trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint)
callback.finish(trainer)
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
# (the annotations of torch and transformers are partial)

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ml_assets.model.training.script.api import Training
from ml_assets.model.training.script.data import ReadableSplit
from resources.job.errors import BadConfiguration

_RANDOM = "rng_state_{}.pth"
"""File of each process with its random numbers; the trainer has no number in it with a single process."""


class SplitDataset(Dataset[dict[str, torch.Tensor]]):
    """Rows of a split as keyword arguments of a model's forward: `numeric`, `category`, `labels`.

    The trainer calls `set_epoch`, so each epoch draws the categories that count as unknown anew.
    """

    def __init__(self, training: Training, split: ReadableSplit) -> None:
        self._training = training
        self._split: ReadableSplit = split
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw the unknown categories of `epoch`."""
        self._numeric, self._category, self._labels = self._training.tensors(self._split, epoch=epoch)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "numeric": self._numeric[index],
            "category": self._category[index],
            "labels": self._labels[index],
        }


class TransformersCallback(TrainerCallback):
    """Logs what the trainer logs, and keeps each checkpoint that the trainer saves, with the state of all ranks.

    For one process or DDP. The trainer restores weights, optimizer, scheduler, random numbers and its place among the
    batches.
    """

    def __init__(self, training: Training) -> None:
        self._training = training

    @property
    def output_dir(self) -> str:
        """Folder for the trainer's own checkpoints, in the job's folder; `finish` deletes it."""
        return str(self._training.folder / "trainer")

    @property
    def resume_from_checkpoint(self) -> str | None:
        """Newest checkpoint, for `trainer.train`; None at the first start."""
        return None if self._training.resumed_from is None else str(self._training.resumed_from)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Show progress."""
        self._training.moved()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Show progress."""
        self._training.moved()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Log figures; `eval_loss` is the validation loss."""
        figures = {
            "validation_loss" if name == "eval_loss" else name: float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, int | float)
        }
        if state.global_step:
            self._training.log(state.global_step, **figures)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Keep the checkpoint that the trainer has just written. Each rank keeps its own random numbers."""
        written = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
        of_ranks = {_RANDOM.format(rank) for rank in range(self._training.world_size)}
        mine = _RANDOM.format(self._training.rank)
        with self._training.checkpoint(state.global_step, all_ranks=True) as folder:
            for path in written.iterdir():
                if path.name == mine or (self._training.rank == 0 and path.name not in of_ranks):
                    (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / path.name)

    def finish(self, trainer: Trainer) -> None:
        """Measure the trainer's model on its `eval_dataset`, and hand it in. Call it on all ranks."""
        loss = trainer.evaluate().get("eval_loss")
        if loss is None:
            raise BadConfiguration(
                "trainer.evaluate gave no eval_loss: let the model return a loss where it gets labels"
            )
        self._training.finish(
            _Logits(trainer.accelerator.unwrap_model(trainer.model)),
            steps=trainer.state.global_step,
            epochs=int(trainer.args.num_train_epochs),
            validation_loss=float(loss),
        )
        if self._training.rank == 0:
            shutil.rmtree(self.output_dir, ignore_errors=True)


class _Logits(nn.Module):
    """Model of transformers as a module of tensors: returns its logits, `[rows]` or `[rows, classes]`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        answer = self.model(numeric=numeric, category=category)
        return answer if isinstance(answer, torch.Tensor) else answer["logits"]
