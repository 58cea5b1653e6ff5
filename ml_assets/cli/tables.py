"""`ml-assets source`, `accept`, `acceptances`, `quarantine`, `online`: rows of tables, from source to online store."""

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ml_assets.cli.opened import deciding, reading
from ml_assets.cli.terminal import Problem, SuggestingGroup, json_option, say
from resources.words import counted

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.components.documents import DeclaredSource

_PATIENCE_SECONDS = 3.0
"""Wait for a server. Shorter than in a run: a person expects a quick answer."""


@click.group("source", cls=SuggestingGroup)
def source() -> None:
    """Look at the sources of datasets. Changes nothing.

    A dataset may still lack its contract, or the contract its columns.
    """


@source.command("preview", short_help="Print ten rows of a source, and a contract for them.")
@click.argument("table")
@json_option
def source_preview(table: str, as_json: bool) -> None:
    """Print ten of the newest rows of the source of TABLE (`datasets/…`), and a contract for its columns, as YAML.

    The contract follows from up to 1,000 rows: check its key, its event time, and which columns may be null. Values of
    sensitive columns are hidden.
    """
    declared = _declared(table)
    found = declared.preview(reading(patience_seconds=_PATIENCE_SECONDS).project.platform)
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
    _print(found.rows, hides_shape=True)
    if not found.read:
        say("The source has no rows, so which columns may be null is not known.")
    say(f"Inferred from {counted(found.read, 'row')}, to paste below attributes: and to check:")
    say(found.contract_yaml)
    for name, dtype in found.without_type.items():
        say(f"    # {name} is {dtype}, which no contract has: cast it at the source, or leave it out there")


@source.command("check", short_help="Check that sources answer and have the contracts' columns.")
@click.argument("table", required=False)
def source_check(table: str | None) -> None:
    """Connect to the source of TABLE, or to those of all datasets, and compare its columns with the contract.

    Prints a sentence with a remedy for each fault. Exit status 1 if there is any.
    """
    from ml_assets.components import declarations, documents

    named = [] if table is None else [_declared(table).table.name]
    names = named or [f"datasets/{name}" for name in documents.declared_names(declarations.DEFS)]
    failed = 0
    platform = reading(patience_seconds=_PATIENCE_SECONDS).project.platform
    for name in names:
        try:
            declared = _declared(name)
            faults = declared.faults(platform)
            if not faults:
                say(f"ok    {name} ({declared.kind})")
        except documents.SourceNotDeclared as error:  # the other sources are still checked
            faults = [str(error)]
        failed += bool(faults)
        for fault in faults:
            say(f"FAIL  {fault if fault.startswith(name) else f'{name}: {fault}'}")
    if failed:
        say(f"{failed} of {counted(len(names), 'source')} failed; each FAIL line names the remedy.")
        raise SystemExit(1)


@source.command("dead-letters", short_help="Print messages of a topic that are no rows.")
@click.argument("table")
@click.option("--newest", default=20, show_default=True, help="Print this many, the newest first.")
@json_option
def source_dead_letters(table: str, newest: int, as_json: bool) -> None:
    """Print the messages that TABLE (`datasets/…`, of a source of kind kafka) could not take as rows, and why.

    Reads the lake alone, not the topic. No bytes are shown if the contract has a sensitive column.
    """
    declared = _declared(table)
    if declared.kind != "kafka":
        raise Problem(
            f"{declared.table.name} has a source of kind {declared.kind}: only kafka has dead letters"
        )
    counts, found = declared.dead_letters(reading().project.platform, newest)
    if as_json:
        letters = [asdict(one) for one in found]
        facts = {"table": declared.table.name, "kinds": dict(counts), "newest": letters}
        say(json.dumps(facts, indent=1, ensure_ascii=False))
        return
    why = ", ".join(f"{kind} {count}" for kind, count in counts.items())
    say(f"{declared.table.name}: {counted(sum(counts.values()), 'dead letter')}{f': {why}' if why else ''}")
    for one in found:
        place = f"partition {one.partition} offset {one.offset}"
        say(f"  {place}: {one.reason} ({counted(one.bytes, 'byte')}: {one.message!r})")


