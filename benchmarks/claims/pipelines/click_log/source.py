"""The source system: a log of shown advertisements, with the columns of a known public click log. Synthetic, seeded.

13 numbers with a long tail and holes, 26 categories as eight hexadecimal digits, of which the largest has ten million
values. Five more columns, which no model reads, stand for what a real log carries besides.
"""

import binascii
from datetime import date, datetime, time, timedelta

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

ROWS = 300_000
"""Rows of a day."""
NUMBERS = [f"n{i:02}" for i in range(1, 14)]
_VALUES = """
1460 583 10131227 2202608 305 24 12517 633 3 93145 5683 8351593 3194
27 14992 5461306 10 5652 2173 4 7046547 18 15 286181 105 142572
"""
VALUES = {f"c{i:02}": int(values) for i, values in enumerate(_VALUES.split(), 1)}
"""Category → number of its values."""
TAIL = 4.0
"""A value's place is this power of a number drawn evenly from 0 to 1: few values have most of the rows."""
UNREAD = ("request", "session", "visitor", "page", "page_before")
"""Columns that no model reads: 32 random hexadecimal digits."""
TELLING = ("c02", "c05", "c09", "c14", "c17", "c20", "c25")
"""Categories on which a click depends, besides on the first numbers."""


def read_clicks(day: date) -> pl.DataFrame:
    """Return the advertisements that were shown on `day` (UTC): one row each. The same day always gives the same rows.

    `clicked` is known at `closed_at`, when the day is over.
    """
    draw = np.random.default_rng([29, day.toordinal()])
    begin = datetime.combine(day, time())
    places = {name: (values * draw.random(ROWS) ** TAIL).astype(np.uint32) for name, values in VALUES.items()}
    numbers = {name: np.floor(draw.lognormal(1.0, 1.5, ROWS)) for name in NUMBERS}
    odds = -2.2 + 0.25 * (np.log1p(numbers["n01"]) - np.log1p(numbers["n02"]))
    for name in TELLING:
        odds += 0.5 * (_spread(places[name]) / 2**32 - 0.5)
    seconds = np.sort(draw.integers(0, 86_400 * 10**6, ROWS))
    return pl.DataFrame(
        {
            "day": pl.repeat(day, ROWS, dtype=pl.Date, eager=True),
            "row": np.arange(ROWS, dtype=np.int64),
            "shown_at": pl.Series(np.datetime64(begin, "us") + seconds).dt.replace_time_zone("UTC"),
            "clicked": draw.random(ROWS) < 1 / (1 + np.exp(-odds)),
            "closed_at": pl.repeat(begin + timedelta(days=1), ROWS, eager=True).dt.replace_time_zone("UTC"),
            **{
                name: pl.Series(values)
                .set(pl.Series(draw.random(ROWS) < 0.05 * (i % 4)), None)
                .cast(pl.Int64)
                for i, (name, values) in enumerate(numbers.items())
            },
            **{name: _hexadecimal(_spread(values)) for name, values in places.items()},
            **{name: _hexadecimal(draw.integers(0, 2**32, (ROWS, 4), dtype=np.uint32)) for name in UNREAD},
        }
    )


def _spread(places: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return another number for each place, which says nothing about its neighbours: what a real log hashes to."""
    return places * np.uint32(2_654_435_761)


def _hexadecimal(numbers: NDArray[np.uint32]) -> pl.Series:
    """Return numbers as texts of eight digits, and a row of numbers as one text."""
    digits = binascii.hexlify(np.ascontiguousarray(numbers).astype(">u4").tobytes())
    rows, width = len(numbers), len(digits) // len(numbers)
    ends = np.arange(0, (rows + 1) * width, width, dtype=np.int64)
    texts = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(digits))
    return pl.Series(pl.from_arrow(texts))
