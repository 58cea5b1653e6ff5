"""Texts of a pipeline's rows as tokens: their check before a launch, the models that count them, their figures.

For the objective `next_token` alone. Texts are read in parts, by the code that a bundle reads them with.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_assets.foundation.objective_facts import PADDING
from ml_assets.model.steps.blob_decoding import decoder_of, names_of
from ml_assets.model.steps.spec import ModelInputsSection

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.data.snapshots.row_choice import ChosenRows
    from ml_assets.model.evaluation.evaluation_document import Role, TextFigures
    from ml_assets.model.release.runtime import ServingModel

Tokens = NDArray[np.int64]
MOST_COUNTED = 20_000_000
"""Most tokens that are counted for the baseline and the reference. Of more texts, evenly spread ones are used."""
_NAMED = 3
"""Rows that an error names."""


def read_texts(
    features: ModelInputsSection, rows: "pl.DataFrame", table: "pl.LazyFrame"
) -> "Iterator[tuple[pl.DataFrame, Tokens]]":
    """Yield some of `rows` of `table`, in order, and their tokens `[N, T]`.

    Raises `InputRefused`, which names the row, if a text cannot be decoded or has another shape, and `BundleRefused` if
    a package that `decode` needs is missing.
    """
    from ml_assets.data.snapshots.row_choice import with_blobs
    from ml_assets.model.release.runtime import DECODE, BlobReader

    decoder = decoder_of(features)
    if decoder is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / DECODE).write_text(decoder.source)
        reader = BlobReader.of_bundle(Path(folder), decoder.column, decoder.function)
    for part in with_blobs(rows, table, decoder.column):
        names = [f"row {name}" for name in names_of(part, features.primary_key)]
        yield part, reader.read(part[decoder.column].to_list(), names)


def require_tokens(features: ModelInputsSection, chosen: "ChosenRows", table: "pl.LazyFrame") -> None:
    """Decode the texts of all splits, and raise `SnapshotError`, which names rows, if their tokens do not fit.

    Tokens are `[T]` int64, from 0 below the vocabulary, with `PADDING` only behind the last one. The label must be
    their number less 1.
    """
    from ml_assets.data.snapshots.split_reader import SPLITS, SnapshotError

    if features.blob is None or features.blob.vocabulary is None:
        return
    vocabulary, decode = features.blob.vocabulary, features.blob.decode
    for split in SPLITS:
        for part, tokens in read_texts(features, chosen.of(split), table):
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
    predictions: "dict[str, NDArray[np.float64]]"
    """`baseline` and `reference`, each `[N, 2]`."""
    figures: "TextFigures"


def counted_models(
    features: ModelInputsSection,
    challenger: "ServingModel",
    train: "pl.DataFrame",
    holdout: "pl.DataFrame",
    table: "pl.LazyFrame",
) -> TextModels:
    """Count the tokens of the training texts, and measure the counts and the challenger on the texts of the holdout."""
    from ml_assets.model.evaluation.comparison.holdout_rows import few_rows
    from ml_assets.model.evaluation.comparison.texts import (
        TRIGRAM,
        UNIGRAM,
        NGrams,
        TokenSums,
        figures_of_rows,
        text_figures,
    )

    if features.blob is None or features.blob.vocabulary is None:
        raise ValueError("rows are not texts")
    vocabulary = features.blob.vocabulary
    _, some = next(read_texts(features, train.head(1), table))
    few = few_rows(train, max(1, MOST_COUNTED // some.shape[1]))

    counts = NGrams.fit((tokens for _, tokens in read_texts(features, few, table)), vocabulary, TRIGRAM)
    models: dict[Role, NGrams] = {"baseline": counts.shortened(UNIGRAM), "reference": counts}
    sums: dict[Role, list[TokenSums]] = {"challenger": [], "baseline": [], "reference": []}
    answers: dict[Role, list[NDArray[np.float64]]] = {role: [] for role in models}
    for part, _ in read_texts(features, holdout, table):
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
