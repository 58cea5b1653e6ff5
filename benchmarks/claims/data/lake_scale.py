"""The embedded lake with 1 million objects and 100,000 commits: resolve, list, merge, and a garbage collection.

The repository is built on its own tables and files: 1,000 tables of 500 partitions (a data file and a manifest each),
and commits that each changed one of them. The measured calls run in a process that opened the lake a moment ago.
Garbage collection is measured on a quarter of that, too: linear means that four times the size takes four times the
time.
"""

import gc
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks._report import Result, emit, parse_args
from resources.lake import refs
from resources.lake.garbage import Garbage, GarbageRules, LocalSweep
from resources.lake.local import LocalStore
from resources.lake.refs import SQLiteDatabase
from resources.lake.store import ObjectStat
from resources.lake.tree import Trees

PARTITIONS = 500
"""Partitions of a table, with two objects each."""
_ROUNDS = 21
_DISTINCT_TREES = 1000
"""Trees among which the commits of the history alternate; each differs from the one before in two objects."""


def object_at(path: str, version: int) -> ObjectStat:
    """Return an object with a content of 32 bytes, which is named by its digest."""
    return ObjectStat(path, hashlib.sha256(_content(path, version)).hexdigest(), 32)


def _content(path: str, version: int) -> bytes:
    return hashlib.sha256(f"{path} {version}".encode()).digest()


def paths_of(table: int, partition: int) -> tuple[str, str]:
    """Return the paths of a partition's data file and manifest."""
    day = f"{2000 + partition // 365}-{partition % 365:03}"
    return f"datasets/t{table:04}/date={day}/part-0.parquet", f"_manifests/datasets/t{table:04}/{day}.json"


def write_file(root: Path, path: str, version: int) -> None:
    """Write a content as the store does, without a sync."""
    body = _content(path, version)
    name = hashlib.sha256(body).hexdigest()
    (root / "objects" / name[:2] / name).write_bytes(body)


def build(root: Path, tables: int, commits: int) -> None:
    """Build the repository."""
    LocalStore(root)
    for number in range(256):
        (root / "objects" / f"{number:02x}").mkdir(exist_ok=True)
    database = SQLiteDatabase(root / "refs.db", refs.SCHEMA, 60.0)
    trees = Trees(
        load=lambda id_: refs.load_range(database.connection, id_),
        save=lambda id_, body: refs.save_range(database.connection, id_, body),
    )
    every = [paths_of(table, partition) for table in range(tables) for partition in range(PARTITIONS)]
    for both in every:
        for path in both:
            write_file(root, path, 0)
    with database.writing() as db:
        head = refs.branch_head(db, "main") or ""
        tree = trees.apply((), {path: object_at(path, 0) for both in every for path in both})
        ids = [trees.write(tree)]
        for number in range(_DISTINCT_TREES):
            changed = every[(number * 7919) % len(every)]
            for path in changed:
                write_file(root, path, number + 1)
            tree = trees.apply(tree, {path: object_at(path, number + 1) for path in changed})
            ids.append(trees.write(tree))
        for number in range(commits):
            head = refs.add_commit(db, ids[number % len(ids)], (head,), f"commit {number}", {})
        head = refs.add_commit(db, ids[-1], (head,), "last", {})
        refs.set_branch(db, "main", head)


def median(work: Callable[[int], object]) -> float:
    """Return the median milliseconds of a call; the first one, which fills caches, is one of them."""
    taken: list[float] = []
    for number in range(_ROUNDS):
        gc.collect()
        start = time.perf_counter()
        work(number)
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def merge_one(root: Path) -> float:
    """Return the median milliseconds of the merge of a branch with one changed partition."""
    store = LocalStore(root)

    def prepared(number: int) -> str:
        branch = f"work-{number}"
        store.create_branch(branch, "main")
        for path in paths_of(number, number):
            store.put(branch, path, f"new {number}".encode())
        store.commit(branch, "write", {})
        return branch

    taken: list[float] = []
    for number in range(_ROUNDS):
        branch = prepared(number)
        gc.collect()
        start = time.perf_counter()
        store.merge(branch, "main", "merge", {})
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def collect(root: Path) -> tuple[float, Garbage]:
    """Return the CPU seconds of two collections, and what the second deleted.

    The first keeps all commits, the second the head of main alone. CPU time, because other work on the machine would
    disturb the ratio.
    """
    sweep = LocalSweep(root, patience=60.0, young=-1.0)
    rules = GarbageRules(since=datetime.now(UTC) - timedelta(days=1))
    start = time.process_time()
    kept = sweep.collect(rules)
    if kept.objects:
        raise SystemExit(f"A collection deleted {kept.objects} objects of commits that are a minute old.")
    found = LocalSweep(root, patience=60.0, young=-1.0).collect(
        GarbageRules(since=datetime.now(UTC) + timedelta(days=1))
    )
    return time.process_time() - start, found


def main() -> int:
    arguments = parse_args(__doc__)
    tables, commits = (100, 10_000) if arguments.quick else (1000, 100_000)
    with tempfile.TemporaryDirectory() as temporary:
        small, root = Path(temporary) / "small", Path(temporary) / "lake"
        build(small, tables // 4, commits // 4)
        quarter, _ = collect(small)
        build(root, tables, commits)
        resolve = median(lambda _: LocalStore(root).resolve("main"))
        store = LocalStore(root)
        listed = median(lambda number: store.list("main", f"datasets/t{number:04}/"))
        merged = merge_one(root)
        whole, garbage = collect(root)
    size = f"{2 * tables * PARTITIONS:,} objects, {commits:,} commits"
    ratio = whole / (4 * quarter)
    return emit(
        [
            Result(
                name=f"{size}: open the lake and resolve main",
                value=resolve,
                unit="ms",
                bar="≤ 50 ms",
                ok=resolve <= 50,
            ),
            Result(name="list a table of 500 files", value=listed, unit="ms", bar="≤ 50 ms", ok=listed <= 50),
            Result(
                name="merge a branch with one changed partition",
                value=merged,
                unit="ms",
                bar="≤ 50 ms",
                ok=merged <= 50,
            ),
            Result(
                name=f"garbage collection twice: all kept, then {garbage.objects:,} objects deleted",
                value=whole,
                unit="CPU s",
                peers={"four times a quarter of the lake": 4 * quarter},
                ratio=ratio,
                bar="≤ 1.5 × four times a quarter",
                ok=ratio <= 1.5,
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
