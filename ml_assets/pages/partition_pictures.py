"""Pictures of a table's partitions over time, from the profiles in their manifests: of each column, and of all rows.

Draws; reads nothing. The last partition of each picture is the one that the page is about.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from ml_assets.data.validation.profile import completeness
from ml_assets.foundation.reports.page import INK, Axes, Draw, Drawing, encoded
from ml_assets.foundation.reports.text import label

Profiles = Mapping[str, Mapping[str, Any]]
"""Key of a partition → its profile (`ml_assets.data.validation.profile`), oldest first."""

MOST_COLUMNS = 40
"""Columns of a table that get a picture."""
MOST_HOURS = 72
"""Longer times are given in days."""
_SIZE = (4.2, 2.1)
_TICKS = 4
_COLOURS = ("#2f6f9f", "#c8743c", "#5b8c5a", "#8a6fb0", "#b5a642")
_LINE, _BAND, _REST = "#2f6f9f", "#2f6f9f", "#d5d9de"
_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_NAMED = len(_COLOURS)
"""Values of a column, or columns of a table, that a picture names."""


def pictures_of_columns(profiles: Profiles) -> Iterator[Drawing]:
    """Yield a picture of the distribution of each column of the newest partition, up to `MOST_COLUMNS`."""
    *_, newest = profiles.values()
    drawn = 0
    for name in newest["columns"]:
        columns = [one["columns"].get(name, {}) for one in profiles.values()]
        draw, caption = _of_column(list(profiles), columns)
        if draw is not None and drawn < MOST_COLUMNS:
            drawn += 1
            yield Drawing(name, partial(encoded, _titled(name, draw), "svg", _SIZE), caption)


def pictures_of_rows(profiles: Profiles, hours_late: Mapping[str, float]) -> Iterator[Drawing]:
    """Yield pictures of rows, completeness and freshness.

    `hours_late`: key → hours from a partition's end to the first verdict that let it pass, where they are known.
    """
    keys = list(profiles)

    def rows(axes: Axes) -> None:
        axes.bar(range(len(keys)), [one["rows"] for one in profiles.values()], color=_LINE, width=0.8)
        _label(axes, keys)

    yield Drawing("rows", partial(encoded, _titled("rows", rows), "svg", _SIZE), "rows of each partition")
    complete = {key: completeness(one) for key, one in profiles.items()}
    means = {name: sum(one.get(name, 0.0) for one in complete.values()) for name in complete[keys[-1]]}
    least = sorted(means, key=lambda name: (means[name], name))[:_NAMED]

    def shares(axes: Axes) -> None:
        for name, colour in zip(least, _COLOURS, strict=False):
            axes.plot(
                [100 * one.get(name, 0.0) for one in complete.values()], color=colour, label=label(name)
            )
        axes.set_ylim(-4, 104)
        axes.legend(loc="lower left")
        _label(axes, keys)

    said = f"percent of rows with a value, in the {len(least)} least complete columns"
    yield Drawing("completeness", partial(encoded, _titled("completeness", shares), "svg", _SIZE), said)
    if hours_late:
        unit, hours = ("hours", 1) if max(hours_late.values()) < MOST_HOURS else ("days", 24)
        known = [hours_late.get(key, float("nan")) / hours for key in keys]

        def late(axes: Axes) -> None:
            axes.plot(known, color=_LINE, marker="o", markersize=2.5, linewidth=0.8)
            _label(axes, keys)

        said = f"{unit} from the end of a partition, in UTC, to the first verdict that let it pass"
        yield Drawing("freshness", partial(encoded, _titled("freshness", late), "svg", _SIZE), said)


def _titled(name: str, draw: Draw) -> Draw:
    def titled(axes: Axes) -> None:
        draw(axes)
        axes.set_title(label(name))

    return titled


def _of_column(keys: Sequence[str], columns: Sequence[Mapping[str, Any]]) -> tuple[Draw | None, str]:
    """Return the picture of a column and its caption; no picture for columns without a distribution."""
    newest = columns[-1]
    if "distinct" in newest:
        return _categories(keys, columns)
    if "mean" not in newest and not any("mean" in one for one in columns):
        return None, ""
    bands = [_quantiles(one) for one in columns]

    def draw(axes: Axes) -> None:
        low, lower, middle, upper, high = ([one[at] for one in bands] for at in range(len(_SHARES)))
        x = range(len(keys))
        axes.fill_between(x, low, high, color=_BAND, alpha=0.15, linewidth=0)
        axes.fill_between(x, lower, upper, color=_BAND, alpha=0.3, linewidth=0)
        axes.plot(x, middle, color=INK, linewidth=1)
        axes.plot(len(keys) - 1, middle[-1], color=INK, marker="o", markersize=3)
        _label(axes, keys)

    return draw, "median; the middle half of the values, and 90 % of them"


def _categories(keys: Sequence[str], columns: Sequence[Mapping[str, Any]]) -> tuple[Draw, str]:
    total: Counter[str] = Counter()
    shares: list[dict[str, float]] = []
    for one in columns:
        counted = {str(value): rows for value, rows in one.get("values", [])}
        known = sum(counted.values()) + one.get("others", 0)
        shares.append({value: rows / known for value, rows in counted.items()} if known else {})
        total.update(shares[-1])
    named = [value for value, _ in total.most_common(_NAMED)]

    def draw(axes: Axes) -> None:
        base = [0.0] * len(keys)
        for value, colour in zip(named, _COLOURS, strict=False):
            heights = [100 * one.get(value, 0.0) for one in shares]
            axes.bar(
                range(len(keys)),
                heights,
                bottom=base,
                color=colour,
                width=1.0,
                label=label(value),
                linewidth=0,
            )
            base = [low + more for low, more in zip(base, heights, strict=True)]
        rest = [100 - low if one else 0.0 for low, one in zip(base, shares, strict=True)]
        if max(rest) > 0.05:
            axes.bar(range(len(keys)), rest, bottom=base, color=_REST, width=1.0, label="others", linewidth=0)
        axes.set_ylim(0, 100)
        if axes.get_legend_handles_labels()[0]:  # matplotlib warns about a column that has only nulls
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        _label(axes, keys)

    return draw, "percent of the rows with a value"


def _quantiles(column: Mapping[str, Any]) -> list[float]:
    """Return the quantiles `_SHARES` of a column of numbers, as exact as its profile; NaN without a value."""
    if "edges" in column:
        values, rows = [*column["edges"], column["max"]], column["counts"]
    else:
        ordered = sorted((float(value), rows) for value, rows in column.get("values", []))
        values, rows = [value for value, _ in ordered], [count for _, count in ordered]
    up_to = list(accumulate(rows))
    if not up_to or not up_to[-1]:
        return [float("nan")] * len(_SHARES)
    return [
        next(value for value, count in zip(values, up_to, strict=True) if count >= share * up_to[-1])
        for share in _SHARES
    ]


def _label(axes: Axes, keys: Sequence[str]) -> None:
    step = max(1, (len(keys) - 1) // (_TICKS - 1)) if len(keys) > 1 else 1
    places = list(range(len(keys) - 1, -1, -step))[::-1]
    axes.set_xticks(places, [keys[at] for at in places])
    axes.margins(x=0.02)
