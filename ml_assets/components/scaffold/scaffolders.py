"""Scaffolds for `dg scaffold defs ml_assets.components.… NAME`: a commented example that loads and trains as it is.

Here: the templates of each component's folder, the names that follow from NAME, and with `--from FILE.csv` the sizes of
a first model (window, batch, workers). The text is in `templates/`. Not here: the facts about a file (`csv_tables`).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import dagster as dg
import jinja2
import yaml
from pydantic import BaseModel, ConfigDict, Field

from ml_assets.components.scaffold.column_values import NULLS
from ml_assets.components.scaffold.csv_tables import CsvColumn, CsvTable, GivenOptions, Guess, infer
from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.rows_of_file import FileRows, read_rows
from ml_assets.components.scaffold.rows_of_table import is_address, query_of, read_table
from ml_assets.data.features.holiday_calendar import FARTHEST, HOLIDAY_COLUMNS
from ml_assets.data.sources.s3_object import S3Object
from ml_assets.foundation.objective_facts import facts_of
from resources.addresses import hide_credentials
from resources.words import name_some

TEMPLATES = Path(__file__).parent / "templates"
FIRST_DAY, LAST_DAY = "2024-01-01", "2024-03-31"
"""First and last day of the synthetic source."""


class ScaffoldRefused(click.ClickException):
    """A folder cannot be written for this name or file. The message has the remedy."""


class CsvParams(BaseModel):
    """Options of the commands that can begin with a file."""

    # By name, too: dg validates the options, dumps them by field name and validates them again.
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    from_file: str = Field(
        default="",
        alias="from",
        description="CSV, Parquet, JSON lines or Excel, here or s3://bucket/key; or postgresql://…/table.",
    )
    label: str = Field(
        default="",
        description="Column to predict. Default: one that is called label, target or the like, or the last.",
    )
    date: str = Field(
        default="",
        description="Column with the day or the moment of a row; or its year, month and day: YEAR,MONTH.",
    )
    date_format: str = Field(
        default="", description="How dates are written, such as %d/%m/%Y, if they read in two ways."
    )
    entity: str = Field(
        default="",
        description="What a row is about: columns such as a store, with commas between. Features look back within it.",
    )
    cadence: str = Field(
        default="",
        description="daily, weekly, monthly, quarterly or yearly. Default: by the distance of the dates.",
    )
    decimal: str = Field(
        default="", description="comma or point: the mark before the fraction, if numbers read in two ways."
    )
    known: str = Field(
        default="",
        description="Columns that are known before their day begins, with commas between: they become features.",
    )
    holidays: str = Field(
        default="",
        description="Country whose public holidays are features, such as US, or a part of it, such as US-CA.",
    )
    time_zone: str = Field(
        default="",
        description="Time zone whose midnight begins a day, by default UTC. Times without an offset from UTC need it.",
    )


class FeatureTableParams(BaseModel):
    """Options of the feature table's command."""

    input: str = Field(default="", description="The table it reads; datasets/NAME if not given.")


