"""`ml-assets data` and `env`: versions of the lake's tables, and environments beside main."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.opened import reading, writing
from ml_assets.cli.terminal import (
    SuggestingGroup,
    html_option,
    json_option,
    say,
    show,
    writing_to,
)
from resources.words import counted, name_some

if TYPE_CHECKING:
    from ml_assets.data.tables.history.diff import Correction
    from ml_assets.data.tables.history.log import PartitionContent, TableCommit

_SHOWN_KEYS = 3
"""Partitions of a commit that a line names. It counts the others."""


@click.group("data", cls=SuggestingGroup)
def data() -> None:
    """Look at the versions of the lake's tables. Changes nothing.

    A REF is a branch (`main`), a tag, a commit id, or MODEL/VERSION: the commit behind that version's training set. Of
    the id of a commit of main seven digits are enough.
    """


_tables_option = click.option(
    "--table", "tables", multiple=True, metavar="TABLE", help="Only this table; repeatable."
)


@data.command("log", short_help="Show the commits of the lake, newest first.")
@click.argument("ref", default="main")
@click.option("--table", default="", metavar="TABLE", help="Only commits about this table.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="Commits to show.")
@json_option
def data_log(ref: str, table: str, limit: int, as_json: bool) -> None:
    """Show the commits of REF (default main), newest first: tables, partitions, run, person and reason."""
    found = reading().data.log(ref, table=table, limit=limit)
    if as_json:
        say(json.dumps([_commit_facts(one) for one in found], indent=1))
        return
    for one in found:
        say(f"{one.commit[:12]}  {one.at:%Y-%m-%d %H:%M:%S} UTC  {_in_words(one)}")
    if not found:
        say(f"no commit of {ref} is about {table}")


@data.command("diff", short_help="Show which partitions, rows and columns differ between two commits.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@_tables_option
@click.option("--no-rows", is_flag=True, help="Compare manifests and profiles only; read no data file.")
@json_option
@html_option
def data_diff(
    before: str, after: str, tables: tuple[str, ...], no_rows: bool, as_json: bool, html: Path | None
) -> None:
    """Compare the lake at A and at B, each a REF: partitions, rows, columns, and statistics of columns.

    Reads data files only of the partitions that differ.
    """
    from ml_assets.pages.difference_page import difference_of_lake

    found = reading().data.diff(before, after, tables=tables, read_rows=not no_rows)
    if as_json:
        say(json.dumps(asdict(found), indent=1))
    else:
        show(difference_of_lake(found, f"{before} → {after}"), html)


@data.command("checkout", short_help="Write the partitions at a commit to a folder, as Parquet.")
@click.argument("ref")
@click.argument("folder", type=click.Path(path_type=Path))
@_tables_option
@click.option("--partitions", metavar="FIRST..LAST", help="Only these partitions: a key, or a range.")
@json_option
def data_checkout(
    ref: str, folder: Path, tables: tuple[str, ...], partitions: str | None, as_json: bool
) -> None:
    """Write the partitions at REF to the new folder FOLDER, read-only, with the paths that they have in the lake.

    For MODEL/VERSION: the window that the version was trained and evaluated on, unless --table names other tables.
    """
    context = reading()
    with writing_to(folder):
        written = context.data.checkout(ref, folder, tables=tables, partitions=partitions)
    if as_json:
        say(json.dumps({**asdict(written), "folder": str(folder)}, indent=1))
        return
    for table, number in written.partitions.items():
        say(f"{table}: {counted(number, 'partition')}")
    say(
        f"wrote {counted(written.files, 'file')}, {written.size:,} bytes, at commit {written.commit[:12]} to {folder}"
    )


@data.command("blame", short_help="Show who and what made a partition, and its contents before.")
@click.argument("table")
@click.argument("partition")
@click.option("--ref", default="main", show_default=True, help="Branch, tag, commit or MODEL/VERSION.")
@json_option
def data_blame(table: str, partition: str, ref: str, as_json: bool) -> None:
    """Show each content that PARTITION of TABLE had, newest first: commit, run, person, code, time and reason."""
    found = reading().data.blame(table, partition, ref=ref)
    if as_json:
        say(json.dumps([_content_facts(one) for one in found], indent=1))
        return
    for one in found:
        made = one.made_by
        rows = "no rows" if one.rows is None else f"{one.rows:,} rows"
        say(
            f"{made.commit[:12]}  {made.at:%Y-%m-%d %H:%M:%S} UTC  {rows}, content {(one.content_digest or '–')[:12]}"
        )
        say(f"    {_in_words(made)}")
        say(f"    code {one.code_version or 'not stated'}; differs from the content before by: {one.why}")


@data.command("corrections", short_help="List the corrections of past partitions: when, and which rows.")
@click.argument("table")
@click.argument("partition", default="")
@json_option
def data_corrections(table: str, partition: str, as_json: bool) -> None:
    """List the corrections of TABLE, or of one PARTITION: the moment since which the new rows are known, rows that
    came, went and changed, and the columns with other values.

    Only a dataset with `known_at: ingestion` keeps the rows from before a correction.
    """
    found = reading().data.corrections(table, partition)
    if as_json:
        say(json.dumps([{**asdict(one), "known_at": one.known_at.isoformat()} for one in found], indent=1))
        return
    for one in found:
        say(f"{one.key}  {one.known_at:%Y-%m-%d %H:%M:%S} UTC  {_correction_in_words(one)}")
    if not found:
        say(
            f"{table} {partition} was not corrected."
            if partition
            else f"No partition of {table} was corrected."
        )


@data.command("show", short_help="Show a partition: its verdict, its users, its columns, the days before it.")
@click.argument("table")
@click.argument("partition", default="")
@json_option
@html_option
def data_show(table: str, partition: str, as_json: bool, html: Path | None) -> None:
    """Show PARTITION of TABLE on main, by default the newest one: verdict, users, columns, partitions before it.

    Users are feature tables that read it, trainings and versions whose weights saw its rows, and environments. --html
    adds pictures. --json prints the users alone.
    """
    from ml_assets.pages import partition_page as page

    project = reading().project
    key = partition or page.newest_partition(project.platform, table)
    if as_json:
        reader = project.reader()
        page.require_partition(project.platform, reader, table, key)
        say(json.dumps(asdict(page.users_of(project.platform, reader, table, key)), indent=1))
    else:
        show(page.partition_page(project.platform, table, key, draw=html is not None), html)


def _in_words(one: "TableCommit") -> str:
    said = one.message
    if len(one.keys) > _SHOWN_KEYS:
        said += f" ({len(one.keys)} partitions)"
    said += f", run {one.run_id}" if one.run_id else ""
    said += f", by {one.author}" if one.author else ""
    return said + (f": {one.reason}" if one.reason else "")


def _correction_in_words(one: "Correction") -> str:
    if (change := one.change) is None:
        return "the rows from before were rejected later: nobody reads them"
    columns = ", ".join(f"{name} {number:,}" for name, number in change.columns.items())
    return (
        f"{change.before:,} → {change.after:,} rows: {change.came:,} came, {change.went:,} went, {change.changed:,} "
        f"changed{f' ({columns})' if columns else ''}"
    )


def _commit_facts(one: "TableCommit") -> dict[str, object]:
    return {**asdict(one), "at": one.at.isoformat()}


def _content_facts(one: "PartitionContent") -> dict[str, object]:
    return {**asdict(one), "made_by": _commit_facts(one.made_by)}


@click.group("env", cls=SuggestingGroup)
def env() -> None:
    """Work in an environment: a branch of the lake in place of main, with a ledger, tracking and Dagster of its own.

    Every command works in the environment that ML_ASSETS_ENV names. These five always look at it from main.
    """


@env.command("create", short_help="Create an environment at main's head, without a copy of data.")
@click.argument("name")
def env_create(name: str) -> None:
    """Create environment NAME at main's head. No data is copied. NAME has small letters, digits and _."""
    made = writing(on_main=True).env.create(name)
    say(f"Environment {name} begins at commit {made.origin[:12]} of main. No data was copied.")
    say(f"To work in it: export ML_ASSETS_ENV={name}      To work on main again: unset ML_ASSETS_ENV")


