"""Words of `ml-assets predict`."""

import json
from pathlib import Path

import polars as pl

from ml_assets.cli.terminal import say, say_aside, writing_to
from ml_assets.context.prediction import ComingPrediction
from resources.words import counted

SHOWN = 50
"""Predictions that are printed; a file holds all."""


def say_prediction(found: ComingPrediction, file: Path | None, *, as_json: bool) -> None:
    """Print the predictions, or write them to the CSV file `file`."""
    if found.note:
        say_aside(f"Note: {found.note}")
    if as_json:
        facts = {
            "model": found.model,
            "version": found.version,
            "in_production": found.in_production,
            "partition": found.partition,
            "known_until": found.newest,
            "predictions": json.loads(found.rows.write_json()),
        }
        say(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    stage = "in production" if found.in_production else "which is not in production"
    say(
        f"{found.model} {found.partition}, by version {found.version}, {stage}, from rows up to {found.newest}:"
    )
    if file is not None:
        with writing_to(file):
            found.rows.write_csv(file)
        say(f"wrote {counted(found.rows.height, 'prediction')} to {file}")
        return
    for line in _aligned(found.rows.head(SHOWN)):
        say(f"  {line}")
    if found.rows.height > SHOWN:
        say(f"  … {counted(found.rows.height - SHOWN, 'more prediction')}: --csv FILE writes all")


def _aligned(rows: pl.DataFrame) -> list[str]:
    """Return the lines of a table: headings, then a line per row."""
    shown = [list(rows.columns), *([_text(value) for value in row] for row in rows.iter_rows())]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(one, widths, strict=True)).rstrip()
        for one in shown
    ]


def _text(value: object) -> str:
    return (
        f"{value:.4g}"
        if isinstance(value, float) and abs(value) < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
