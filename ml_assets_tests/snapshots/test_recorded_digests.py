"""Snapshots are the bytes that the builder wrote while it held all rows in memory.

`recorded_digests.json` was written by that builder, at commit 69c86b03: for each seed of `random_tables` the digest of
the snapshot and of its files, or the refusal. It was recorded anew when quantiles and the label's level joined the
fitted state, and when means and scales joined the manifest; shards, index files and all other values were compared with
the earlier ones, and were equal.
"""

import hashlib
import json
import random
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ml_assets.data.snapshots import gather
from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import PartitionFiles, neighbours, read_together, store_partitions
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import InputColumns
from ml_assets.data.snapshots.split_reader import SnapshotError, SourceValues
from ml_assets_tests.snapshots.deadly_pool import DeadlyPool
from ml_assets_tests.snapshots.random_tables import KINDS, random_table
from resources.artifacts import FolderArtifacts
from resources.pool import HERE, PartitionPool
from resources.pool.exchange import Exchange, OpenExchange, folder_exchange, store_exchange
from resources.pool.processes import ProcessPool

RECORDED: dict[str, str] = json.loads(Path(__file__).with_name("recorded_digests.json").read_text())


def read_in_runs(partitions: list[PartitionFiles], values: int) -> list[PartitionFiles]:
    """Return runs of at most `values` rows: a column has one value of each."""
    files = {str(number): one.files for number, one in enumerate(partitions)}
    rows = {str(number): one.rows for number, one in enumerate(partitions)}
    return read_together(files, rows, neighbours(rows, 1, values))


def outcome(
    seed: int,
    folder: Path,
    values: int | None = None,
    pool: PartitionPool = HERE,
    here: PartitionPool | None = None,
    exchange: OpenExchange = folder_exchange,
) -> str:
    one = random_table(seed)
    partitions = store_partitions(one.frame, one.spec.partition, folder / "table")
    if values is not None:
        partitions = read_in_runs(partitions, values)
    inputs = InputColumns(numeric=one.numeric, categorical=one.categorical, min_count=one.min_count)
    into = folder / "snapshots"
    try:
        chosen = choose_rows(partitions, one.split, one.spec, inputs, into=into, pool=pool, exchange=exchange)
    except SnapshotError as error:
        return f"{type(error).__name__}: {error}"
    snapshot = build_snapshot(
        chosen,
        source=SourceValues(table="features/random"),
        into=into,
        shard_bytes=one.shard_bytes,
        pool=pool,
        here=here or pool,
        exchange=exchange,
    )
    assert [path.name for path in into.iterdir()] == [snapshot.folder.name]
    files = sorted(f"{path.name} {_sha256(path.read_bytes())}" for path in snapshot.folder.iterdir())
    return f"{snapshot.digest[:16]} {_sha256(chr(10).join(files).encode())[:16]}"


def seeds_of(kind: str) -> list[int]:
    return [int(seed) for seed in RECORDED if KINDS[int(seed) % len(KINDS)] == kind]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("values", [None, 100, 10**6], ids=["alone", "in runs", "all at once"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_is_that_of_the_builder_in_memory(kind: str, values: int | None, tmp_path: Path) -> None:
    """Whatever partitions are read together."""
    seeds = seeds_of(kind)
    assert len(seeds) == 10
    found = {str(seed): outcome(seed, tmp_path / str(seed), values) for seed in seeds}
    assert found == {seed: RECORDED[seed] for seed in found}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workers", "way"), [(1, "folder"), (2, "folder"), (4, "folder"), (2, "store")], ids=str
)
def test_workers_and_kills_change_no_file(workers: int, way: str, tmp_path: Path) -> None:
    """Also not a refusal. Workers stay from table to table; a few are killed in the middle of a task, or after it.

    By way of the artifacts' storage, workers see no file of the caller, as on other machines.
    """
    draw = random.Random(f"{workers} {way}")

    def store(_: Path) -> AbstractContextManager[Exchange]:
        return store_exchange(FolderArtifacts(tmp_path / "store"), tmp_path / "cache")

    seeds = [seed for kind in KINDS for seed in draw.sample(seeds_of(kind), 2)]
    with ProcessPool(workers, 0).kept() as pool:
        for seed in seeds:
            marks = tmp_path / f"{seed}-marks"
            marks.mkdir()
            for _ in range(draw.randrange(3)):
                (marks / f"{draw.choice([0.0, 0.01, 9.0]) + draw.random() / 1000}").touch()
            deadly = DeadlyPool(pool, marks)
            exchange = store if way == "store" else folder_exchange
            found = outcome(seed, tmp_path / str(seed), pool=deadly, exchange=exchange)
            assert found == RECORDED[str(seed)]
            assert not list(marks.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_shards_written_in_runs_are_the_same_files(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a snapshot of thousands of shards are."""
    monkeypatch.setattr(gather, "MOST_ALONE", 2)
    monkeypatch.setattr(gather, "RUN", 3)
    monkeypatch.setattr(gather, "_AT_ONCE", 2_000)
    for seed in seeds_of(kind)[:4]:
        assert outcome(seed, tmp_path / str(seed)) == RECORDED[str(seed)]
