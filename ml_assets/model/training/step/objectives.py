"""Objectives that training minimises, by their name in a pipeline's configuration.

Here: the loss of a row, and the prediction that the model's raw output stands for, as torch functions. Not here:
labels, metrics and reports of an objective (`ml_assets.foundation.objective_facts`).
"""

# pyright: reportUnknownMemberType=false
# (the annotations of torch are partial)

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Literal, TypeAlias

import torch
from torch.nn import functional

from ml_assets.foundation.objective_facts import NAMES, PADDING, UnknownObjective, facts_of
from ml_assets.model.training.data.batches import Batch
from resources.job.errors import BadConfiguration

LossSum: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(output, target) → scalar, summed over rows or lists: the loop divides by those of all ranks."""
Reduction: TypeAlias = Literal["none", "sum"]
RowLosses: TypeAlias = Callable[[torch.Tensor, torch.Tensor, Reduction], torch.Tensor]
"""(output, label `[B]`, reduction) → loss of each row `[B]`, or their sum."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Loss, and meaning of the model's output."""

    loss_sum: LossSum
    """Its gradient is NaN if the loss is not finite."""
    link: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Output → prediction for people, of the same length: a probability, a value, or a probability for each class. None
    if a prediction depends on the blob too (`predicted`)."""
    reads_blob: bool = False
    """The target is the blob, `[B, T]` whole numbers, instead of the label `[B]`. The output has a score for each
    class, `[B, T, V]`, instead of one number per row."""
    dimensions: int = 1
    """Dimensions of the output. In training, a model may answer with one more, the first: the outputs of its
    members."""
    reads_lists: bool = False
    """The target is `[B, 2]`, the label and the number of the row's list in the batch, and the loss is summed over
    lists."""

    def target(self, batch: Batch) -> torch.Tensor:
        """Return the target of the output: the label `[B]`, with weights `[B, 2]` the label and the weight of each row.

        Raises `BadConfiguration` if the rows have no target, or weights that this objective does not take.
        """
        if batch.weight is not None:
            if self.reads_lists or self.reads_blob:
                raise BadConfiguration(
                    "rows have weights, and this objective does not take any: leave out features.weight"
                )
            # One tensor, so that a pipeline can cut it into passes.
            return torch.stack([batch.label, batch.weight], dim=1)
        if self.reads_lists:
            return _with_lists(batch)
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
        """Return the loss, a scalar summed over the rows of `batch`, or over its lists; of members, their mean."""
        target = self.target(batch)
        if output.ndim <= self.dimensions:
            return self.loss_sum(output, target)
        return torch.stack([self.loss_sum(member, target) for member in output]).mean()

    def predicted(self, output: torch.Tensor, blob: torch.Tensor | None = None) -> torch.Tensor:
        """Return the prediction for people that `output` stands for: `[B]`, `[B, classes]`, or for texts, which are
        the `blob`, `[B, 2]`: mean nats per predicted token, and the share of tokens predicted right."""
        if self.link is not None:
            return self.link(output)
        if blob is None:
            raise BadConfiguration("this objective predicts the tokens of a text, and the rows have no blobs")
        return torch.stack(
            [_per_token(one, blob) for one in (token_nats(output, blob), _hits(output, blob))], 1
        )

    def check(self, output: torch.Tensor, batch: Batch, outputs: int = 1) -> None:
        """Raise `ValueError` if `output` does not have the shape that this objective expects.

        `outputs` is the number of classes, at least 2, if the label has classes, or of token ids if they are declared;
        else 1.
        """
        target = tuple(self.target(batch).shape) if self.reads_blob else (len(batch),)
        found = tuple(output.shape)
        if self.reads_blob:
            is_right = found == (*target, outputs) if outputs > 1 else found[:-1] == target
            ids = outputs if outputs > 1 else "token ids"
            expected = f"({', '.join(map(str, target))}, {ids})"
            words = "a score of each token id for every token; give the last layer `inputs.outputs` outputs"
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


def _summed(losses: RowLosses) -> LossSum:
    """Return the sum of the rows' losses, each times the weight of its row if the target has weights."""

    def loss_sum(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if target.ndim == 1:
            return losses(output, target, "sum")
        label, weight = target.unbind(dim=1)
        return (losses(output, label, "none") * weight).sum()

    return loss_sum


def _cross_entropy(output: torch.Tensor, label: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(output, label, reduction=reduction)


def _squared_error(output: torch.Tensor, label: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    return functional.mse_loss(output, label, reduction=reduction)


def _pinball(share: float, output: torch.Tensor, label: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    """Return the loss that the quantile minimises: an error costs `share` above the output, 1 - `share` below it."""
    error = label - output
    losses = torch.maximum(share * error, (share - 1) * error)
    return losses if reduction == "none" else losses.sum()


def _poisson(output: torch.Tensor, label: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    """Return the negative log-likelihood of counts, in nats, without the part that does not depend on the output."""
    return functional.poisson_nll_loss(output, label, log_input=True, full=False, reduction=reduction)


def _cross_entropy_of_classes(
    output: torch.Tensor, label: torch.Tensor, reduction: Reduction
) -> torch.Tensor:
    return functional.cross_entropy(output, label.long(), reduction=reduction)


def _next_token(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the nats of all predicted tokens, divided by T - 1. Of T tokens at most T - 1 are predicted, each from
    those before it; `PADDING` fills up a short row, and is not. So every token of a split counts the same, and a row
    without padding loses its mean nats per token."""
    scores = output[:, :-1].flatten(0, 1)
    nats = functional.cross_entropy(scores, tokens[:, 1:].flatten(), reduction="sum", ignore_index=PADDING)
    return nats / (tokens.shape[1] - 1)


def token_nats(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the nats of each predicted token, `[B, T - 1]`; 0 for `PADDING` of `tokens` `[B, T]`."""
    targets = tokens[:, 1:]
    log_probability = output[:, :-1].log_softmax(dim=-1)
    nats = -log_probability.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(targets != PADDING, nats, 0.0)


def _hits(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return 1 for each predicted token that has the highest score, else 0, `[B, T - 1]`."""
    return (output[:, :-1].argmax(dim=-1) == tokens[:, 1:]).to(output.dtype)


def _per_token(values: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean of each row's predicted tokens, `[B]`; 0 for a row without one."""
    return values.sum(dim=1) / (tokens[:, 1:] != PADDING).sum(dim=1).clamp(min=1)


def _with_lists(batch: Batch) -> torch.Tensor:
    if batch.lists is None:
        raise BadConfiguration(
            "this objective orders lists, and the snapshot's rows form none: name the column of a row's list in the "
            "pipeline (evaluation.group)"
        )
    begins = torch.diff(batch.lists, prepend=batch.lists[:1]) != 0
    number = torch.cumsum(begins, 0)
    return torch.stack([batch.label, number.to(batch.label.dtype)], dim=1)  # exact below 2^24 lists


def _listwise(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of the relevance with the softmax of the scores, in nats, summed over lists (ListNet's
    top-one loss, Cao et al. 2007; a bound of NDCG, Bruch et al. 2019).

    A list's relevance adds up to 1, so that each list counts the same. A list without a relevant row counts 0.
    """
    relevance, number = target[:, 0], target[:, 1].long()
    rows = torch.bincount(number)
    first = torch.cumsum(rows, 0) - rows
    place = torch.arange(len(number), device=number.device) - first[number]
    shape = (len(rows), int(rows.max()) if len(rows) else 0)
    # One row of a matrix for each list: reductions of its rows are deterministic on every device, unlike index_add.
    scores = output.new_full(shape, -torch.inf).index_put((number, place), output)
    chances = scores.log_softmax(dim=1)[number, place]
    total = relevance.new_zeros(shape).index_put((number, place), relevance).sum(dim=1)
    share = relevance / torch.where(total > 0, total, 1.0)[number]
    return -(share * chances).sum()


def _softmax(output: torch.Tensor) -> torch.Tensor:
    return output.softmax(dim=-1)


def _unchanged(output: torch.Tensor) -> torch.Tensor:
    return output


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
    "binary": Objective(loss_sum=_halting(_summed(_cross_entropy)), link=torch.sigmoid),
    "regression": Objective(loss_sum=_halting(_summed(_squared_error)), link=_unchanged),
    "count": Objective(loss_sum=_halting(_summed(_poisson)), link=torch.exp),
    "multiclass": Objective(
        loss_sum=_halting(_summed(_cross_entropy_of_classes)), link=_softmax, dimensions=2
    ),
    "ranking": Objective(loss_sum=_halting(_listwise), link=_unchanged, reads_lists=True),
    "next_token": Objective(loss_sum=_halting(_next_token), reads_blob=True, dimensions=3),
}


def objective_of(name: str) -> Objective:
    """Return the objective called `name`. Raises `BadConfiguration`, which names the existing ones."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    try:
        facts = facts_of(name)
    except UnknownObjective:
        facts = None
    if facts is not None and facts.trained_as in OBJECTIVES:
        return OBJECTIVES[facts.trained_as]
    share = None if facts is None else facts.quantile
    if share is None:
        raise BadConfiguration(f"objective {name!r} is unknown: use one of {sorted({*OBJECTIVES, *NAMES})}")
    return Objective(loss_sum=_halting(_summed(partial(_pinball, share))), link=_unchanged)