class TemplateScaffolder(dg.Scaffolder[Any]):
    """Scaffolder that writes one folder from templates. A subclass names the templates."""

    documents: Sequence[str]
    """Templates of `defs.yaml`, one document each, in this order."""
    modules: Sequence[str]
    """Templates of the Python files beside it."""
    next_commands: Sequence[str]
    """Commands to try next; `{name}`, `{days}` and `{last}` are filled in."""
    params: type[BaseModel] = CsvParams
    """Options of the command."""

    @classmethod
    def get_scaffold_params(cls) -> type[BaseModel]:
        """Return `params`."""
        return cls.params

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the folder and print the next commands."""
        names: dict[str, Any] = _names(request)
        prefix, guesses, modules, variable = "", (), self.modules, ""
        if file := getattr(request.params, "from_file", ""):
            table = _infer(request, file)
            file = hide_credentials(file)
            if table.form == "sql":
                modules, variable = [name for name in modules if name != "source"], names["url_env"]
            prefix, guesses, names = "csv_", table.guesses, names | csv_names(table, names)
        elif isinstance(request.params, CsvParams):
            _require_no_options(request, request.params)
        written = {
            "__init__.py": f'"""Pipeline {names["name"]}: describe the pipeline and the source of its data here."""\n',
            "defs.yaml": _editor_line(request)
            + "---\n".join(_render(f"{prefix}{document}.yaml", names) for document in self.documents),
            **{
                f"{module}.py": _render(f"{module if module == 'model' else prefix + module}.py", names)
                for module in modules
            },
        }
        for name, text in written.items():
            (request.target_path / name).write_text(text)
        if guesses:
            click.echo(f"Read {file} and guessed the following. Check it:")
            for line in _aligned((*guesses, *_checks(names["table"])[: len(self.documents)])):
                click.echo(line)
        click.echo(f"Wrote {', '.join(written)}. They work as they are; adapt them to your table.")
        if variable:
            click.echo(
                f"Set {variable} to the address of the database, without the table: no file here holds it."
            )
        click.echo("Next:")
        for command in self.next_commands:
            days = f"{names['first_key']}..{names['last_key']}"
            click.echo(f"  ml-assets {command.format(name=names['name'], days=days, last=names['last_key'])}")


class DatasetScaffolder(TemplateScaffolder):
    """A dataset and its source."""

    documents = ("dataset",)
    modules = ("source",)
    next_commands = ("launch datasets/{name} {days}",)


class FeatureTableScaffolder(TemplateScaffolder):
    """A feature table and its function."""

    documents = ("feature_table",)
    modules = ("features",)
    next_commands = ("launch features/{name} {days}", "leaktest features/{name}")
    params = FeatureTableParams


class TrainingPipelineScaffolder(TemplateScaffolder):
    """A whole pipeline, from source to model."""

    documents = (*DatasetScaffolder.documents, *FeatureTableScaffolder.documents, "training_pipeline")
    modules = (*DatasetScaffolder.modules, *FeatureTableScaffolder.modules, "model")
    next_commands = (
        *DatasetScaffolder.next_commands,
        *FeatureTableScaffolder.next_commands,
        "launch {name} {last}",
    )


def _infer(request: dg.ScaffoldRequest[Any], file: str) -> CsvTable:
    """Infer the table's facts from the file. Raises `ScaffoldRefused` and leaves no folder if that fails."""
    options = request.params
    try:
        return infer(
            _rows_of(file),
            GivenOptions(
                label=options.label,
                known=_split(options.known),
                date=options.date,
                date_format=options.date_format,
                entity=_split(options.entity),
                cadence=options.cadence,
                decimal=options.decimal,
                time_zone=options.time_zone,
                holidays=options.holidays,
            ),
        )
    except CsvRefused as error:
        _leave_nothing(request)
        raise ScaffoldRefused(str(error)) from error


def _require_no_options(request: dg.ScaffoldRequest[Any], params: CsvParams) -> None:
    """Raise `ScaffoldRefused` and leave no folder if an option about a file is given, and no file."""
    given = [f"--{name.replace('_', '-')}" for name, value in params.model_dump().items() if value]
    if given:
        _leave_nothing(request)
        raise ScaffoldRefused(
            f"{name_some(given)} without a file: add --from FILE.csv, whose columns these options are about"
        )


def _rows_of(place: str) -> FileRows:
    """Read what `--from` names. Raises `CsvRefused`."""
    if is_address(place):
        return read_table(place)
    return read_rows(S3Object(place) if place.startswith("s3://") else Path(place).absolute())


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


_WIDEST = 60
"""Characters of a guess up to which the column beside it moves to the right."""


def _checks(table: CsvTable) -> Sequence[Guess]:
    """Return assumptions that no file can show, one per document."""
    place = "defs.yaml" if table.form == "sql" else "source.py"
    return (
        Guess(
            "known at",
            f"the end of a row's {table.unit.word}",
            f"if figures come later: `known_at` in {place}",
        ),
        Guess("features", "the calendar, the past, and columns known in advance", "features.py"),
        Guess("gates", "better than naive; at most 2 % worse than production", "gates in defs.yaml"),
    )


