"""The embedded lake with 1 million objects and 100,000 commits: resolve, list, merge, and a garbage collection.

The repository is built on its own tables and files: 1,000 tables of 500 partitions (a data file and a manifest each),
and commits that each changed one of them. The measured calls run in a process that opened the lake a moment ago, in
turn with their peers: the same call in a lake of a quarter, which shows the growth, and the least that the work needs.
For a resolve that is one row of a new sqlite3 connection, for a list a walk over 500 partitions as plain files, for a
merge a durable transaction of sqlite3 with one row. Garbage collection is measured on a quarter, too: linear means that
four times the size takes four times the time.
"""

import gc
import hashlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks._report import Result, emit, parse_args, ratio_of
from resources.lake import ObjectStat, refs
from resources.lake.garbage import Garbage, GarbageRules, LocalSweep
from resources.lake.local import LocalStore
from resources.lake.refs import SQLiteDatabase
from resources.lake.tree import Trees

PARTITIONS = 500
"""Partitions of a table, with two objects each."""
_ROUNDS = 21
_GROWTH = {"resolve": 2.0, "list": 2.0, "merge": 4.0}
"""Most time of a call, as a multiple of the same call in a lake of a quarter. A merge copies the pages that list the
ranges of the tree, so it may grow with the lake, but no faster."""
_LEAST = {"resolve": 20.0, "list": 2.0, "merge": 100.0}
"""Most time of a call, as a multiple of the least that the work needs. A resolve opens the lake, which also looks for
what killed writers left; a merge compares three trees and writes what differs, and disks sync in 0.5 to 30 ms."""
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


Way = Callable[[int], Callable[[], object]]
"""Number of a round → the work to time; what comes before is not timed."""


def in_turn(ways: Mapping[str, Way]) -> dict[str, list[float]]:
    """Return the milliseconds of each way in each round; the first round, which fills caches, is one of them."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_ROUNDS):
        for name, way in ways.items():
            work = way(number)
            gc.collect()
            start = time.perf_counter()
            work()
            taken[name].append((time.perf_counter() - start) * 1e3)
    return taken


def resolving(root: Path) -> Way:
    """Open the lake and resolve main."""
    return lambda _: lambda: LocalStore(root).resolve("main")


def listing(root: Path, tables: int) -> Way:
    """List one of the tables."""
    store = LocalStore(root)
    return lambda number: lambda: store.list("main", f"datasets/t{number % tables:04}/")


def merging(root: Path, tables: int) -> Way:
    """Merge a branch with one changed partition."""
    store = LocalStore(root)

    def prepared(number: int) -> Callable[[], object]:
        branch = f"work-{number}"
        store.create_branch(branch, "main")
        for path in paths_of(number % tables, number):
            store.put(branch, path, f"new {number}".encode())
        store.commit(branch, "write", {})
        return lambda: store.merge(branch, "main", "merge", {})

    return prepared


def by_hand(folder: Path) -> dict[str, Way]:
    """Return the least that each call needs, by the standard library."""
    files, database = folder / "files", folder / "plain.db"
    for partition in range(PARTITIONS):
        file = files / paths_of(0, partition)[0]
        file.parent.mkdir(parents=True)
        file.write_bytes(_content("plain", partition))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE heads (branch TEXT PRIMARY KEY, head TEXT)")
        connection.execute("INSERT INTO heads VALUES ('main', 'a head')")
        connection.commit()
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("PRAGMA synchronous=FULL")

    def resolve() -> None:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("SELECT head FROM heads WHERE branch = 'main'").fetchone()

    def walk() -> None:
        if len([file.stat() for file in files.rglob("*.parquet")]) != PARTITIONS:
            raise SystemExit("a plain file is missing")

    return {
        "resolve": lambda _: resolve,
        "list": lambda _: walk,
        "merge": lambda number: (
            lambda: writer.execute("UPDATE heads SET head = ? WHERE branch = 'main'", (f"head {number}",))
        ),
    }


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


def claim(call: str, name: str, taken: Mapping[str, list[float]]) -> Result:
    """Return the claim about one call."""
    grown, times = ratio_of(taken["ours"], taken["quarter"]), ratio_of(taken["ours"], taken["by hand"])
    return Result(
        name=f"{name} ({grown.spread} a quarter's, {times.spread} by hand)",
        value=statistics.median(taken["ours"]),
        unit="ms",
        peers={
            "a quarter of the lake": statistics.median(taken["quarter"]),
            "by hand": statistics.median(taken["by hand"]),
        },
        ratio=grown.median,
        bar=f"≤ {_GROWTH[call]:g} × a quarter of the lake, ≤ {_LEAST[call]:g} × by hand",
        ok=grown.median <= _GROWTH[call] and times.median <= _LEAST[call],
    )


def main() -> int:
    arguments = parse_args(__doc__)
    tables, commits = (100, 10_000) if arguments.quick else (1000, 100_000)
    fewer = tables // 4
    with tempfile.TemporaryDirectory() as temporary:
        small, root, plain = (Path(temporary) / name for name in ("small", "lake", "plain"))
        build(small, fewer, commits // 4)
        build(root, tables, commits)
        hand = by_hand(plain)
        resolved, listed, merged = (
            in_turn({"ours": ours, "quarter": quarter, "by hand": hand[call]})
            for call, ours, quarter in (
                ("resolve", resolving(root), resolving(small)),
                ("list", listing(root, tables), listing(small, fewer)),
                ("merge", merging(root, tables), merging(small, fewer)),
            )
        )
        part, _ = collect(small)
        whole, garbage = collect(root)
    size = f"{2 * tables * PARTITIONS:,} objects, {commits:,} commits"
    ratio = whole / (4 * part)
    return emit(
        [
            claim("resolve", f"{size}: open the lake and resolve main", resolved),
            claim("list", "list a table of 500 files", listed),
            claim("merge", "merge a branch with one changed partition", merged),
            Result(
                name=f"garbage collection twice: all kept, then {garbage.objects:,} objects deleted",
                value=whole,
                unit="CPU s",
                peers={"four times a quarter of the lake": 4 * part},
                ratio=ratio,
                bar="≤ 1.5 × four times a quarter",
                ok=ratio <= 1.5,
            ),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
