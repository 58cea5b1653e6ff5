"""Chapter about the calibration of each slice: of the report, the asset page and the model card."""

from collections.abc import Iterator

from ml_assets.foundation.objective_facts import facts_of
from ml_assets.foundation.reports.numbers import count
from ml_assets.foundation.reports.written_page import Block, Chapter, Grid, Paragraph
from ml_assets.model.evaluation import sentences
from ml_assets.model.evaluation.bootstrap import Interval
from ml_assets.model.evaluation.evaluation_document import Evaluation, Part
from resources.words import counted

MOST_SLICES = 12
"""Slices that a page shows: those that are most certainly off."""
_ECE = "ece"


def calibration_chapters(evaluation: Evaluation) -> Iterator[Chapter]:
    """Yield the chapter, if a slice was measured."""
    measured = [(part, part.calibration) for part in evaluation.slices if part.calibration is not None]
    if measured:
        yield Chapter(
            "Calibration by slice",
            tuple(_blocks(measured, evaluation)),
            f"{facts_of(evaluation.objective).calibration}, of this model; {evaluation.confidence:.0%} intervals "
            "that hold jointly for all slices",
        )


def _blocks(measured: list[tuple[Part, Interval]], evaluation: Evaluation) -> Iterator[Block]:
    off = sum(bool(direction(one)) for _, one in measured)
    told = (
        f"{count(off)} of {counted(len(measured), 'slice')}"
        if off
        else f"None of {counted(len(measured), 'slice')}"
    )
    whole = evaluation.overall.calibration
    yield Paragraph(
        f"{told} {'are' if off > 1 else 'is'} off by more than chance. All rows: "
        f"{sentences.gain(whole, relative=False) if whole else '–'}."
    )
    shown = sorted(measured, key=lambda one: _certainty(one[1]), reverse=True)[:MOST_SLICES]
    has_ece = any(metric.name == _ECE for metric in evaluation.measured)
    rows = tuple(
        (
            f"{part.slice}={part.value}",
            count(part.rows),
            sentences.gain(one, relative=False),
            direction(one),
            *([sentences.with_interval(part.metrics["challenger"][_ECE])] if has_ece else []),
        )
        for part, one in shown
    )
    columns = (
        "slice",
        "rows",
        "predicted − observed",
        "",
        *(["calibration error (each slice alone)"] if has_ece else []),
    )
    yield Grid(columns, rows, numbers=frozenset({1}))
    if hidden := len(measured) - len(shown):
        yield Paragraph(f"{counted(hidden, 'slice')} that are less certainly off are in evaluation.json.")


def direction(one: Interval) -> str:
    """Return `too high` or `too low` if the whole interval says so; else nothing."""
    if one.low is None or one.high is None:
        return ""
    return "too high" if one.low > 0 else "too low" if one.high < 0 else ""


def _certainty(one: Interval) -> float:
    """Return the distance from 0 in half-widths; 0 without an interval."""
    if one.value is None or one.high is None:
        return 0.0
    half = one.high - one.value
    return abs(one.value) / half if half > 0 else float("inf") if one.value else 0.0
