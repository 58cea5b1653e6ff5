"""`ml-assets data`: history, differences and copies of the lake; users and origin of a partition."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.problems import Problem, writing_to
from ml_assets.cli.project import Project, say
from ml_assets.cli.written import html_option, show
from resources.words import counted, did_you_mean

if TYPE_CHECKING:
    from ml_assets.data.tables.history.diff import Correction
    from ml_assets.data.tables.history.log import PartitionContent, TableCommit
    from resources.ledger import TrainedOn

_SHOWN_KEYS = 3
"""Partitions of a commit that a line names. It counts the others."""
_BEGIN_OF_ID = re.compile(r"[0-9a-f]{7,63}")
_EVERY = 1 << 31
"""Commits of a whole history."""
_SHOWN_ID = 12
"""Characters of the id of a commit."""


@click.group(
    "data",
    cls=SuggestingGroup,
    short_help="Show history and differences of the data; copy it; show or blame a day.",
)
def command() -> None:
    """Look at the versions of the lake's tables. Changes nothing.

    A REF is a branch (`main`), a tag, a commit id, or MODEL/VERSION: the commit behind that version's training set. Of
    the id of a commit of main seven digits are enough.
    """


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
_tables = click.option(
    "--table", "tables", multiple=True, metavar="TABLE", help="Only this table; repeatable."
)


@command.command("log", short_help="Show the commits of the lake, newest first.")
@click.argument("ref", default="main")
@click.option("--table", default="", metavar="TABLE", help="Only commits about this table.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="Commits to show.")
@_json
def log(ref: str, table: str, limit: int, as_json: bool) -> None:
    """Show the commits of REF (default main), newest first: tables, partitions, run, person and reason."""
    from ml_assets.data.tables.history.log import log_of

    with Project.to_read() as project:
        commit = _at(project, ref)
        found = list(log_of(project.platform.lake, commit, table=table, limit=limit))
        if table and not found:
            _require_tables(project, [table], commit)
    if as_json:
        say(json.dumps([_commit_facts(one) for one in found], indent=1))
        return
    for one in found:
        say(f"{one.commit[:12]}  {one.at:%Y-%m-%d %H:%M:%S} UTC  {_in_words(one)}")
    if not found:
        say(f"no commit of {ref} is about {table}")


@command.command("diff", short_help="Show which partitions, rows and columns differ between two commits.")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@_tables
@click.option("--no-rows", is_flag=True, help="Compare manifests and profiles only; read no data file.")
@_json
@html_option
def diff(
    before: str, after: str, tables: tuple[str, ...], no_rows: bool, as_json: bool, html: Path | None
) -> None:
    """Compare the lake at A and at B, each a REF: partitions, rows, columns, and statistics of columns.

    Reads data files only of the partitions that differ.
    """
    from ml_assets.data.tables.history.diff import compare_lake
    from ml_assets.model.steps.difference_page import difference_of_lake

    with Project.to_read() as project:
        old, new = _at(project, before), _at(project, after)
        _require_tables(project, tables, old, new)
        found = compare_lake(
            project.platform.lake,
            old,
            new,
            primary_keys_of(project),
            tables=tables,
            read_rows=not no_rows,
        )
    if as_json:
        say(json.dumps(asdict(found), indent=1))
    else:
        show(difference_of_lake(found, f"{before} → {after}"), html)


@command.command("checkout", short_help="Write the partitions at a commit to a folder, as Parquet.")
@click.argument("ref")
@click.argument("folder", type=click.Path(path_type=Path))
@_tables
@click.option("--partitions", metavar="FIRST..LAST", help="Only these partitions: a key, or a range.")
@_json
def checkout(ref: str, folder: Path, tables: tuple[str, ...], partitions: str | None, as_json: bool) -> None:
    """Write the partitions at REF to the new folder FOLDER, read-only, with the paths that they have in the lake.

    For MODEL/VERSION: the window that the version was trained and evaluated on, unless --table names other tables.
    """
    from ml_assets.data.tables.history.checkout import write_out
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.model.release.standing import keys_of

    with Project.to_read() as project:
        reader = TableReader.at(project.platform.lake, _at(project, ref))
        window = _window(project, ref)
        _require_tables(project, tables, reader.commit_id)
        if window is not None and not tables:
            wanted = {window.table: list(keys_of(reader, window))}
        else:
            wanted = {table: reader.keys(table) for table in tables or reader.tables()}
        wanted = _only(wanted, partitions)
        with writing_to(folder):
            written = write_out(reader, wanted, folder)
    if as_json:
        say(json.dumps({**asdict(written), "folder": str(folder)}, indent=1))
        return
    for table, number in written.partitions.items():
        say(f"{table}: {counted(number, 'partition')}")
    say(
        f"wrote {counted(written.files, 'file')}, {written.size:,} bytes, at commit {written.commit[:12]} to {folder}"
    )


@command.command("blame", short_help="Show who and what made a partition, and its contents before.")
@click.argument("table")
@click.argument("partition")
@click.option("--ref", default="main", show_default=True, help="Branch, tag, commit or MODEL/VERSION.")
@_json
def blame(table: str, partition: str, ref: str, as_json: bool) -> None:
    """Show each content that PARTITION of TABLE had, newest first: commit, run, person, code, time and reason."""
    from ml_assets.data.tables.history.log import blame as blamed

    with Project.to_read() as project:
        found = blamed(project.platform.lake, table, partition, _at(project, ref))
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


@command.command("corrections", short_help="List the corrections of past partitions: when, and which rows.")
@click.argument("table")
@click.argument("partition", default="")
@_json
def corrections(table: str, partition: str, as_json: bool) -> None:
    """List the corrections of TABLE, or of one PARTITION: the moment since which the new rows are known, rows that
    came, went and changed, and the columns with other values.

    Only a dataset with `known_at: ingestion` keeps the rows from before a correction.
    """
    from ml_assets.data.tables.history.diff import corrections_of
    from ml_assets.data.tables.reader import TableReader

    with Project.to_read() as project:
        reader = TableReader.at(project.platform.lake)
        _require_tables(project, [table], "main")
        newest = partition or max(reader.keys(table))
        if reader.manifest(table, newest).final_from is None:
            raise Problem(
                f"{table} {newest} keeps no rows from before a correction: declare `known_at: ingestion` for it; "
                f"ml-assets data log --table {table} lists all commits"
            )
        keys = primary_keys_of(project).get(table, ())
        found = list(corrections_of(reader, project.platform.ledger, table, partition or None, keys))
    if as_json:
        say(json.dumps([{**asdict(one), "known_at": one.known_at.isoformat()} for one in found], indent=1))
        return
    for one in found:
        say(f"{one.key}  {one.known_at:%Y-%m-%d %H:%M:%S} UTC  {_correction_in_words(one)}")
    if not found:
        say(
            f"No partition of {table} was corrected."
            if not partition
            else f"{table} {partition} was not corrected."
        )


@command.command(
    "show", short_help="Show a partition: its verdict, its users, its columns, the days before it."
)
@click.argument("table")
@click.argument("partition", default="")
@_json
@html_option
def show_partition(table: str, partition: str, as_json: bool, html: Path | None) -> None:
    """Show PARTITION of TABLE on main, by default the newest one: verdict, users, columns, partitions before it.

    Users are feature tables that read it, trainings and versions whose weights saw its rows, and environments. --html
    adds pictures. --json prints the users alone.
    """
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.model.steps.partition_page import (
        newest_partition,
        partition_page,
        require_partition,
        users_of,
    )

    with Project.to_read() as project:
        key = partition or newest_partition(project.platform, table)
        if as_json:
            reader = TableReader.at(project.platform.lake)
            require_partition(project.platform, reader, table, key)
            say(json.dumps(asdict(users_of(project.platform, reader, table, key)), indent=1))
        else:
            show(partition_page(project.platform, table, key, draw=html is not None), html)


def primary_keys_of(project: Project) -> Mapping[str, Sequence[str]]:
    """Return table → columns that name a row, for the declared tables."""
    from ml_assets.components.dataset import Dataset
    from ml_assets.components.feature_table import FeatureTable

    return {
        f"{kind}/{one.spec.name}": one.spec.contract.primary_key
        for kind, components in (
            ("datasets", project.components(Dataset)),
            ("features", project.components(FeatureTable)),
        )
        for one in components
    }


def _at(project: Project, ref: str) -> str:
    """Return the commit that `ref` names: MODEL/VERSION, or the begin of the id of a commit of main; else `ref`."""
    window = _window(project, ref)
    if window is not None:
        return window.commit
    return _commit_beginning(project, ref) if _BEGIN_OF_ID.fullmatch(ref) else ref


def _commit_beginning(project: Project, begin: str) -> str:
    from resources.lake import RefNotFound

    lake = project.platform.lake
    try:
        return lake.resolve(begin)  # a branch may have such a name
    except RefNotFound:
        found = [one.id for one in lake.log("main", _EVERY) if one.id.startswith(begin)]
    if len(found) > 1:
        raise Problem(f"{len(found)} commits of main begin with {begin}: type more digits of the id")
    return found[0] if found else begin


def _window(project: Project, ref: str) -> "TrainedOn | None":
    """Return the window behind `MODEL/VERSION`; None for other refs."""
    from ml_assets.cli.registered import registered
    from ml_assets.model.steps.record import evaluation_of

    model, slash, number = ref.partition("/")
    if not slash:
        return None
    if not number.isdecimal():
        raise Problem(f"'{ref}' is not MODEL/VERSION: the version is a number, as in {model}/1")
    return evaluation_of(project.platform, registered(project, model, int(number))).trained_on


def _require_tables(project: Project, tables: Sequence[str], *refs: str) -> None:
    """Raise `Problem` for a table that none of `refs` has: a mistyped name must not look like an unchanged table."""
    from ml_assets.data.tables.reader import TableReader

    if not tables:
        return
    known = {one for ref in refs for one in TableReader.at(project.platform.lake, ref).tables()}
    shown = " or ".join(dict.fromkeys(ref[:_SHOWN_ID] for ref in refs))
    for table in tables:
        if table not in known:
            raise Problem(f"no table is named '{table}' at {shown}{did_you_mean(table, known)}")


def _only(wanted: Mapping[str, list[str]], partitions: str | None) -> dict[str, list[str]]:
    if partitions is None:
        return dict(wanted)
    first, dots, last = partitions.partition("..")
    found = {
        table: [key for key in keys if first <= key <= (last if dots else first)]
        for table, keys in wanted.items()
    }
    found = {table: keys for table, keys in found.items() if keys}
    if not found:
        raise Problem(f"no partition {partitions} in {', '.join(wanted) or 'any table'} at this commit")
    return found


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
