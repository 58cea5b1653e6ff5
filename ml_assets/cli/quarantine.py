"""`ml-assets quarantine`: rows that tables set aside, and their readmission."""

from typing import TYPE_CHECKING

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.data.tables.reader import TableReader


@click.group(
    "quarantine", cls=SuggestingGroup, short_help="Show rows that were set aside; readmit them after a fix."
)
def command() -> None:
    """Show rows that break a rule and were set aside (`on_bad_rows: quarantine`), and readmit them after a fix."""


@command.command("list", short_help="List the partitions with quarantined rows.")
@click.argument("table", required=False)
def list_(table: str | None) -> None:
    """List the partitions with quarantined rows, of TABLE or of all tables, and the rules that these rows break."""
    from ml_assets.data.tables.publish.quarantine import quarantined_keys, quarantined_rules

    with Project.to_read() as project:
        reader = _reader(project)
        lines: list[str] = []
        for name in [project.table(table).table] if table else sorted(project.tables()):
            for key in quarantined_keys(reader, name):
                rows, rules = quarantined_rules(reader, name, key)
                why = ", ".join(f"{rule} {count}" for rule, count in rules.items())
                lines.append(f"{name} {key}  {counted(rows, 'row')}: {why}")
    for line in lines:
        say(line)
    if not lines:
        say("No rows are in quarantine.")


@command.command("show", short_help="Print quarantined rows with their reasons.")
@click.argument("table")
@click.argument("partition", required=False)
@click.option("--rows", default=20, show_default=True, help="Print this many rows of each partition.")
def show(table: str, partition: str | None, rows: int) -> None:
    """Print the quarantined rows of TABLE, or of one PARTITION of it. Values of sensitive columns are hidden."""
    import polars as pl

    from ml_assets.data.tables.publish.quarantine import quarantined_keys, quarantined_rules, shown_rows

    with Project.to_read() as project:
        spec, reader = project.table(table), _reader(project)
        for key in [partition] if partition else quarantined_keys(reader, table):
            first = shown_rows(reader, spec, key, rows)
            count, _ = quarantined_rules(reader, table, key)
            say(f"{table} {key}: {counted(count, 'row')} in quarantine")
            with pl.Config(tbl_cols=-1, tbl_rows=-1, fmt_str_lengths=60, tbl_width_chars=200):
                say(str(first))


@command.command("readmit", short_help="Validate quarantined rows again; merge those that pass now.")
@click.argument("table")
@click.argument("partition", required=False)
def readmit(table: str, partition: str | None) -> None:
    """Validate the quarantined rows of TABLE, or of one PARTITION, by today's rules, together with the rows on main.

    Rows that pass now are merged; the others stay in quarantine. A partition that is refused does not stop the others;
    then the exit status is 1. After a fix of the source, materialize the partition again instead.
    """
    from ml_assets.data.tables.declared import DeclaredTable, DeclaredTables
    from ml_assets.data.tables.layout import UNDATED
    from ml_assets.data.tables.publish.quarantine import NotReadmitted, quarantined_keys, quarantined_rows
    from ml_assets.data.tables.publish.quarantine import readmit as readmit_partition

    project, acting = Project.to_decide()
    spec, reader, platform = project.table(table), _reader(project), project.platform
    # Rows without a time belong to no partition, so only a call that names them is refused.
    keys = [partition] if partition else [key for key in quarantined_keys(reader, table) if key != UNDATED]
    declared = DeclaredTables(DeclaredTable.of(one) for one in project.tables().values())
    readmitted = 0
    refused: list[str] = []
    for key in keys:
        try:
            before = quarantined_rows(reader, table, key).height
            result = readmit_partition(platform.lake, platform.ledger, spec, key, acting, declared)
        except NotReadmitted as error:
            refused.append(str(error))
            continue
        left = result.merged[key].verdict.quarantined
        readmitted += before - left
        say(f"{table} {key}: {counted(before - left, 'row')} readmitted, {left} still in quarantine")
    if keys:
        project.tidy()
    if readmitted:
        say("Tables that read these partitions are stale now: materialize them to use the rows.")
    if not keys:
        say(f"{table} has no rows in quarantine.")
    if refused:
        raise Problem("\n".join(refused))


def _reader(project: Project) -> "TableReader":
    from ml_assets.data.tables.reader import TableReader

    return TableReader.at(project.platform.lake)
