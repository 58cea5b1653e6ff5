"""Versions of the lake's tables, as a person asks for them: by branch, commit, or the version of a model.

A ref is a branch (`main`), a tag, the id of a commit, or `MODEL/VERSION`: the commit behind that version's training
set. Of the id of a commit of main, seven digits are enough. Nothing here changes the lake.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_assets.context.errors import NotFound
from ml_assets.context.project import Project
from ml_assets.context.versions import registered_version
from ml_assets.data.tables.history.diff import Correction, LakeDifference, compare_lake, corrections_of
from ml_assets.data.tables.history.log import PartitionContent, TableCommit, blame, log_of
from ml_assets.data.tables.reader import WrittenOut, write_out
from ml_assets.model.release.standing import keys_of
from ml_assets.model.steps.record import evaluation_of
from resources.lake import RefNotFound
from resources.ledger import TrainedOn
from resources.words import did_you_mean

_BEGIN_OF_ID = re.compile(r"[0-9a-f]{7,63}")
_EVERY = 1 << 31
"""Commits of a whole history."""
_SHOWN_ID = 12
"""Characters of the id of a commit."""


@dataclass(frozen=True, kw_only=True)
class CommitContent:
    """Partitions that a commit wrote into one table."""

    rows: int | None
    """None, as is the next, for a commit that names no partitions, such as the merge of an environment."""
    bytes: int | None
    """Bytes of their data files."""
    schema_hash: str
    """SHA-256 of names and types of the columns of the newest one; empty if the commit wrote or names none."""


@dataclass(frozen=True)
class Data:
    """Tables of the lake through time."""

    project: Project

    def log(self, ref: str = "main", *, table: str = "", limit: int = 20) -> list[TableCommit]:
        """Return the newest `limit` commits of `ref`, newest first; only those about `table`, if it is given.

        Raises `NotFound` for a table that `ref` lacks, and `RefNotFound`.
        """
        commit = self.commit(ref)
        found = list(log_of(self.project.platform.lake, commit, table=table, limit=limit))
        if table and not found:
            self._require_tables([table], commit)
        return found

    def content(self, commit: TableCommit) -> "CommitContent":
        """Return rows, bytes and columns of the partitions that a commit wrote, from their manifests alone."""
        if not commit.table:
            return CommitContent(rows=None, bytes=None, schema_hash="")
        reader = self.project.reader(commit.commit)
        there = reader.digests(commit.table)
        written = [*reader.manifests(commit.table, [key for key in commit.keys if key in there]).values()]
        return CommitContent(
            rows=sum(one.rows for one in written),
            bytes=sum(one.size for one in written),
            schema_hash=written[-1].schema_hash if written else "",
        )

    def diff(
        self, before: str, after: str, *, tables: Sequence[str] = (), read_rows: bool = True
    ) -> LakeDifference:
        """Return partitions, rows, columns and statistics that differ between two refs; only of `tables`, if given.

        Data files are read only of partitions that differ, and not without `read_rows`. Raises `NotFound` and
        `RefNotFound`.
        """
        old, new = self.commit(before), self.commit(after)
        self._require_tables(tables, old, new)
        lake, keys = self.project.platform.lake, self.primary_keys()
        return compare_lake(lake, old, new, keys, tables=tables, read_rows=read_rows)

    def checkout(
        self, ref: str, folder: str | Path, *, tables: Sequence[str] = (), partitions: str | None = None
    ) -> WrittenOut:
        """Write the partitions at `ref` to the new folder `folder`, read-only, with the paths that they have in the
        lake.

        Without `tables`: of `MODEL/VERSION` the window that the version was trained and evaluated on, of other refs all
        tables. `partitions` is a key or a range `FIRST..LAST`. Raises `NotFound`, `RefNotFound` and `FolderTaken`.
        """
        reader = self.project.reader(self.commit(ref))
        window = self._window(ref)
        self._require_tables(tables, reader.commit_id)
        if window is not None and not tables:
            wanted = {window.table: list(keys_of(reader, window))}
        else:
            wanted = {table: reader.keys(table) for table in tables or reader.tables()}
        return write_out(reader, _only(wanted, partitions), Path(folder))

    def blame(self, table: str, partition: str, *, ref: str = "main") -> list[PartitionContent]:
        """Return each content that a partition had, newest first: commit, run, person, code, time and reason.

        Raises `PartitionMissing` and `RefNotFound`.
        """
        return blame(self.project.platform.lake, table, partition, self.commit(ref))

    def corrections(self, table: str, partition: str = "") -> list[Correction]:
        """Return the corrections of a table, or of one partition: since when, and which rows and columns.

        Raises `NotFound` for a table without corrections: only `known_at: ingestion` keeps the rows from before.
        """
        reader = self.project.reader()
        self._require_tables([table], "main")
        newest = partition or max(reader.keys(table))
        if reader.manifest(table, newest).final_from is None:
            raise NotFound(
                f"{table} {newest} keeps no rows from before a correction: declare `known_at: ingestion` for it; "
                f"ml-assets data log --table {table} lists all commits"
            )
        keys = self.primary_keys().get(table, ())
        return list(corrections_of(reader, self.project.platform.ledger, table, partition or None, keys))

    def primary_keys(self) -> Mapping[str, Sequence[str]]:
        """Return table → columns that name a row, for the declared tables."""
        declared = self.project.declared.table_components()
        return {name: one.spec.contract.primary_key for name, one in declared.items()}

    def commit(self, ref: str) -> str:
        """Return the commit that a ref names, or a branch or tag as it is. Raises `NotFound` for `MODEL/VERSION`."""
        window = self._window(ref)
        if window is not None:
            return window.commit
        return self._commit_beginning(ref) if _BEGIN_OF_ID.fullmatch(ref) else ref

    def _commit_beginning(self, begin: str) -> str:
        lake = self.project.platform.lake
        try:
            return lake.resolve(begin)  # a branch may have such a name
        except RefNotFound:
            found = [one.id for one in lake.log("main", _EVERY) if one.id.startswith(begin)]
        if len(found) > 1:
            raise NotFound(f"{len(found)} commits of main begin with {begin}: type more digits of the id")
        return found[0] if found else begin

    def _window(self, ref: str) -> TrainedOn | None:
        """Return the window behind `MODEL/VERSION`; None for other refs."""
        model, slash, number = ref.partition("/")
        if not slash:
            return None
        if not number.isdecimal():
            raise NotFound(f"'{ref}' is not MODEL/VERSION: the version is a number, as in {model}/1")
        version = registered_version(self.project, model, int(number))
        return evaluation_of(self.project.platform, version).trained_on

    def _require_tables(self, tables: Sequence[str], *refs: str) -> None:
        """Raise `NotFound` for a table that no ref has: a mistyped name must not look like an unchanged table."""
        if not tables:
            return
        known = {one for ref in refs for one in self.project.reader(ref).tables()}
        shown = " or ".join(dict.fromkeys(ref[:_SHOWN_ID] for ref in refs))
        for table in tables:
            if table not in known:
                raise NotFound(f"no table is named '{table}' at {shown}{did_you_mean(table, known)}")


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
        raise NotFound(f"no partition {partitions} in {', '.join(wanted) or 'any table'} at this commit")
    return found
