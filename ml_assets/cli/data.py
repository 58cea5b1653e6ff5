"""`ml-assets data` and `env`: versions of the lake's tables, and environments beside main."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.project import Project
from ml_assets.cli.terminal import (
    Problem,
    SuggestingGroup,
    html_option,
    json_option,
    say,
    show,
    writing_to,
)
from resources.lake import RefNotFound
from resources.lake.environments import environments, read_environment
from resources.words import counted, did_you_mean, name_some

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
    from ml_assets.data.tables.history.diff import compare_lake
    from ml_assets.pages.difference_page import difference_of_lake

    with Project.to_read() as project:
        old, new = _at(project, before), _at(project, after)
        _require_tables(project, tables, old, new)
        keys = _primary_keys_of(project)
        found = compare_lake(project.platform.lake, old, new, keys, tables=tables, read_rows=not no_rows)
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
    from ml_assets.data.tables.history.checkout import write_out
    from ml_assets.model.release.standing import keys_of

    with Project.to_read() as project:
        reader = project.reader(_at(project, ref))
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


@data.command("blame", short_help="Show who and what made a partition, and its contents before.")
@click.argument("table")
@click.argument("partition")
@click.option("--ref", default="main", show_default=True, help="Branch, tag, commit or MODEL/VERSION.")
@json_option
def data_blame(table: str, partition: str, ref: str, as_json: bool) -> None:
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


@data.command("corrections", short_help="List the corrections of past partitions: when, and which rows.")
@click.argument("table")
@click.argument("partition", default="")
@json_option
def data_corrections(table: str, partition: str, as_json: bool) -> None:
    """List the corrections of TABLE, or of one PARTITION: the moment since which the new rows are known, rows that
    came, went and changed, and the columns with other values.

    Only a dataset with `known_at: ingestion` keeps the rows from before a correction.
    """
    from ml_assets.data.tables.history.diff import corrections_of

    with Project.to_read() as project:
        reader = project.reader()
        _require_tables(project, [table], "main")
        newest = partition or max(reader.keys(table))
        if reader.manifest(table, newest).final_from is None:
            raise Problem(
                f"{table} {newest} keeps no rows from before a correction: declare `known_at: ingestion` for it; "
                f"ml-assets data log --table {table} lists all commits"
            )
        keys = _primary_keys_of(project).get(table, ())
        found = list(corrections_of(reader, project.platform.ledger, table, partition or None, keys))
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

    with Project.to_read() as project:
        key = partition or page.newest_partition(project.platform, table)
        if as_json:
            reader = project.reader()
            page.require_partition(project.platform, reader, table, key)
            say(json.dumps(asdict(page.users_of(project.platform, reader, table, key)), indent=1))
        else:
            show(page.partition_page(project.platform, table, key, draw=html is not None), html)


def _primary_keys_of(project: Project) -> Mapping[str, Sequence[str]]:
    """Return table → columns that name a row, for the declared tables."""
    return {name: one.spec.contract.primary_key for name, one in project.table_components().items()}


def _at(project: Project, ref: str) -> str:
    """Return the commit that `ref` names: MODEL/VERSION, or the begin of the id of a commit of main; else `ref`."""
    window = _window(project, ref)
    if window is not None:
        return window.commit
    return _commit_beginning(project, ref) if _BEGIN_OF_ID.fullmatch(ref) else ref


def _commit_beginning(project: Project, begin: str) -> str:
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
    from ml_assets.model.steps.record import evaluation_of

    model, slash, number = ref.partition("/")
    if not slash:
        return None
    if not number.isdecimal():
        raise Problem(f"'{ref}' is not MODEL/VERSION: the version is a number, as in {model}/1")
    return evaluation_of(project.platform, project.registered(model, int(number))).trained_on


def _require_tables(project: Project, tables: Sequence[str], *refs: str) -> None:
    """Raise `Problem` for a table that none of `refs` has: a mistyped name must not look like an unchanged table."""
    if not tables:
        return
    known = {one for ref in refs for one in project.reader(ref).tables()}
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


@click.group("env", cls=SuggestingGroup)
def env() -> None:
    """Work in an environment: a branch of the lake in place of main, with a ledger, tracking and Dagster of its own.

    Every command works in the environment that ML_ASSETS_ENV names. These five always look at it from main.
    """


@env.command("create", short_help="Create an environment at main's head, without a copy of data.")
@click.argument("name")
def env_create(name: str) -> None:
    """Create environment NAME at main's head. No data is copied. NAME has small letters, digits and _."""
    from ml_assets.data.tables.environments.environment import create_environment

    project = Project.on_main()
    made = create_environment(project.platform, name, project.settings.author)
    say(f"Environment {name} begins at commit {made.origin[:12]} of main. No data was copied.")
    say(f"To work in it: export ML_ASSETS_ENV={name}      To work on main again: unset ML_ASSETS_ENV")


@env.command("list", short_help="List the environments of this home.")
@json_option
def env_list(as_json: bool) -> None:
    """List the environments of this home: author, time, changed partitions, conflicts with main."""
    from ml_assets.data.tables.environments.environment import changes_of

    project = Project.read_only(on_main=True)
    found = [changes_of(project.platform, one) for one in environments(project.settings.home)]
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
    from ml_assets.data.tables.environments import environment as environments
    from ml_assets.data.tables.history.diff import compare_lake
    from ml_assets.pages.difference_page import as_comment, environment_page
    from ml_assets.pages.version_difference import models_trained_in

    project = Project.read_only(on_main=True)
    main = project.platform
    environment = read_environment(project.settings.home, name)
    changes = environments.changes_of(main, environment)
    difference = compare_lake(
        main.whole_lake, environment.base, changes.head, _primary_keys_of(project), read_rows=not no_rows
    )
    models = models_trained_in(main, main.inside(name), project.pipelines())
    page = environment_page(changes, difference, models)
    if as_json:
        facts = [
            {"model": one.model, "decision": one.decision, "main": one.main, "metrics": one.metrics}
            for one in models
        ]
        say(json.dumps({**asdict(difference), "conflicts": changes.conflicts, "models": facts}, indent=1))
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
    from ml_assets.data.tables.environments.merge import merge_environment

    main = Project.on_main().platform
    merged = merge_environment(main, name, main.acting)
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
    from ml_assets.data.tables.environments.environment import drop_environment

    drop_environment(Project.on_main().platform, name)
    say(f"Environment {name} is gone.")
