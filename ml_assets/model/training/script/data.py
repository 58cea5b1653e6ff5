"""Rows of a script: the splits of a snapshot as arrays, tensors or one matrix, and example rows to try its model.

Here: those shapes, the choice of the example rows, the requirements on a model's answers, and the errors for a wrong
answer. Not here: rows in lane order, which the platform's own loop reads (data.prefetcher, data.batches); asking a
model (script_model, matrix_graph).
"""

# pyright: reportUnknownMemberType=false
# (the annotations of torch are partial)

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ml_assets.data.snapshots.split_reader import InputSpec, Rows, ShardChanged, Snapshot, verify
from ml_assets.foundation.objective_facts import ROUNDED, facts_of
from ml_assets.model.training.data.batches import Decoder, decode_of
from ml_assets.model.training.data.preprocess import Preprocess
from resources.job.errors import BadConfiguration, InputChanged
from resources.job.job import TrainingJob

ReadableSplit: TypeAlias = Literal["train", "validation"]


def rows_of(snapshot: Snapshot, split: ReadableSplit) -> Rows:
    """Return all rows of a split, verified against the manifest's digests. Labels of classes are int64, places in
    `inputs.classes`: libraries refuse floats there. Raises `InputChanged` if a digest differs, and `BadConfiguration`
    for the holdout."""
    if split not in ("train", "validation"):
        raise BadConfiguration(
            f"a script reads train and validation, not {split!r}: the holdout evaluates its model"
        )
    try:
        verify(snapshot, snapshot.shards_of(split))
        rows = snapshot.read(split)
    except ShardChanged as error:
        raise InputChanged(str(error)) from error
    return replace(rows, label=rows.label.astype(np.int64)) if snapshot.inputs.classes else rows


def tensors_of(rows: Rows, inputs: InputSpec) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers `[rows, F]` float32, standardised and filled, category ids `[rows, C]` int64, labels `[rows]`
    float32, or int64 for classes.
    """
    # Copies: torch must not write to a memory-mapped file.
    numeric = Preprocess(inputs)(torch.from_numpy(rows.numeric.copy()))
    category = torch.from_numpy(rows.category.astype(np.int64))
    return numeric, category, torch.from_numpy(rows.label.copy())


def weights_of(rows: Rows) -> NDArray[np.float32] | None:
    """Return the weight of each row, `[rows]` float32, 1 on average; None if each row counts once."""
    return None if rows.weight is None else rows.weight.copy()


def blobs_of(rows: Rows, job: TrainingJob, inputs: InputSpec, count: int | None = None) -> torch.Tensor:
    """Return the blobs of all `rows`, or of the first `count` (at least one), in memory.

    `[rows, ...]`, as the pipeline's `decode` returns them. Raises `BadConfiguration` if rows have no blobs, or if a
    blob cannot be decoded.
    """
    decode, blobs = decode_of(job, inputs), rows.blobs
    if decode is None or blobs is None:
        raise BadConfiguration(
            "rows have no blobs: name their column, and how one is read, in the pipeline (features.blob)"
        )
    chosen = np.arange(len(rows) if count is None else count)
    stored = zip(rows.row[chosen].tolist(), blobs.take(chosen), strict=True)
    return Decoder(decode).decoded(stored, len(chosen))


def matrix_of(rows: Rows) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the matrix `[rows, F + C]` float32 (standardised numbers, NaN where missing, then category ids) and labels
    `[rows]`, float32, or int64 for classes."""
    return np.hstack([rows.numeric, rows.category.astype(np.float32)]), rows.label


