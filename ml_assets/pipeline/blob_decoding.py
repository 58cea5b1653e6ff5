"""Blobs of a pipeline's rows, decoded by its own `decode` in the process of a step.

Here: a check of a few blobs before a launch, the decoder that is stored with a model, rows with blobs for
predictions. Not here: decoding in training (training.data.decoding), serving (release.runtime).
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_assets.pipeline.spec import ModelInputsSection
from ml_assets.tables.standalone import standalone

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.release.bundle import BlobDecoder
    from ml_assets.release.runtime import ServingModel
    from ml_assets.snapshots.row_choice import ChosenRows

_TRIED = 8
"""Blobs of each split that are tried before a launch."""


def decoder_of(features: ModelInputsSection) -> "BlobDecoder | None":
    """Return the decoder of blobs that is stored with the model; None if rows have no blobs."""
    from ml_assets.release.bundle import BlobDecoder

    if features.blob is None:
        return None
    found = standalone(features.blob.decode)
    return BlobDecoder(
        column=features.blob.column, function=found.function, source=found.source, packages=found.packages
    )


def few_with_blobs(rows: "pl.DataFrame", table: "pl.LazyFrame", column: str, most: int) -> "pl.DataFrame":
    """Return at most `most` of `rows`, evenly spread, with `column` from their `table`."""
    import polars as pl

    from ml_assets.release.golden import spread
    from ml_assets.snapshots.row_choice import with_blobs

    few = spread(rows, most)
    # Row by row, so that blobs between them are not read.
    return pl.concat([part for i in range(few.height) for part in with_blobs(few[i], table, column)])


def predicted(model: "ServingModel", rows: "pl.DataFrame", table: "pl.LazyFrame") -> NDArray[np.float64]:
    """Return `[rows]` predictions for some of the rows of `table`; blobs are read a few at a time."""
    from ml_assets.snapshots.row_choice import with_blobs

    if model.blob not in table.collect_schema():  # no blob needed, or the model reports its lack
        return model.predict(rows)
    parts: Iterable[pl.DataFrame] = with_blobs(rows, table, model.blob)
    return np.concatenate([model.predict(part) for part in parts])


def require_readable(features: ModelInputsSection, chosen: "ChosenRows", table: "pl.LazyFrame") -> None:
    """Decode a few blobs of each split as the model will, apart from the project.

    Raises `InputRefused`, which names the row, if a blob cannot be decoded or has another shape, and `BundleRefused`
    if a package that `decode` needs is missing.
    """
    import polars as pl

    from ml_assets.release.runtime import DECODE, BlobReader
    from ml_assets.snapshots.split_reader import SPLITS

    decoder = decoder_of(features)
    if decoder is None:
        return
    tried = pl.concat([few_with_blobs(chosen.of(split), table, decoder.column, _TRIED) for split in SPLITS])
    key = [column for column in features.primary_key if column in tried.columns]
    named = tried.select(key).cast(pl.String).iter_rows()
    names = [
        ", ".join(f"{column}={value}" for column, value in zip(key, values, strict=True)) for values in named
    ]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / DECODE).write_text(decoder.source)
        BlobReader.of_bundle(Path(folder), decoder.column, decoder.function).read(
            tried[decoder.column].to_list(), [f"row {name}" for name in names]
        )
