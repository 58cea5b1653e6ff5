"""Values for the templates `csv_*`, from the facts about a CSV file.

This module chooses the sizes of a first model (window, batch, workers). `csv_tables.py` finds the facts.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import yaml

from ml_assets.components.csv_tables import NULLS, CsvColumn, CsvTable
from ml_assets.foundation.objective_facts import facts_of

SMALL = 20_000
"""Training rows below which one worker is faster than two that communicate, and many epochs take seconds."""


def csv_names(table: CsvTable, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the templates' values; `names` are the values that follow from the folder."""
    length = 7 if table.unit == "week" else 1
    first, last = (_beginning(day, length) for day in (table.first_day, table.last_day))
    window = _window(table)
    hour = table.column.dtype == "datetime"
    past = [f"{table.label}_{lag}{table.unit[0]}" for lag in table.lags]
    past += [f"{table.label}_mean"] if past else []
    # Without a whole year of training, features of the season mislead: the holdout has values that training never saw.
    season = window["train"] * length >= 365 or not past
    columns = {column.name: column for column in table.columns}
    known = [columns[name] for name in table.known if name not in table.series]
    words = [column.name for column in known if column.dtype == "string"]
    categorical = (*(() if length == 7 else ("weekday",)), *table.series, *words)
    naming = tuple(dict.fromkeys((*table.primary_key, *table.series)))
    always = naming if table.event_time in naming else (table.event_time, *naming)
    kept = always if hour else naming
    known_numbers = [column for column in known if column.name not in words]
    train_rows = table.rows * window["train"] // table.partitions
    is_small = train_rows < SMALL
    # No day of the file itself may be rejected for its number of rows.
    most_uneven = max(0.6, math.ceil(12 * table.unevenness) / 10)
    return {
        "table": table,
        "weekly": length == 7,
        "days": length,
        "start": first,
        "end": last + timedelta(days=length - 1),
        "first_key": first,
        "last_key": last,
        "model_start": first + timedelta(days=length * (sum(window.values()) - 1)),
        "day_expression": _day(table),
        "nulls": _listed(NULLS),
        "date_format": f"{{{_quoted(table.column.title)}: {_quoted(table.date_format)}}}",
        "expressions": {column.name: _parsed(column, table) for column in table.columns},
        "numeric": [
            *(["hour"] if hour else []),
            *(["season_sin", "season_cos"] if season else []),
            *past,
            *(column.name for column in known_numbers),
        ],
        "categorical": categorical,
        "categorical_list": _listed(categorical),
        "season": season,
        "series": table.series,
        "series_list": _listed(table.series),
        "lags": table.lags,
        "past": past,
        "hour": hour,
        "kept": kept,
        "kept_columns": [columns[name] for name in kept],
        "always": always,
        "hidden": [name for name in columns if name not in (*always, *table.known)],
        "known_numbers": [column for column in known_numbers if column.name not in kept],
        "known_words": [columns[name] for name in words if name not in kept],
        "window": window,
        "volume_warn": most_uneven / 2,
        "volume_block": most_uneven,
        "label_nullable": columns[table.label].nullable,
        "typical": float(f"{table.typical:.2g}"),
        "epochs": 60 if is_small else 30,
        "patience": 20 if is_small else 5,
        "weight_decay": 0.3 if is_small else 0.01,
        "batch": 2 ** min(9, max(3, (train_rows // 20).bit_length())),
        "workers": 1 if is_small else 2,
        "metric": facts_of(table.objective).chosen_by,
        "quoted": _quoted,
        "word": _word,
        "words": lambda texts: f"[{', '.join(map(_word, texts))}]",  # pyright: ignore[reportUnknownLambdaType]
        "number": lambda value: f"{value:.10g}",  # pyright: ignore[reportUnknownLambdaType]
    }


def _beginning(day: date, length: int) -> date:
    """Return the first day of the partition that holds `day`."""
    return day - timedelta(days=day.weekday()) if length == 7 else day


def _window(table: CsvTable) -> dict[str, int]:
    """Return the partitions of each split: about a sixth as holdout, a tenth for validation, at most 730 to train."""
    present = table.partitions - table.gaps
    holdout, validation = (
        -(-share * table.partitions // present)
        for share in (min(56, max(5, present // 6)), min(28, max(3, present // 10)))
    )
    return {
        "train": min(730, table.partitions - holdout - validation),
        "validation": validation,
        "holdout": holdout,
    }


def _day(table: CsvTable) -> str:
    """Return the Python expression of a row's partition."""
    day = f"pl.col({_quoted(table.event_time)})"
    if table.column.dtype == "datetime":
        day += ".dt.convert_time_zone(ZONE).dt.date()"
    return day + '.dt.truncate("1w")' * (table.unit == "week")


def _parsed(column: CsvColumn, table: CsvTable) -> str:
    """Return the Python expression that converts the file's texts to the column's type."""
    text = f"texts[{_quoted(column.title)}]"
    if column.dtype == "string":
        return text
    if column.dtype in ("int64", "float64") and table.decimal_comma:
        text += '.str.replace(",", ".", literal=True)'
    return f"_exact({text}, {_POLARS[column.dtype]})"


_POLARS = {
    "date": "pl.Date()",
    "datetime": 'pl.Datetime("us", "UTC")',
    "int64": "pl.Int64()",
    "float64": "pl.Float64()",
    "bool": "pl.Boolean()",
}
"""Type of a column → its Python expression."""


def _quoted(text: str | Path) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _listed(texts: Iterable[object]) -> str:
    """Return a list as Python source."""
    return f"[{', '.join(_quoted(str(text)) for text in texts)}]"


def _word(text: str) -> str:
    """Return `text` as YAML, in quotes if YAML would read something else: `no` is a boolean in YAML."""
    return text if yaml.safe_load(text) == text else _quoted(text)
