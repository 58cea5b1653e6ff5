"""`ml-assets source`: rows of a dataset's source with the contract they suggest, and checks of sources."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say
from resources.platform import Platform
from resources.words import counted

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.components.documents import DeclaredSource

_PATIENCE_SECONDS = 3.0
"""Wait for a server. Shorter than in a run: a person expects a quick answer."""


@click.group("source", cls=SuggestingGroup, short_help="Show rows of a dataset's source; check sources.")
def command() -> None:
    """Look at the sources of datasets. Changes nothing.

    A dataset may still lack its contract, or the contract its columns.
    """


@command.command("preview", short_help="Print ten rows of a source, and a contract for them.")
@click.argument("table")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def preview(table: str, as_json: bool) -> None:
    """Print ten of the newest rows of the source of TABLE (`datasets/…`), and a contract for its columns, as YAML.

    The contract follows from up to 1,000 rows: check its key, its event time, and which columns may be null. Values of
    sensitive columns are hidden.
    """
    declared = _declared(table)
    with Project.to_read() as project:
        found = declared.preview(Platform(project.settings, _PATIENCE_SECONDS))
    if as_json:
        facts = {
            "table": declared.table.name,
            "kind": declared.kind,
            "rows": _as_json(found.rows),
            "contract": found.contract,
            "without_type": found.without_type,
        }
        say(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    _print(found.rows)
    if not found.read:
        say("The source has no rows, so which columns may be null is not known.")
    say(f"Inferred from {counted(found.read, 'row')}, to paste below attributes: and to check:")
    say(found.contract_yaml)
    for name, dtype in found.without_type.items():
        say(f"    # {name} is {dtype}, which no contract has: cast it at the source, or leave it out there")


@command.command("check", short_help="Check that sources answer and have the contracts' columns.")
@click.argument("table", required=False)
def check(table: str | None) -> None:
    """Connect to the source of TABLE, or to those of all datasets, and compare its columns with the contract.

    Prints a sentence with a remedy for each fault. Exit status 1 if there is any.
    """
    from ml_assets.components.declarations import DEFS
    from ml_assets.components.documents import declared_names

    named = [] if table is None else [_declared(table).table.name]
    names = named or [f"datasets/{name}" for name in declared_names(DEFS)]
    failed = 0
    with Project.to_read() as project:
        platform = Platform(project.settings, _PATIENCE_SECONDS)
        for name in names:
            faults = _faults(name, platform)
            failed += bool(faults)
            for fault in faults:
                say(f"FAIL  {fault if fault.startswith(name) else f'{name}: {fault}'}")
    if failed:
        say(f"{failed} of {counted(len(names), 'source')} failed; each FAIL line names the remedy.")
        raise SystemExit(1)


@command.command("dead-letters", short_help="Print messages of a topic that are no rows.")
@click.argument("table")
@click.option("--newest", default=20, show_default=True, help="Print this many, the newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def dead_letters(table: str, newest: int, as_json: bool) -> None:
    """Print the messages that TABLE (`datasets/…`, of a source of kind kafka) could not take as rows, and why.

    Reads the lake alone, not the topic. No bytes are shown if the contract has a sensitive column.
    """
    declared = _declared(table)
    if declared.kind != "kafka":
        raise Problem(
            f"{declared.table.name} has a source of kind {declared.kind}: only kafka has dead letters"
        )
    with Project.to_read() as project:
        counts, found = declared.dead_letters(project.platform, newest)
    if as_json:
        say(
            json.dumps(
                {
                    "table": declared.table.name,
                    "kinds": dict(counts),
                    "newest": [asdict(one) for one in found],
                },
                indent=1,
                ensure_ascii=False,
            )
        )
        return
    why = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    say(f"{declared.table.name}: {counted(sum(counts.values()), 'dead letter')}{f': {why}' if why else ''}")
    for one in found:
        place = f"partition {one.partition} offset {one.offset}"
        say(f"  {place}: {one.reason} ({counted(one.bytes, 'byte')}: {one.message!r})")


def _faults(table: str, platform: Platform) -> list[str]:
    """Return a sentence for each fault of a table's source; say `ok` if there is none."""
    from ml_assets.components.documents import SourceNotDeclared

    try:
        declared = _declared(table)
    except SourceNotDeclared as error:  # the other sources are still checked
        return [str(error)]
    faults = declared.faults(platform)
    if not faults:
        say(f"ok    {table} ({declared.kind})")
    return faults


def _declared(table: str) -> "DeclaredSource":
    from ml_assets.components.declarations import DEFS
    from ml_assets.components.documents import declared_source

    return declared_source(DEFS, table.removeprefix("datasets/"))


def _print(frame: "pl.DataFrame") -> None:
    import polars as pl

    with pl.Config(
        tbl_cols=-1, tbl_rows=-1, fmt_str_lengths=60, tbl_width_chars=200, tbl_hide_dataframe_shape=True
    ):
        say(str(frame))


def _as_json(frame: "pl.DataFrame") -> list[dict[str, Any]]:
    """Return rows as JSON has them; texts for values that JSON lacks, null for NaN."""
    import polars as pl

    # Formatted by polars: Python's datetime ends with the year 9999, and bad data holds later years.
    times = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Date | pl.Datetime)]
    frame = frame.with_columns(pl.col(times).dt.to_string("iso")) if times else frame
    return [{name: _plain(value) for name, value in row.items()} for row in frame.to_dicts()]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value if value is None or isinstance(value, int | str) else str(value)