def _aligned(guesses: Sequence[Guess]) -> Iterable[str]:
    """Yield a line per guess: what it is about, its value, and the runner-up with its option."""
    width = max((len(one.value) for one in guesses if one.otherwise and len(one.value) <= _WIDEST), default=0)
    yield f"  {'':<12} {'guess':<{width}}   otherwise"
    for about, value, otherwise in guesses:
        yield f"  {about:<12} {value:<{width}}   {otherwise}".rstrip()


def _leave_nothing(request: dg.ScaffoldRequest[Any]) -> None:
    if not any(request.target_path.iterdir()):
        request.target_path.rmdir()  # dg creates it before it calls the scaffolder


def _editor_line(request: dg.ScaffoldRequest[Any]) -> str:
    """Return the comment with which editors find the schema that `dg utils generate-component-schema` writes."""
    assert request.project_root is not None
    up = "../" * len(request.target_path.relative_to(request.project_root).parts)
    return f"# yaml-language-server: $schema={up}.dg/schema.json\n"


def _names(request: dg.ScaffoldRequest[Any]) -> dict[str, str]:
    """Return the templates' values that follow from NAME.

    Raises `ScaffoldRefused` and leaves no folder if Python cannot import NAME.
    """
    if request.project_root is None:
        raise ScaffoldRefused("run dg in the project's folder, which holds pyproject.toml")
    parts = request.target_path.relative_to(request.project_root).parts
    parts = parts[1:] if parts[0] == "src" else parts
    wrong = [part for part in parts if not part.isidentifier()]
    if wrong or request.scaffold_format != "yaml":
        _leave_nothing(request)
        if not wrong:
            raise ScaffoldRefused("these components are declared in YAML: leave --format out")
        right = "".join(c if c.isalnum() else "_" for c in wrong[0])
        right = right if right.isidentifier() else f"my_{right}"
        raise ScaffoldRefused(
            f"'{wrong[0]}' is not a Python name, and Python imports its functions: use '{right}'"
        )
    # The name of a nested folder includes its parents, so that no two folders have the same name.
    name = "_".join(parts[parts.index("defs") + 1 :])
    given = getattr(request.params, "input", "")
    return {
        "name": name,
        "group": parts[parts.index("defs") + 1],
        "module": ".".join(parts),
        "url_env": f"{name.upper()}_URL",
        "dataset": given or f"datasets/{name.removesuffix('_features')}",
        "start": FIRST_DAY,
        "end": LAST_DAY,
        "first_key": FIRST_DAY,
        "last_key": LAST_DAY,
    }


def _render(template: str, names: Mapping[str, Any]) -> str:
    text = (TEMPLATES / f"{template}.j2").read_text()
    return jinja2.Template(text, undefined=jinja2.StrictUndefined, keep_trailing_newline=True).render(names)


READS = {
    "csv": "texts_of_csv(FILE.read_bytes(), SEPARATOR)",
    "parquet": "pl.read_parquet(FILE.read_bytes())",
    "jsonl": 'parsed(FILE.read_bytes(), "jsonl", "", None, TextForm())',
    "excel": "pl.read_excel(FILE.read_bytes())",
}
"""Form of a file → the Python expression of its rows."""
SMALL = 20_000
"""Training rows below which one worker is faster than two that communicate, and many epochs take seconds."""
STEPS = 5_000
"""Steps in which the default network has learned a small table."""


def first_dropout(objective: str) -> float:
    """Return the dropout of a first default network: none for a label that is a number, since dropout changes the
    variance of what layers read, and so shifts the answers."""
    return 0.0 if _is_number(objective) else 0.1


def _is_number(objective: str) -> bool:
    """Return True if the label is a number, not a class."""
    facts = facts_of(objective)
    return not (facts.is_zero_or_one or facts.has_classes)


