"""A year of daily partitions into lakeFS on S3 and out again, beside peers with the same bytes there.

Runs only by name (`make bench ARGS=lake_servers`). It starts S3, PostgreSQL and lakeFS as the tests do, or uses those
of the folder in SERVERS_STATE. The peers run in their own environment, which the first run makes, on the same servers:
dvc with an S3 remote, deltalake on S3, lakefs-spec on the same lakeFS. They do the closest equivalent: dvc and
lakefs-spec move the same files; deltalake rewrites their rows into one table.
"""

import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import polars as pl

from benchmarks._peers import SCRIPTS, peers_python
from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.data.lake import publish_to_lake, read_from_lake, write_days
from deployment.testbed.servers import Servers
from deployment.testbed.servers.servers_record import ServersRecord, storage_variables
from resources.lake.lakefs import LakeFSStore
from resources.lake.lakefs_api import LakeFSApi
from resources.lake.lakefs_setup import set_up
from resources.threads import side_by_side

PEERS = (
    "dvc[s3]==3.67.1",
    "deltalake==1.6.6",
    "lakefs-spec==0.15.1",
    "lakefs-sdk>=1.50,<1.87",
    "polars==2.1.0",
)
Answer = TypeVar("Answer")
STORAGE = "s3://lake/benchmarks"
AUDITED = {"audit": "passed"}


@contextmanager
def servers(folder: Path) -> Iterator[ServersRecord]:
    """Yield running servers, or new ones that end with the benchmark."""
    if named := os.environ.get("SERVERS_STATE"):
        yield Servers(Path(named), ("s3", "postgresql", "lakefs")).up()
        return
    group = Servers(folder / "servers", ("s3", "postgresql", "lakefs"))
    try:
        yield group.up()
    finally:
        group.down()


def open_repository(record: ServersRecord, name: str, cache: Path) -> LakeFSStore:
    """Return the repository, set up as by `ml-assets lake init`."""
    api = LakeFSApi(record.url("lakefs"), name, record.lakefs_key, record.lakefs_secret)
    set_up(api, STORAGE, cache)
    return LakeFSStore(api, cache)


def publish(store: LakeFSStore, source: Path, paths: Sequence[Path]) -> str:
    """Branch, put every file, commit, merge once, as `tables.publish` does after its audit."""
    branch = f"audit-{uuid.uuid4().hex[:8]}"
    store.create_branch(branch, "main")
    side_by_side(lambda path: store.put(branch, str(path), source / path), paths)
    store.commit(branch, "write", AUDITED)
    return store.merge(branch, "main", "publish", AUDITED)


def timed(work: Callable[..., Answer], *arguments: object) -> tuple[float, Answer]:
    """Return the wall seconds and the result of `work`."""
    began = time.perf_counter()
    answer = work(*arguments)
    return time.perf_counter() - began, answer


def measure_peers(record: ServersRecord, source: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Return each peer → seconds of `publish`, `cold` and `warm`."""
    python = peers_python("lake-peers", PEERS)
    environment = (
        os.environ
        | storage_variables(record)
        | {
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "S3_URL": record.url("s3"),
            "LAKEFS_URL": record.url("lakefs"),
            "LAKEFS_KEY": record.lakefs_key,
            "LAKEFS_SECRET": record.lakefs_secret,
            "PYTHONPATH": "",
            # Their own telemetry has no place in a measurement.
            "DVC_NO_ANALYTICS": "1",
        }
    )
    found: dict[str, dict[str, float]] = {}
    for peer in ("dvc", "deltalake", "lakefs-spec"):
        work = folder / peer
        work.mkdir()
        script = SCRIPTS / "bare_lake_peers.py"
        done = subprocess.run(
            [python, script, peer, source, work],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        found[peer] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_ours(
    record: ServersRecord, source: Path, paths: Sequence[Path], folder: Path, rounds: int
) -> Mapping[str, float]:
    """Return the best of some rounds: publishing to a new repository, reading with an empty cache, reading again."""
    seconds: dict[str, list[float]] = {"publish": [], "embedded": [], "cold": [], "warm": []}
    expected = pl.scan_parquet(sorted(source.glob("datasets/flights/*/*.parquet"))).collect()
    for number in range(rounds):
        name = f"bench-{uuid.uuid4().hex[:12]}"
        store = open_repository(record, name, folder / f"writer-{number}")
        taken, commit_id = timed(publish, store, source, paths)
        seconds["publish"].append(taken)
        seconds["embedded"].append(timed(publish_to_lake, source, paths, folder / f"local-{number}")[0])
        for way in ("cold", "warm"):
            # Like another process: only the cache's folder remembers anything.
            reader = open_repository(record, name, folder / f"reader-{number}")
            taken, rows = timed(read_from_lake, reader, commit_id)
            seconds[way].append(taken)
            if not rows.equals(expected):
                raise SystemExit("lakeFS returned other rows than those written.")
    return {way: min(taken) for way, taken in seconds.items()}


def main() -> int:
    arguments = parse_args(__doc__)
    days, rounds = (60, 1) if arguments.quick else (365, 3)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths = write_days(folder / "source", days)
        with servers(folder) as record:
            ours = measure_ours(record, folder / "source", paths, folder, rounds)
            peers = measure_peers(record, folder / "source", folder)

    def claim(way: str, what: str, peer: str, most: float, **also: float) -> Result:
        measured = {f"{name} ({way})": one[way] for name, one in peers.items()} | also
        ratio = ours[way] / peers[peer][way]
        return Result(
            name=f"lakeFS on S3: {what}",
            value=ours[way],
            unit="s",
            peers=measured,
            ratio=ratio,
            bar=f"≤ {most:g} × {peer}",
            ok=ratio <= most,
        )

    return emit(
        [
            claim(
                "publish",
                f"publish {days} daily partitions with one merge",
                "dvc",
                0.5,
                LocalStore=ours["embedded"],
            ),
            claim("cold", f"read {days} daily partitions at a commit, empty cache", "dvc", 0.5),
            claim("warm", f"read {days} daily partitions at a commit again", "deltalake", 1.0),
        ],
        json=arguments.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