@env.command("list", short_help="List the environments of this home.")
@json_option
def env_list(as_json: bool) -> None:
    """List the environments of this home: author, time, changed partitions, conflicts with main."""
    found = reading(on_main=True).env.list()
    if as_json:
        facts = [
            {
                **asdict(one.environment),
                "created_at": one.environment.created_at.isoformat(),
                "changed": one.changed,
                "conflicts": one.conflicts,
            }
            for one in found
        ]
        say(json.dumps(facts, indent=1))
        return
    for one in found:
        conflicts = sum(map(len, one.conflicts.values()))
        say(
            f"{one.environment.name}  by {one.environment.author}, {one.environment.created_at:%Y-%m-%d %H:%M} UTC, "
            f"{counted(one.partitions, 'changed partition')}"
            + (f", {counted(conflicts, 'conflict')} with main" if conflicts else "")
        )
    if not found:
        say("no environment; to create one: ml-assets env create NAME")


@env.command("diff", short_help="Show which partitions, rows, columns and models differ from main.")
@click.argument("name")
@click.option("--no-rows", is_flag=True, help="Compare manifests and profiles only; read no data file.")
@click.option(
    "--markdown", is_flag=True, help="Print a comment for a pull request: short enough, with a mark."
)
@json_option
@html_option
def env_diff(name: str, no_rows: bool, markdown: bool, as_json: bool, html: Path | None) -> None:
    """Compare environment NAME with the commit of main at which it began, and its models with main's.

    Changes of main since then are not shown, except conflicts: partitions that both changed.
    """
    from ml_assets.pages.difference_page import as_comment, environment_page

    found = reading(on_main=True).env.diff(name, read_rows=not no_rows)
    page = environment_page(found.changes, found.lake, found.models)
    if as_json:
        facts = [
            {"model": one.model, "decision": one.decision, "main": one.main, "metrics": one.metrics}
            for one in found.models
        ]
        say(
            json.dumps(
                {**asdict(found.lake), "conflicts": found.changes.conflicts, "models": facts}, indent=1
            )
        )
    elif markdown:
        say(as_comment(page, name).rstrip())
    else:
        show(page, html)


@env.command("merge", short_help="Make the environment's partitions main's, without building them again.")
@click.argument("name")
def env_merge(name: str) -> None:
    """Merge the changed partitions of environment NAME into main, with their verdicts. Nothing is built again.

    It is refused, and changes nothing, if main changed one of the same partitions, or if a partition is rejected.
    """
    main = writing(on_main=True)
    merged = main.env.merge(name, by=main.project.platform.acting)
    for table, keys in merged.partitions.items():
        say(f"{table}: {counted(len(keys), 'partition')}: {name_some(keys, 3)}")
    if merged.overtaken:
        say(f"another run changed these meanwhile, and main keeps its rows: {name_some(merged.overtaken)}")
    if merged.partitions:
        say(f"merged into main at commit {merged.commit[:12]}; nothing was built again")
    else:
        say(f"environment {name} changed no partition: nothing to merge")


@env.command("drop", short_help="Delete an environment: its branches, ledger, tracking and Dagster home.")
@click.argument("name")
def env_drop(name: str) -> None:
    """Delete environment NAME: its branches of the lake, its ledger, tracking and Dagster home. Main stays as it is."""
    writing(on_main=True).env.drop(name)
    say(f"Environment {name} is gone.")