def first_training(rows: int) -> dict[str, Any]:
    """Return the settings of a first training of the default network on `rows` training rows: keys of `training`."""
    is_small = rows < SMALL
    batch = 2 ** min(8 if is_small else 10, max(4, (rows // 16).bit_length() - 1))
    epochs = max(4, min(100, STEPS * batch // max(rows, 1)))
    return {
        "epochs": epochs,
        "patience": max(5, epochs // 5),
        "global_batch": batch,
        "learning_rate": 0.003,
        "weight_decay": 0.1,
        "average": {"decay": 0.99},
        "workers": 1 if is_small else 2,
    }


def csv_names(table: CsvTable, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the templates' values; `names` are the values that follow from the folder."""
    keys, window, unit = table.keys, table.window, table.unit
    hour = table.time.is_time
    label = table.label
    past = (*(label.shares or (label.name,)), *table.past.numbers)
    lags = [f"{label.name}_{lag}{unit.suffix}" for lag in table.season if not label.classes]
    season_means = (
        [f"{name}_season" for name in (label.shares or (label.name,))] if len(table.season) > 1 else []
    )
    # A change takes two values of the recent past.
    whats = ("last", "change", "mean") if len(table.recent) > 1 else ("last", "mean")
    earlier = [f"{name}_{what}" for name in past for what in whats] + lags + season_means
    # What a number is predicted from: its earlier values, of which the nearest season counts beside the mean of all.
    earlier_labels = [f"{label.name}_last", f"{label.name}_mean", *lags[:1], *season_means]
    label_past = earlier_labels if _is_number(label.objective) else []
    # Without whole years of training, features of the season mislead: the holdout has values that training never saw.
    season = unit.whole_years is not None and window["train"] >= unit.whole_years
    columns = {column.name: column for column in table.columns}
    known = [columns[name] for name in table.known if name not in table.series]
    words = [column.name for column in known if column.dtype == "string"]
    last_words = [f"{name}_last" for name in table.past.words]
    categorical = (*(("weekday",) if unit.cadence == "daily" else ()), *table.series, *words, *last_words)
    naming = tuple(dict.fromkeys((*table.primary_key, *table.series)))
    always = naming if table.time.name in naming else (table.time.name, *naming)
    kept = always if hour else naming
    holidays = HOLIDAY_COLUMNS if table.holidays else ()
    known_numbers = [column for column in known if column.name not in words]
    # No day of the file itself may be rejected for its number of rows.
    most_uneven = max(0.6, math.ceil(12 * table.unevenness) / 10)
    return {
        "table": table,
        "unit": unit.word,
        "start": keys[0],
        "end": table.cadence.bounds(keys[-1])[1],
        "first_key": keys[0],
        "last_key": keys[-1],
        "model_start": keys[sum(window.values()) - 1],
        "day_expression": _day(table),
        "nulls": _listed(NULLS),
        "is_in_s3": isinstance(table.path, S3Object),
        "read": READS.get(table.form, ""),
        "query": _query(table) if table.form == "sql" else "",
        "exact": _has_texts_with_types(table),
        "imports": _imports(table),
        "date_format": f"{{{_quoted(table.column.title)}: {_quoted(table.time.form)}}}"
        if table.time.form
        else "{}",
        "expressions": {column.name: _parsed(column, table) for column in table.columns},
        "numeric": [
            *(["hour"] if hour else []),
            *(["season_sin", "season_cos"] if season else []),
            *holidays,
            *earlier,
            *(column.name for column in known_numbers),
        ],
        "categorical": categorical,
        "categorical_list": _listed(categorical),
        "season": season,
        "holidays": holidays,
        "farthest": FARTHEST,
        "series": table.series,
        "series_list": _listed(table.series),
        # All rows of a day are predicted as it begins, so only this column tells the naive model their hours apart.
        "naive_by": (*table.series, *(["hour"] if table.by_hour else [])),
        "recent": table.recent,
        "same_season": table.season,
        "lookback": max((*table.recent, *table.season)),
        "past_list": _listed(past),
        "label_past": label_past,
        "shares": label.shares,
        "past_words": table.past.words,
        "past_words_list": _listed(table.past.words),
        "last_words": last_words,
        "earlier": earlier,
        "lag_unit": unit.suffix,
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
        "label_nullable": columns[label.name].nullable,
        "label_dtype": "string" if label.classes else "int8, isin: [0, 1]" if label.is_binary else "float32",
        "label_polars": "" if label.classes else "Int8" if label.is_binary else "Float32",
        **first_training(table.training_rows),
        "dropout": first_dropout(label.objective),
        "metric": facts_of(label.objective).chosen_by,
        "quoted": _quoted,
        "word": _word,
        "words": lambda texts: f"[{', '.join(map(_word, texts))}]",  # pyright: ignore[reportUnknownLambdaType]
        "number": lambda value: f"{value:.10g}",  # pyright: ignore[reportUnknownLambdaType]
    }


def _day(table: CsvTable) -> str:
    """Return the Python expression of a row's partition."""
    day = f"pl.col({_quoted(table.time.name)})"
    if table.time.is_time:
        day += ".dt.convert_time_zone(ZONE).dt.date()"
    return day if table.unit.cadence == "daily" else f'{day}.dt.truncate("1{table.unit.suffix}")'


def _query(table: CsvTable) -> str:
    """Return the query of a partition's rows."""
    columns = {column.name: _sql(column, table) for column in table.columns}
    time, raw = columns[table.time.name], table.sql[table.column.title]
    local = f"{time}::timestamp" if not table.time.is_time else raw
    local = f"{raw} AT TIME ZONE '{table.time_zone}'" if table.time.has_offset else local
    return query_of(
        str(table.path), columns, time=time, local=local, unit=table.unit.word, zone=table.time_zone
    )


def _sql(column: CsvColumn, table: CsvTable) -> str:
    """Return the SQL of a column, with the conversions of `CsvColumn.chain`."""
    sql, chain = table.sql[column.title], column.chain or ""
    if column.cast:
        return f"make_date({sql}::integer, 1, 1)"
    if "replace_time_zone" in chain:
        return f"({sql} AT TIME ZONE '{table.time_zone}')"
    return f"{sql}::date" if ".dt.date()" in chain else sql


def _has_texts_with_types(table: CsvTable) -> bool:
    return any(column.chain is None and column.dtype != "string" for column in table.columns)


def _imports(table: CsvTable) -> str:
    """Return the imports of this project in the source's module, with a blank line before them."""
    exact = _has_texts_with_types(table)
    helpers = {_helper(column) for column in table.columns if column.written}
    names = {
        "file_formats": [
            *(["texts_of_csv"] * (table.form == "csv")),
            *(["parsed"] * (table.form == "jsonl")),
        ],
        "s3_object": ["S3Object"] * isinstance(table.path, S3Object),
        "text_values": [*(["TextForm"] * (exact or table.form == "jsonl")), *(["typed"] * exact)],
        "written_values": sorted(helpers | {"joined_parts"} if table.together else helpers),
    }
    lines = [
        f"from ml_assets.data.sources.{module} import {', '.join(some)}\n"
        for module, some in names.items()
        if some
    ]
    return "\n" + "".join(lines) if lines else ""


def _helper(column: CsvColumn) -> str:
    return "plain_booleans" if " " in column.written else "plain_numbers"


def _parsed(column: CsvColumn, table: CsvTable) -> str:
    """Return the Python expression that converts the file's texts to the column's type."""
    text = f"rows[{_quoted(column.title)}]{column.cast}"
    if table.together and column.name == table.time.name:
        text = f"joined_parts(rows, {', '.join(map(_quoted, table.together))})"
    if column.chain is not None:
        return text + column.chain
    if column.dtype == "string":
        return text
    if column.written:
        text = f"{_helper(column)}({text}, {', '.join(map(_quoted, column.written.split()))})"
    return f"_exact({text}, {_POLARS[column.dtype]})"


_POLARS = {
    "date": "pl.Date()",
    "datetime": 'pl.Datetime("us", "UTC")',
    "int64": "pl.Int64()",
    "float64": "pl.Float64()",
    "bool": "pl.Boolean()",
}
"""Type of a column → its Python expression."""


def _quoted(text: str | Path | S3Object) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _listed(texts: Iterable[object]) -> str:
    """Return a list as Python source."""
    return f"[{', '.join(_quoted(str(text)) for text in texts)}]"


def _word(text: str) -> str:
    """Return `text` as YAML, in quotes if YAML would read something else: `no` is a boolean in YAML."""
    return text if yaml.safe_load(text) == text else _quoted(text)
