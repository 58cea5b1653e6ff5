"""Objectives that training minimises, by their name in a pipeline's configuration.

Here: the loss of a row, and the prediction that the model's raw output stands for, as torch functions. Not here:
labels, metrics and reports of an objective (`ml_assets.objective_facts`).
"""

# pyright: reportUnknownMemberType=false
# (the annotations of torch are partial)

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import TypeAlias

import torch
from torch.nn import functional

from ml_assets.objective_facts import NAMES, UnknownObjective, facts_of
from ml_assets.training.data.batches import Batch
from resources.job.errors import BadConfiguration

LossSum: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(output, target) → scalar, summed over rows: the loop divides by the rows of all ranks."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Loss, and meaning of the model's output."""

    loss_sum: LossSum
    """Its gradient is NaN if the loss is not finite."""
    prediction: Callable[[torch.Tensor], torch.Tensor]
    """Output → prediction for people, of the same length: a probability, a value, or a probability for each class."""
    reads_blob: bool = False
    """The target is the blob, `[B, T]` whole numbers, instead of the label `[B]`. The output has a score for each
    class, `[B, T, V]`, instead of one number per row."""

    def target(self, batch: Batch) -> torch.Tensor:
        """Return the target of the output. Raises `BadConfiguration` if the rows have no target."""
        if not self.reads_blob:
            return batch.label
        if batch.blob is None or batch.blob.dtype != torch.int64 or batch.blob.ndim != 2:
            found = "there are none" if batch.blob is None else f"{batch.blob.dtype}{list(batch.blob.shape)}"
            raise BadConfiguration(
                f"this objective reads blobs of shape [rows, tokens] and type int64, {found}: name the "
                "blobs' column and a `decode` that returns one (features.blob)"
            )
        return batch.blob

    def loss(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the loss, a scalar summed over the rows of `batch`."""
        return self.loss_sum(output, self.target(batch))

    def check(self, output: torch.Tensor, batch: Batch, outputs: int = 1) -> None:
        """Raise `ValueError` if `output` does not have the shape that this objective expects.

        `outputs` is the number of classes, at least 2, if the label has classes; else 1.
        """
        target = tuple(self.target(batch).shape)
        found = tuple(output.shape)
        if self.reads_blob:
            is_right = found[: len(target)] == target and len(found) == len(target) + 1
            expected, words = (
                f"({', '.join(map(str, target))}, classes)",
                "a score of each class for every token",
            )
        elif outputs > 1:
            is_right, expected = found == (*target, outputs), f"{(*target, outputs)}"
            words = "a score for each class of the label; give the last layer `inputs.outputs` outputs"
        else:
            is_right, expected, words = found == target, f"{target}", _ONE_NUMBER
        if not is_right:
            raise ValueError(
                f"gave an output of shape {found} for {len(batch)} rows: it must be {expected}, {words}"
            )


_ONE_NUMBER = "one number a row; squeeze the last dimension"


def _cross_entropy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(output, label, reduction="sum")


def _squared_error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output, label, reduction="sum")


def _pinball(share: float, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the loss that the quantile minimises: an error costs `share` above the output, 1 - `share` below it."""
    error = label - output
    return torch.maximum(share * error, (share - 1) * error).sum()


def _poisson(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of counts, in nats, without the part that does not depend on the output."""
    return functional.poisson_nll_loss(output, label, log_input=True, full=False, reduction="sum")


def _cross_entropy_of_classes(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, label.long(), reduction="sum")


def _next_token(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the sum over rows of the mean nats per predicted token. In a row of T tokens, T - 1 are predicted, each
    from those before it."""
    scores = output[:, :-1].flatten(0, 1)
    return functional.cross_entropy(scores, tokens[:, 1:].flatten(), reduction="sum") / (tokens.shape[1] - 1)


def _softmax(output: torch.Tensor) -> torch.Tensor:
    return output.softmax(dim=-1)


def _unchanged(output: torch.Tensor) -> torch.Tensor:
    return output


def _most_likely(output: torch.Tensor) -> torch.Tensor:
    return output.argmax(dim=-1)


def _halting(loss_sum: LossSum) -> LossSum:
    """Return `loss_sum` with a gradient of NaN if the loss is not finite.

    A squared error beyond float32 is infinite, but its gradient is finite, so training went on. NaN reaches every rank
    with the averaged gradient, and all ranks stop at the same step without an exchange.
    """

    @wraps(loss_sum)
    def halting(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = loss_sum(output, target)
        if loss.requires_grad:
            is_finite = torch.isfinite(loss.detach())

            def spoil(gradient: torch.Tensor) -> torch.Tensor:
                return torch.where(is_finite, gradient, torch.nan)

            loss.register_hook(spoil)
        return loss

    return halting


OBJECTIVES: dict[str, Objective] = {
    "binary": Objective(loss_sum=_halting(_cross_entropy), prediction=torch.sigmoid),
    "regression": Objective(loss_sum=_halting(_squared_error), prediction=_unchanged),
    "count": Objective(loss_sum=_halting(_poisson), prediction=torch.exp),
    "multiclass": Objective(loss_sum=_halting(_cross_entropy_of_classes), prediction=_softmax),
    "next_token": Objective(loss_sum=_halting(_next_token), prediction=_most_likely, reads_blob=True),
}


def objective_of(name: str) -> Objective:
    """Return the objective called `name`. Raises `BadConfiguration`, which names the existing ones."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    try:
        share = facts_of(name).quantile
    except UnknownObjective:
        share = None
    if share is None:
        raise BadConfiguration(f"objective {name!r} is unknown: use one of {sorted({*OBJECTIVES, *NAMES})}")
    return Objective(loss_sum=_halting(partial(_pinball, share)), prediction=_unchanged)
