"""Blobs of a pipeline's rows, decoded by its own `decode` in the process of a step.

Here: a check of a few blobs before a launch, the decoder that is stored with a model, rows with blobs for
predictions. Not here: decoding in training (training.data.decoding), serving (release.runtime).
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.tables.standalone import standalone
from ml_assets.model.steps.spec import ModelInputsSection

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.data.snapshots.row_choice import ChosenRows
    from ml_assets.model.release.bundle import BlobDecoder
    from ml_assets.model.release.runtime import ServingModel

_TRIED = 8
"""Blobs of each split that are tried before a launch."""


def decoder_of(features: ModelInputsSection) -> "BlobDecoder | None":
    """Return the decoder of blobs that is stored with the model; None if rows have no blobs."""
    from ml_assets.model.release.bundle import BlobDecoder

    if features.blob is None:
        return None
    found = standalone(features.blob.decode)
    return BlobDecoder(
        column=features.blob.column, function=found.function, source=found.source, packages=found.packages
    )


def few_with_blobs(rows: "pl.DataFrame", table: "pl.LazyFrame", column: str, most: int) -> "pl.DataFrame":
    """Return at most `most` of `rows`, evenly spread, with `column` from their `table`."""
    import polars as pl

    from ml_assets.data.snapshots.row_choice import with_blobs
    from ml_assets.model.release.golden import spread

    few = spread(rows, most)
    # Row by row, so that blobs between them are not read.
    return pl.concat([part for i in range(few.height) for part in with_blobs(few[i], table, column)])


def predicted(
    model: "ServingModel", rows: "pl.DataFrame", table: "pl.LazyFrame", primary_key: Sequence[str]
) -> NDArray[np.float64]:
    """Return `[rows]` predictions for some of the rows of `table`; blobs are read a few at a time.

    Raises `InputRefused` and `GraphFailed`. A row that has no prediction is named by its columns `primary_key`.
    """
    from ml_assets.data.snapshots.row_choice import with_blobs
    from ml_assets.model.release.runtime import RowRefused

    # Without blobs, or if the model reports their lack, all rows at once.
    reads = model.blob in table.collect_schema()
    parts: Iterable[pl.DataFrame] = with_blobs(rows, table, model.blob) if reads else [rows]
    found: list[NDArray[np.float64]] = []
    for part in parts:
        try:
            found.append(model.predict(part))
        except RowRefused as error:
            name = names_of(part[error.row], primary_key)[0]
            raise (error.named(name) if name else error) from None
    return np.concatenate(found)


def names_of(rows: "pl.DataFrame", primary_key: Sequence[str]) -> list[str]:
    """Return the primary key of each of `rows` in words; empty texts without a key."""
    import polars as pl

    key = [column for column in primary_key if column in rows.columns]
    named = rows.select(pl.col(key).cast(pl.String)).iter_rows() if key else [()] * rows.height
    return [
        ", ".join(f"{column}={value}" for column, value in zip(key, values, strict=True)) for values in named
    ]


def require_readable(features: ModelInputsSection, chosen: "ChosenRows", table: "pl.LazyFrame") -> None:
    """Decode a few blobs of each split as the model will, apart from the project.

    Raises `InputRefused`, which names the row, if a blob cannot be decoded or has another shape, and `BundleRefused`
    if a package that `decode` needs is missing.
    """
    import polars as pl

    from ml_assets.data.snapshots.split_reader import SPLITS
    from ml_assets.model.release.runtime import DECODE, BlobReader

    decoder = decoder_of(features)
    if decoder is None:
        return
    tried = pl.concat([few_with_blobs(chosen.of(split), table, decoder.column, _TRIED) for split in SPLITS])
    names = names_of(tried, features.primary_key)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / DECODE).write_text(decoder.source)
        BlobReader.of_bundle(Path(folder), decoder.column, decoder.function).read(
            tried[decoder.column].to_list(), [f"row {name}" for name in names]
        )
