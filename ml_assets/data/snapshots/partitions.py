"""Partitions of a feature table as local files: what a snapshot is built from and evaluated on, one at a time.

Only the columns that are asked for leave the files. Not here: fetching the files (`tables.reader`), the rules by which
their rows are chosen (row_rules), the rows of a split (split_rows).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ml_assets.data.tables.reader import TableReader
from resources.platform import Platform

VALUES_AT_ONCE = 2**22
"""Values of neighbouring partitions that are read together: 32 MiB of numbers."""


@dataclass(frozen=True, kw_only=True)
class StoredFiles:
    """Files at a commit of the lake."""

    platform: Platform
    commit: str
    paths: tuple[str, ...]

    def fetched(self) -> tuple[Path, ...]:
        """Return local files of the same content. Raises the errors of `VersionedStore.fetch`."""
        local = self.platform.lake.fetch(self.commit, self.paths)
        return tuple(local[path] for path in self.paths)


@dataclass(frozen=True, kw_only=True)
class PartitionFiles:
    """Parquet files of one partition, or of neighbouring ones that are read together."""

    key: str
    rows: int
    files: tuple[Path, ...]
    """At least one, in the order of the partition's rows."""
    stored: StoredFiles | None = None
    """The same files in the lake. None: every worker sees `files`."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in a worker, which may be on another machine."""
        stored: StoredFiles | None = state["stored"]
        if stored is not None and not all(file.exists() for file in state["files"]):
            state = {**state, "files": stored.fetched()}
        vars(self).update(state)

    def scan(self, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """Return the rows in their order, with these columns alone; None: all."""
        rows = pl.scan_parquet(list(self.files), glob=False)
        return rows if columns is None else rows.select(columns)


def neighbours(rows: Mapping[str, int], columns: int, at_once: int = VALUES_AT_ONCE) -> list[list[str]]:
    """Divide partitions, key → rows in their order, into runs that have at most `at_once` values in `columns`.

    A partition with more values is alone. Each read costs some tenths of a millisecond for each column, so a year of
    small days would take longer to begin than to read.
    """
    most, runs, height = at_once // max(1, columns), list[list[str]](), 0
    for key, more in rows.items():
        height += more
        if runs and height <= most:
            runs[-1].append(key)
        else:
            runs.append([key])
            height = more
    return runs


def read_together(
    files: Mapping[str, tuple[Path, ...]], rows: Mapping[str, int], runs: Iterable[Sequence[str]]
) -> list[PartitionFiles]:
    """Return the partitions of each run (`neighbours`) as one. `files`, `rows`: key → its files, its number of rows."""
    return [
        PartitionFiles(
            key=run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}",
            rows=sum(rows[key] for key in run),
            files=tuple(file for key in run for file in files[key]),
        )
        for run in runs
    ]


def partitions_of(
    reader: TableReader, table: str, keys: Sequence[str], columns: int, platform: Platform | None = None
) -> list[PartitionFiles]:
    """Return the partitions `keys` of `table`, small neighbouring ones together, of which `columns` will be read.

    With a `platform`, workers on other machines can read them, too. Raises the errors of `TableReader.local_files`.
    """
    rows = reader.heights(table, keys)
    runs = neighbours(rows, columns)
    found = read_together(reader.local_files(table, keys), rows, runs)
    if platform is None:
        return found
    return [
        replace(
            one,
            stored=StoredFiles(
                platform=platform,
                commit=reader.commit_id,
                paths=tuple(file.path for file in reader.files(table, run)),
            ),
        )
        for one, run in zip(found, runs, strict=True)
    ]


def task_names(partitions: Sequence[PartitionFiles]) -> list[str]:
    """Return the name of each partition in errors of a pool. A table in no lake may have a key twice."""
    return [
        f"partition {one.key} ({number} of {len(partitions)})" for number, one in enumerate(partitions, 1)
    ]


def store_partitions(table: pl.DataFrame, column: str, folder: Path) -> list[PartitionFiles]:
    """Write `table` to Parquet files in `folder`, one for each run of rows with the same key in `column`.

    For tables that are not in a lake. Rows keep their order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = table[column].cast(pl.String)
    begins = np.flatnonzero((keys != keys.shift()).fill_null(True).to_numpy()).tolist()
    stored: list[PartitionFiles] = []
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], table.height], strict=True)):
        file = folder / f"{number:05d}.parquet"
        table.slice(begin, end - begin).write_parquet(file)
        stored.append(PartitionFiles(key=str(keys[begin]), rows=end - begin, files=(file,)))
    return stored
