"""Drift of a table's columns on its page: a line of bars for each, oldest partition first.

Characters, not a picture: the event of each run holds them, and a table may have hundreds of columns.
"""

from ml_assets.data.validation.shifts import TableShifts
from ml_assets.data.validation.table_drift import ColumnDrift, TableDrift
from ml_assets.foundation.reports.text import table_in_markdown
from resources.words import counted

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 40
"""Columns on a page, those nearest to their limits first."""
_SHOWN_MEANS = 12
"""The same of means."""


def drift_in_markdown(key: str, drift: TableDrift, noun: str = "partition") -> str:
    """Return the comparison of partition `key` as Markdown. `noun` names what the past consists of.

    A full bar is a distance at the column's limit or above it. The last bar is partition `key` against the window, the
    others are the partitions of the window, each against the others.
    """
    shown = drift.columns[:_SHOWN]
    lines = [
        f"{key} against {counted(len(drift.past), noun)}, {drift.past[0]} to {drift.past[-1]}. Distances are "
        "PSI beyond chance. A full bar is at the limit or above it; the last bar is this partition.",
        "",
        *table_in_markdown(
            ("column", "past, now", "distance", "limit", ""),
            [
                (
                    one.column,
                    _line(one),
                    f"{one.distance:.3g}",
                    f"{one.limit:.3g}",
                    "drifts" if one.drifts else "",
                )
                for one in shown
            ],
        ),
    ]
    if len(drift.columns) > _SHOWN:
        lines += [
            "",
            f"{counted(len(drift.columns) - _SHOWN, 'column')} farther below their limits are not shown.",
        ]
    return "\n".join([*lines, *([] if drift.shifts is None else _means(drift.shifts))])


def _means(shifts: TableShifts) -> list[str]:
    """Return the lines of a table of means and their predictions."""
    return [
        "",
        f"Means against their predictions from the other columns, by {counted(len(shifts.past), 'partition')}, "
        f"{shifts.past[0]} to {shifts.past[-1]}. Distances are in standard deviations of the column.",
        "",
        *table_in_markdown(
            ("column", "mean", "predicted", "distance", "limit", ""),
            [
                (
                    one.column,
                    f"{one.mean:.4g}",
                    f"{one.expected:.4g}",
                    f"{one.residual:+.2f}",
                    f"{one.limit:.2f}",
                    "drifts" if one.drifts else "",
                )
                for one in shifts.columns[:_SHOWN_MEANS]
            ],
        ),
    ]


def _line(one: ColumnDrift) -> str:
    top = len(_BARS) - 1
    return "".join(_BARS[min(top, int(top * value / one.limit))] for value in (*one.past, one.distance))