def _declared(table: str) -> "DeclaredSource":
    from ml_assets.components import declarations, documents

    return documents.declared_source(declarations.DEFS, table.removeprefix("datasets/"))


def _print(frame: "pl.DataFrame", *, hides_shape: bool = False) -> None:
    import polars as pl

    with pl.Config(
        tbl_cols=-1,
        tbl_rows=-1,
        fmt_str_lengths=60,
        tbl_width_chars=200,
        tbl_hide_dataframe_shape=hides_shape,
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


@click.command("accept")
@click.argument("table")
@click.argument("partition")
@click.option("--reason", required=True, help="Reason to use these rows; recorded with your name.")
def accept(table: str, partition: str, reason: str) -> None:
    """Put the rejected rows of TABLE PARTITION (`datasets/flights 2013-07-04`) on main as they are.

    A range `FIRST..LAST` accepts all partitions in it that only the number of rows rejects, as a new level: later
    partitions are compared with it. The finding of such a partition names the range.
    """
    context, acting = deciding()
    found = context.accept(table, partition, by=acting, reason=reason)
    what = f" ({counted(len(found), 'partition')})" if ".." in partition else ""
    say(f"{table} {partition}{what} is accepted by {acting.in_words}: {reason}")
    say(
        "You can now materialize the tables that read it: ml-assets launch …, or in the pages of `ml-assets ui`."
    )


@click.command("acceptances")
@click.argument("table", required=False)
def acceptances(table: str | None) -> None:
    """List the accepted partitions of TABLE, or of all tables, oldest first.

    An acceptance covers one verdict. `overtaken` means that the partition has a newer verdict, so that it decides.
    """
    project = reading().project
    ledger = project.platform.ledger
    found = ledger.acceptances(table)
    if table and not found:
        project.declared.table(table)  # refuses a mistyped name
    keys = {name: {one.key for one in found if one.table == name} for name in {one.table for one in found}}
    newest = {(name, key): row for name, some in keys.items()
              for key, row in ledger.newest_verdicts(name, some).items()}  # fmt: skip
    for one in found:
        overtaken = "" if newest[one.table, one.key].number == one.number else "  (overtaken)"
        say(
            f"{one.at:%Y-%m-%d %H:%M} UTC  {one.table} {one.key}  {one.by.in_words}: {one.reason}"
            f"{f'  (level {one.level})' if one.level else ''}{overtaken}"
        )
    if not found:
        say(f"No partition{f' of {table}' if table else ''} was accepted.")


@click.group("quarantine", cls=SuggestingGroup)
def quarantine() -> None:
    """Show rows that break a rule and were set aside (`on_bad_rows: quarantine`), and readmit them after a fix."""


@quarantine.command("list", short_help="List the partitions with quarantined rows.")
@click.argument("table", required=False)
def quarantine_list(table: str | None) -> None:
    """List the partitions with quarantined rows, of TABLE or of all tables, and the rules that these rows break."""
    from ml_assets.data.tables.publish.rejected import quarantined_keys, quarantined_rules

    project = reading().project
    reader, declared = project.reader(), project.declared
    lines: list[str] = []
    for name in [declared.table(table).table] if table else sorted(declared.tables()):
        for key in quarantined_keys(reader, name):
            rows, rules = quarantined_rules(reader, name, key)
            why = ", ".join(f"{rule} {count}" for rule, count in rules.items())
            lines.append(f"{name} {key}  {counted(rows, 'row')}: {why}")
    for line in lines:
        say(line)
    if not lines:
        say("No rows are in quarantine.")


@quarantine.command("show", short_help="Print quarantined rows with their reasons.")
@click.argument("table")
@click.argument("partition", required=False)
@click.option("--rows", default=20, show_default=True, help="Print this many rows of each partition.")
def quarantine_show(table: str, partition: str | None, rows: int) -> None:
    """Print the quarantined rows of TABLE, or of one PARTITION of it. Values of sensitive columns are hidden."""
    from ml_assets.data.tables.publish.rejected import quarantined_keys, quarantined_rules, shown_rows

    project = reading().project
    spec, reader = project.declared.table(table), project.reader()
    keys = [partition] if partition else quarantined_keys(reader, table)
    if not keys:
        say(f"No row of {table} is in quarantine.")
    for key in keys:
        first = shown_rows(reader, spec, key, rows)
        count, _ = quarantined_rules(reader, table, key)
        say(f"{table} {key}: {counted(count, 'row')} in quarantine")
        _print(first)


@quarantine.command("readmit", short_help="Validate quarantined rows again; merge those that pass now.")
@click.argument("table")
@click.argument("partition", required=False)
def quarantine_readmit(table: str, partition: str | None) -> None:
    """Validate the quarantined rows of TABLE, or of one PARTITION, by today's rules, together with the rows on main.

    Rows that pass now are merged; the others stay in quarantine. A partition that is refused does not stop the others;
    then the exit status is 1. After a fix of the source, materialize the partition again instead.
    """
    from ml_assets.context import launch
    from ml_assets.data.tables.layout import UNDATED
    from ml_assets.data.tables.publish.rejected import (
        NotReadmitted,
        quarantined_keys,
        quarantined_rows,
        readmit,
    )

    context, acting = deciding()
    project = context.project
    spec, reader, platform = project.declared.table(table), project.reader(), project.platform
    # Rows without a time belong to no partition, so only a call that names them is refused.
    every = [partition] if partition else quarantined_keys(reader, table)
    keys = [key for key in every if partition or key != UNDATED]
    defs = project.defs_of(table)
    tables = project.declared.tables_with(defs)
    readmitted = 0
    refused: list[str] = []
    for key in keys:
        try:
            before = quarantined_rows(reader, table, key).height
            result = readmit(platform.lake, platform.ledger, spec, key, acting, tables)
        except NotReadmitted as error:
            refused.append(str(error))
            continue
        left = result.merged[key].verdict.quarantined
        readmitted += before - left
        say(f"{table} {key}: {counted(before - left, 'row')} readmitted, {left} still in quarantine")
    if keys:
        launch.tidy(project, defs)
    if readmitted:
        say("Tables that read these partitions are stale now: materialize them to use the rows.")
    if not keys:
        say(f"{table} has no rows in quarantine.")
    if refused:
        raise Problem("\n".join(refused))


@click.group("online", cls=SuggestingGroup)
def online() -> None:
    """Read the online store, which holds the newest row of each entity of a feature table."""


@online.command("get", short_help="Print the newest feature row of an entity.")
@click.argument("table")
@click.argument("entity", nargs=-1, required=True, metavar="COLUMN=VALUE…")
def online_get(table: str, entity: tuple[str, ...]) -> None:
    """Print the newest row of an entity of TABLE (`features/…`). Name the entity by each column of `online.entity`.

    Values of sensitive columns are hidden. Exit status 1 if the store has no row, or the row has expired.
    """
    project = reading().project
    spec = project.declared.feature_table(table)
    declared, store = spec.online_table, project.platform.online
    typed = declared.entity_typed(entity)
    row = declared.newest(store, [declared.entity_of(typed)])[0]
    if row is None:
        raise Problem(
            f"{store.place} has no row of {declared.table} for {' '.join(entity)}, or it has expired. To fill it: "
            f"ml-assets launch {declared.table}/online PARTITIONS"
        )
    for name, value in declared.values_in(row).items():
        say(f"{name}: {'(hidden)' if spec.contract.hides(name) else value}")
    known = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.known_us)
    say(f"From main as of {known:%Y-%m-%d %H:%M:%S} UTC, in {store.place}")
