"""A year of daily partitions into the embedded lake and out again, beside plain files on the same disk.

The peers have no versions: a copy of the files with shutil, with each file and folder synced, and polars on the copied
folder. Set TMPDIR to measure another disk.
"""

import datetime
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._report import Result, emit, interleave, parse_args
from resources.lake import VersionedStore
from resources.lake.local import LocalStore

ROWS = 900
"""Rows of a day, about as many as there are flights: 28 kB of Parquet."""


def write_days(folder: Path, days: int) -> list[Path]:
    """Write one Parquet file and one manifest per day, as tables/ does; return their relative paths."""
    chance = np.random.default_rng(0)
    paths: list[Path] = []
    for number in range(days):
        day = datetime.date(2013, 1, 1) + datetime.timedelta(number)
        data = Path(f"datasets/flights/date={day}/part-0.parquet")
        manifest = Path(f"_manifests/datasets/flights/{day}.json")
        for path in (data, manifest):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        columns = {f"x{column}": chance.integers(0, 500, ROWS) for column in range(19)}
        pl.DataFrame(columns).write_parquet(folder / data, row_group_size=122_880)
        (folder / manifest).write_text(json.dumps({"day": str(day), "profile": "x" * 2_000}))
        paths += [data, manifest]
    return paths


def publish_to_lake(source: Path, paths: Sequence[Path], root: Path) -> str:
    """Branch, put every file, commit, merge once; return the id of the merge commit."""
    store = LocalStore(root)
    store.create_branch("audit-flights", "main")
    for path in paths:
        store.put("audit-flights", str(path), source / path)
    store.commit("audit-flights", "write", {})
    return store.merge("audit-flights", "main", "publish", {"audit": "passed"})


def copy_plainly(source: Path, paths: Sequence[Path], root: Path) -> None:
    """Copy the same files, equally durable, without versions."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, root / path)
        sync(root / path)
    for folder in {
        folder for path in paths for folder in (root / path).parents if folder.is_relative_to(root)
    }:
        sync(folder)


def sync(path: Path) -> None:
    """Sync a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def read_from_lake(store: VersionedStore, commit_id: str) -> pl.DataFrame:
    """Read all rows of all days at a commit."""
    entries = store.list(commit_id, "datasets/flights/")
    files = store.fetch(commit_id, [entry.path for entry in entries])
    return pl.scan_parquet(list(files.values())).collect()


def read_plainly(folder: Path) -> pl.DataFrame:
    """Read all rows of all days of a folder."""
    return pl.scan_parquet(sorted(folder.glob("datasets/flights/*/*.parquet"))).collect()


def main() -> int:
    arguments = parse_args(__doc__)
    days, rounds = (60, 2) if arguments.quick else (365, 5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths = write_days(folder / "source", days)

        def fresh() -> Path:
            return Path(tempfile.mkdtemp(dir=folder))

        publishing = interleave(
            {
                "lake": lambda: publish_to_lake(folder / "source", paths, fresh()),
                "copy": lambda: copy_plainly(folder / "source", paths, fresh()),
            },
            rounds,
        )
        commit_id = publish_to_lake(folder / "source", paths, folder / "lake")
        copy_plainly(folder / "source", paths, folder / "copy")
        store = LocalStore(folder / "lake")
        if not read_from_lake(store, commit_id).equals(read_plainly(folder / "copy")):
            raise SystemExit("The lake returned other rows than those written.")
        reading = interleave(
            {
                "lake": lambda: read_from_lake(store, commit_id),
                "copy": lambda: read_plainly(folder / "copy"),
            },
            rounds,
        )
    write, read = publishing["lake"].median, reading["lake"].median
    return emit(
        [
            Result(
                name=f"lake: publish {days} daily partitions with one merge",
                value=write,
                unit="s",
                peers={"shutil copy + fsync, no versions": publishing["copy"].median},
                ratio=write / publishing["copy"].median,
                bar="≤ 3 × copy",
                ok=write <= 3 * publishing["copy"].median,
            ),
            Result(
                name=f"lake: read {days} daily partitions at a commit, warm",
                value=read,
                unit="s",
                peers={"polars on plain files": reading["copy"].median},
                ratio=read / reading["copy"].median,
                bar="≤ 2 × polars on plain files",
                ok=read <= 2 * reading["copy"].median,
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