_ROWS, _ROWS_WITH_BLOBS = 1024, 8
_TOLERANCE = 1e-4
"""Largest difference between two answers to a row, as a share of the largest answer: float32 sums differ."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """Rows on which a model is tried: the first rows of a split, then a row in which every value is missing."""

    inputs: InputSpec
    objective: str
    split: ReadableSplit | Literal["golden"]
    """`golden`: rows that came with a model that was trained elsewhere."""
    numeric: NDArray[np.float32]
    """`[B, F]`, standardised, NaN where missing; F may be 0."""
    category: NDArray[np.int64]
    """`[B, C]` ids; C may be 0."""
    blobs: torch.Tensor | None
    """`[B, ...]` as the pipeline's `decode` returns them; None if rows have no blobs."""

    @property
    def matrix(self) -> NDArray[np.float32]:
        """`[B, F + C]`, as `matrix_of` returns it."""
        return np.hstack([self.numeric, self.category.astype(np.float32)])

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return self.numeric.shape[1] + self.category.shape[1]

    @property
    def matrix_words(self) -> str:
        """Words for the matrix in an error."""
        if self.split == "golden":
            return f"[rows, {self.width}] of its inputs: numbers, NaN where unknown, and texts, empty where unknown,"
        return (
            f"[rows, {self.width}] float32: {self.numeric.shape[1]} numbers, then {self.category.shape[1]} category "
            "ids, as Training.matrix gives it"
        )

    @property
    def rows_words(self) -> str:
        """Words for the rows in an error."""
        return f"the first {len(self.numeric) - 1} {self.split} rows and one in which every value is missing"

    @property
    def answer_words(self) -> str:
        """Words for a graph's answer in an error."""
        return facts_of(self.objective).answer

    @property
    def is_probability(self) -> bool:
        """True if a prediction is the probability of the label 1, as a classifier of two classes gives it."""
        return facts_of(self.objective).is_zero_or_one

    @property
    def classes(self) -> int:
        """Classes of the label, for each of which a model answers a number; 0 if the label is a number."""
        return len(self.inputs.classes)

    @property
    def classes_words(self) -> str:
        """Words for the classes in an error."""
        return ", ".join(f"{number} {name!r}" for number, name in enumerate(self.inputs.classes))

    def answers(self, given: NDArray[Any]) -> NDArray[np.float64]:
        """Return answers of the right shape as float64 `[B]`, or `[B, classes]`."""
        return given.astype(np.float64).reshape((-1, self.classes) if self.classes else -1)

    def require_answers(
        self, answer: NDArray[Any], alone: NDArray[Any], who: str, *, is_prediction: bool = True
    ) -> None:
        """Raise `BadConfiguration` unless `answer` has one finite number per row, or one for each class, and `alone`
        equals its first row.

        With `is_prediction`, answers must lie in the range of the objective's predictions.
        """
        rows = len(self.numeric)
        if self.classes and answer.shape != (rows, self.classes):
            raise BadConfiguration(
                f"{who} gave an output of shape {answer.shape} for {rows} rows: it must be ({rows}, {self.classes}), "
                f"a number for each class of the label: {self.classes_words}"
            )
        if not self.classes and answer.shape not in ((rows,), (rows, 1)):
            raise BadConfiguration(
                f"{who} gave an output of shape {answer.shape} for {rows} rows: it must be ({rows},) or ({rows}, 1), "
                f"one number a row, {self.answer_words}. Squeeze or choose a column"
            )
        answer = self.answers(answer)
        lowest, highest = (answer, answer) if answer.ndim == 1 else (answer.min(axis=1), answer.max(axis=1))
        wrong = np.flatnonzero(~np.isfinite(lowest + highest))
        if len(wrong):
            raise BadConfiguration(
                f"{who} answered {answer[wrong[0]]} to {self._row_words(int(wrong[0]))}: requests to the served model "
                "may lack values, so each answer must be a finite number. If the model takes no missing values, fill "
                "them first (in scikit-learn make_pipeline(SimpleImputer(), …))"
            )
        facts = facts_of(self.objective)
        low, high = facts.prediction_range
        beyond = np.flatnonzero(
            (lowest < low - ROUNDED) | (highest > high + ROUNDED) | ~self._adds_up(answer)
        )
        if is_prediction and len(beyond):
            raise BadConfiguration(
                f"{who} answered {_in_words(answer[beyond[0]])} to {self._row_words(int(beyond[0]))}: with objective "
                f"{self.objective} it must answer {self.answer_words}, from {low:g} to {high:g}. Apply the "
                f"{facts.link} to raw scores"
            )
        self.require_same(
            answer[:1],
            self.answers(alone),
            f"{who}, given a single row,",
            "among other rows",
            "let the answer to a row depend on that row alone (no softmax, mean or sort over rows)",
        )

    def require_same(
        self, expected: NDArray[np.float64], answer: NDArray[np.float64], who: str, rival: str, remedy: str
    ) -> None:
        """Raise `BadConfiguration` if the `answer` of `who` differs from `expected`, the answer of `rival`."""
        difference = np.abs(expected - answer).reshape(len(expected), -1).max(axis=1)
        largest = _TOLERANCE * float(np.abs(expected).max(initial=0.0)) + 1e-12
        worst = int(difference.argmax())
        if not difference[worst] <= largest:
            raise BadConfiguration(
                f"{who} answers {_in_words(answer[worst])} to {self._row_words(worst)}, {rival} "
                f"{_in_words(expected[worst])}: {remedy}"
            )

    def _adds_up(self, answer: NDArray[np.float64]) -> NDArray[np.bool]:
        """Return True for each row whose probabilities add up to 1, or whose answer is one number."""
        if not self.classes:
            return np.ones(len(answer), dtype=np.bool)
        return np.abs(answer.sum(axis=1) - 1) <= _TOLERANCE

    def _row_words(self, row: int) -> str:
        if row == len(self.numeric) - 1:
            return "a row in which every value is missing"
        missing = [
            name
            for name, value in zip(self.inputs.numeric, self.numeric[row], strict=True)
            if np.isnan(value)
        ]
        return f"{self.split} row {row}" + (f" (missing: {', '.join(missing)})" if missing else "")


def _in_words(answer: NDArray[np.float64]) -> str:
    """Return the answer to one row: a number, or `0.2, 0.8`."""
    return ", ".join(f"{number:g}" for number in np.atleast_1d(answer))


def example_of(snapshot: Snapshot, job: TrainingJob, split: ReadableSplit) -> Example:
    """Return the first 1,024 rows of a split (8 if rows have blobs) and a last row in which every value is missing.

    The last row has the blob of the first row.
    """
    rows = snapshot.map(snapshot.shards_of(split)[0])
    count = min(len(rows), _ROWS_WITH_BLOBS if snapshot.inputs.blob else _ROWS)
    blobs = None
    if snapshot.inputs.blob:
        blobs = blobs_of(rows, job, snapshot.inputs, count=count)
        blobs = torch.cat([blobs, blobs[:1]])
    numeric, category = rows.numeric[:count], rows.category[:count].astype(np.int64)
    return Example(
        inputs=snapshot.inputs,
        objective=job.objective,
        split=split,
        numeric=np.vstack([numeric, np.full((1, numeric.shape[1]), np.nan, dtype=np.float32)]),
        category=np.vstack([category, np.zeros((1, category.shape[1]), dtype=np.int64)]),
        blobs=blobs,
    )
