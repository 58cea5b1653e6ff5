"""Texts in windows of the model's length."""

from collections.abc import Mapping
from datetime import date

import polars as pl

WINDOW = 256
"""Bytes of a window. Each byte is a token; the first one of a window is given, the others are predicted."""


def windows(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.DataFrame:
    """One row for each window of the texts of the weeks `first`..`last`.

    A text is divided into windows of 256 bytes (UTF-8), the last one shorter; nothing is cut off. If a single byte
    remains, the window before gives it one of its own: a window needs a byte to begin with and one to predict.
    """
    texts = inputs["datasets/documentation"].filter(pl.col("week").is_between(first, last))
    texts = texts.select("week", "service", "published_at", "text").sort("week", "service").collect()
    rows = [
        {
            "partition_date": one["week"],
            "service": one["service"],
            "number": number,
            "predicted_at": one["published_at"],
            "text": window,
            "predicted": len(window) - 1,
            "label_known_at": one["published_at"],
        }
        for one in texts.iter_rows(named=True)
        for number, window in enumerate(divided(one["text"].encode()))
    ]
    return pl.DataFrame(
        rows,
        schema={
            "partition_date": pl.Date,
            "service": pl.String,
            "number": pl.Int32,
            "predicted_at": pl.Datetime("us", "UTC"),
            "text": pl.Binary,
            "predicted": pl.Int32,
            "label_known_at": pl.Datetime("us", "UTC"),
        },
    )


def divided(text: bytes) -> list[bytes]:
    """Return `text` in windows of at most `WINDOW` bytes, each at least 2; none for a text of a single byte."""
    starts = list(range(0, len(text), WINDOW))
    if len(starts) > 1 and len(text) - starts[-1] == 1:
        starts[-1] -= 1
    return [text[at:end] for at, end in zip(starts, [*starts[1:], len(text)], strict=True) if end - at > 1]
