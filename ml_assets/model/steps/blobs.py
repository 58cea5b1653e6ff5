"""Blobs of a pipeline's rows, decoded by its own `decode` in the process of a step; texts among them as tokens.

Here: their check before a launch, the decoder that is stored with a model, rows with blobs for predictions, and, for
the objective `next_token`, the models that count tokens. Not here: decoding in training (training.data.batches),
serving (release.runtime).
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.snapshots.row_choice import ChosenRows, with_blobs
from ml_assets.data.snapshots.split_reader import SPLITS, SnapshotError, SplitName
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets.data.tables.user_code import standalone
from ml_assets.foundation.objective_facts import PADDING
from ml_assets.model.evaluation.comparison.holdout_rows import few_places, few_rows
from ml_assets.model.evaluation.comparison.texts import (
    TRIGRAM,
    UNIGRAM,
    NGrams,
    TokenSums,
    figures_of_rows,
    text_figures,
)
from ml_assets.model.evaluation.evaluation_document import Role, TextFigures
from ml_assets.model.release.bundle_store import BlobDecoder
from ml_assets.model.release.runtime import DECODE, BlobReader, RowRefused, ServingModel
from ml_assets.model.steps.spec import ModelInputsSection

_TRIED = 8
"""Blobs of each split that are tried before a launch."""


def decoder_of(features: ModelInputsSection) -> BlobDecoder | None:
    """Return the decoder of blobs that is stored with the model; None if rows have no blobs."""
    if features.blob is None:
        return None
    found = standalone(features.blob.decode)
    return BlobDecoder(
        column=features.blob.column, function=found.function, source=found.source, packages=found.packages
    )


def few_with_blobs(rows: pl.DataFrame, table: pl.LazyFrame, column: str, most: int) -> pl.DataFrame:
    """Return at most `most` of `rows`, evenly spread, with `column` from their `table`."""
    few = few_rows(rows, most)
    # Row by row, so that blobs between them are not read.
    return pl.concat([part for i in range(few.height) for part in with_blobs(few[i], table, column)])


def has_blobs(schema: pl.Schema, column: str) -> bool:
    """True if the table has the column of blobs. A column of another type is the model's to refuse: an older version
    may read as bytes what is a text by now."""
    return schema.get(column) == pl.Binary


def predicted(
    model: ServingModel, rows: pl.DataFrame, table: pl.LazyFrame, primary_key: Sequence[str]
) -> NDArray[np.float64]:
    """Return `[rows]` predictions for some of the rows of `table`; blobs are read a few at a time.

    Raises `InputRefused` and `GraphFailed`. A row that has no prediction is named by its columns `primary_key`.
    """
    # Without blobs, or if the model reports their lack, all rows at once.
    reads = has_blobs(table.collect_schema(), model.blob)
    parts: Iterable[pl.DataFrame] = with_blobs(rows, table, model.blob) if reads else [rows]
    found: list[NDArray[np.float64]] = []
    for part in parts:
        try:
            found.append(model.predict(part))
        except RowRefused as error:
            name = names_of(part[error.row], primary_key)[0]
            raise (error.named(name) if name else error) from None
    return np.concatenate(found)


def names_of(rows: pl.DataFrame, primary_key: Sequence[str]) -> list[str]:
    """Return the primary key of each of `rows` in words; empty texts without a key."""
    key = [column for column in primary_key if column in rows.columns]
    named = rows.select(pl.col(key).cast(pl.String)).iter_rows() if key else [()] * rows.height
    return [
        ", ".join(f"{column}={value}" for column, value in zip(key, values, strict=True)) for values in named
    ]


def require_readable(features: ModelInputsSection, chosen: ChosenRows, table: pl.LazyFrame) -> None:
    """Decode a few blobs of each split as the model will, apart from the project.

    Raises `InputRefused`, which names the row, if a blob cannot be decoded or has another shape, and `BundleRefused`
    if a package that `decode` needs is missing.
    """
    decoder = decoder_of(features)
    if decoder is None:
        return
    few = [
        chosen.take(split, few_places(chosen.rows(split), _TRIED), features.primary_key) for split in SPLITS
    ]
    tried = pl.concat([few_with_blobs(rows, table, decoder.column, _TRIED) for rows in few])
    names = names_of(tried, features.primary_key)
    _reader_of(decoder).read(tried[decoder.column].to_list(), [f"row {name}" for name in names])


def _reader_of(decoder: BlobDecoder) -> BlobReader:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / DECODE).write_text(decoder.source)
        return BlobReader.of_bundle(Path(folder), decoder.column, decoder.function)


Tokens = NDArray[np.int64]
MOST_COUNTED = 20_000_000
"""Most tokens that are counted for the baseline and the reference. Of more texts, evenly spread ones are used."""
_NAMED = 3
"""Rows that an error names."""


def read_texts(
    features: ModelInputsSection, rows: pl.DataFrame, table: pl.LazyFrame
) -> Iterator[tuple[pl.DataFrame, Tokens]]:
    """Yield some of `rows` of `table`, in order, and their tokens `[N, T]`.

    Raises `InputRefused`, which names the row, if a text cannot be decoded or has another shape, and `BundleRefused` if
    a package that `decode` needs is missing.
    """
    decoder = decoder_of(features)
    if decoder is None:
        return
    reader = _reader_of(decoder)
    for part in with_blobs(rows, table, decoder.column):
        names = [f"row {name}" for name in names_of(part, features.primary_key)]
        yield part, reader.read(part[decoder.column].to_list(), names)


def require_tokens(features: ModelInputsSection, chosen: ChosenRows, table: pl.LazyFrame) -> None:
    """Decode the texts of all splits, and raise `SnapshotError`, which names rows, if their tokens do not fit.

    Tokens are `[T]` int64, from 0 below the vocabulary, with `PADDING` only behind the last one. The label must be
    their number less 1.
    """
    if features.blob is None or features.blob.vocabulary is None:
        return
    for split in SPLITS:
        for rows in chosen.parts(split, features.primary_key):
            for part, tokens in read_texts(features, rows, table):
                _require_tokens(features, features.blob.vocabulary, split, part, tokens)


def _require_tokens(
    features: ModelInputsSection, vocabulary: int, split: SplitName, part: pl.DataFrame, tokens: Tokens
) -> None:
    if features.blob is None:
        return
    decode = features.blob.decode
    if tokens.dtype != np.int64 or tokens.ndim != 2 or tokens.shape[1] < 2:
        raise SnapshotError(
            f"{decode} returned {tokens.dtype}{list(tokens.shape[1:])}, and objective next_token needs the "
            "token ids of a text: int64 [T], T at least 2"
        )
    is_token = tokens != PADDING
    predicted = is_token.sum(axis=1) - 1
    label = part[features.label].cast(int).to_numpy()
    for wrong, found, remedy in (
        (
            ((tokens < PADDING) | (tokens >= vocabulary)).any(axis=1),
            f"a token id outside of 0 to {vocabulary - 1}",
            f"raise features.blob.vocabulary, or let {decode} return other ids",
        ),
        (
            (is_token[:, 1:] & ~is_token[:, :-1]).any(axis=1),
            f"a token behind a padding of {PADDING}",
            f"let {decode} fill up behind the last token alone",
        ),
        (predicted < 1, "fewer than two tokens", "leave such texts out in the feature function"),
        (
            predicted != label,
            f"another number of tokens than its label {features.label!r} says",
            f"count the tokens that {decode} returns, less 1, in the feature function. If texts are longer "
            "than `decode` returns, divide them into several rows there: no text is cut off",
        ),
    ):
        if wrong.any():
            named = names_of(part.filter(np.asarray(wrong)), features.primary_key)
            raise SnapshotError(
                f"{len(named)} of {part.height} {split} texts ({features.blob.column}) have {found}: "
                f"{'; '.join(named[:_NAMED])}{'; …' * (len(named) > _NAMED)}; {remedy}"
            )


@dataclass(frozen=True, kw_only=True)
class TextModels:
    """Predictions of the baseline and the reference for the texts of a holdout, and losses of single tokens."""

    baseline_name: str
    reference_name: str
    predictions: dict[str, NDArray[np.float64]]
    """`baseline` and `reference`, each `[N, 2]`."""
    figures: TextFigures


def counted_models(
    features: ModelInputsSection,
    challenger: ServingModel,
    train: SplitScan,
    holdout: SplitScan,
) -> TextModels:
    """Count the tokens of the training texts, and measure the counts and the challenger on the texts of the holdout."""
    if features.blob is None or features.blob.vocabulary is None:
        raise ValueError("rows are not texts")
    vocabulary, key = features.blob.vocabulary, features.primary_key
    _, some = next(read_texts(features, train.take(np.array([0]), key), train.table))
    few = train.take(few_places(train.height, max(1, MOST_COUNTED // some.shape[1])), key)

    counts = NGrams.fit((tokens for _, tokens in read_texts(features, few, train.table)), vocabulary, TRIGRAM)
    models: dict[Role, NGrams] = {"baseline": counts.shortened(UNIGRAM), "reference": counts}
    sums: dict[Role, list[TokenSums]] = {"challenger": [], "baseline": [], "reference": []}
    answers: dict[Role, list[NDArray[np.float64]]] = {role: [] for role in models}
    read = [*key, *(column.name for column in challenger.inputs)]
    for part, _ in read_texts(features, holdout.read(read), holdout.table):
        nats, tokens = challenger.predict_tokens(part)
        sums["challenger"].append(TokenSums.of(nats, tokens, vocabulary))
        for role, model in models.items():
            nats = model.nats(tokens)
            answers[role].append(figures_of_rows(nats, model.hits(tokens), tokens))
            sums[role].append(TokenSums.of(nats, tokens, vocabulary))
    counted_in = (
        ""
        if few.height == train.height
        else f", counted in {few.height:,} of {train.height:,} training texts"
    )
    return TextModels(
        baseline_name=f"{models['baseline'].name}{counted_in}",
        reference_name=f"{models['reference'].name}{counted_in}",
        predictions={role: np.concatenate(parts) for role, parts in answers.items()},
        figures=text_figures(
            {role: sum(parts[1:], parts[0]) for role, parts in sums.items()},
            counts.counts_of_tokens(),
        ),
    )
