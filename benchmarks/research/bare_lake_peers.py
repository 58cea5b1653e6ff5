"""Seconds of dvc, deltalake and lakefs-spec for a year of partitions. `lake_servers.py` runs it in their environment.

`bare_lake_peers.py PEER SOURCE WORK` prints one JSON object: seconds to publish all files of SOURCE as one version, to
read their rows with nothing stored locally, and to read them again.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import polars as pl

NAME = f"bench-{uuid.uuid4().hex[:12]}"


def timed(work: Callable[[], object]) -> float:
    """Return the wall seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def read_folder(folder: Path) -> pl.DataFrame:
    """Read all rows of the year."""
    return pl.scan_parquet(sorted(folder.glob("datasets/flights/*/*.parquet"))).collect()


def dvc(source: Path, work: Path) -> dict[str, float]:
    """Keep files in a git repository that names them by digest, with their content on S3."""

    def run(folder: Path, *words: str | Path) -> None:
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)

    first, second = work / "first", work / "second"
    first.mkdir()
    run(first, "git", "init", "-q")
    run(first, "git", "config", "user.email", "bench@example.org")
    run(first, "git", "config", "user.name", "bench")
    run(first, "dvc", "init", "-q")
    run(first, "dvc", "remote", "add", "-d", "s3", f"s3://artifacts/{NAME}")
    run(first, "dvc", "remote", "modify", "s3", "endpointurl", os.environ["S3_URL"])
    shutil.copytree(source, first / "data")

    def publish() -> None:
        run(first, "dvc", "add", "-q", "data")
        run(first, "git", "add", ".")
        run(first, "git", "commit", "-qm", "publish")
        run(first, "dvc", "push", "-q")

    def read() -> None:
        run(second, "dvc", "pull", "-q")
        read_folder(second / "data")

    seconds = {"publish": timed(publish)}
    run(work, "git", "clone", "-q", first, second)
    return seconds | {"cold": timed(read), "warm": timed(read)}


def deltalake(source: Path, work: Path) -> dict[str, float]:
    """Write one table on S3, partitioned by day, in one transaction."""
    from deltalake import write_deltalake

    address = f"s3://artifacts/{NAME}"
    options = {
        "AWS_ENDPOINT_URL": os.environ["S3_URL"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_CONDITIONAL_PUT": "etag",
    }

    def publish() -> None:
        days = [
            pl.read_parquet(file).with_columns(date=pl.lit(file.parent.name.removeprefix("date=")))
            for file in sorted(source.glob("datasets/flights/*/*.parquet"))
        ]
        write_deltalake(address, pl.concat(days), partition_by=["date"], storage_options=options)

    def read() -> None:
        pl.read_delta(address, storage_options=options)

    return {"publish": timed(publish), "cold": timed(read), "warm": timed(read)}


def lakefs_spec(source: Path, work: Path) -> dict[str, float]:
    """Use the same lakeFS by fsspec: a transaction is a branch that is merged."""
    import lakefs
    from lakefs_spec import LakeFSFileSystem

    login = {
        "host": os.environ["LAKEFS_URL"],
        "username": os.environ["LAKEFS_KEY"],
        "password": os.environ["LAKEFS_SECRET"],
    }
    client = lakefs.Client(**login)
    lakefs.Repository(NAME, client=client).create(storage_namespace=f"s3://lake/benchmarks/{NAME}")
    files = LakeFSFileSystem(**login)

    def publish() -> None:
        with files.transaction(NAME, "main") as transaction:
            files.put(f"{source}/", f"{NAME}/{transaction.branch.id}/", recursive=True)
            transaction.commit(message="publish")

    def read() -> None:
        files.get(f"{NAME}/main/", f"{work}/copy/", recursive=True)
        read_folder(work / "copy")

    return {"publish": timed(publish), "cold": timed(read), "warm": timed(read)}


if __name__ == "__main__":
    ways = {"dvc": dvc, "deltalake": deltalake, "lakefs-spec": lakefs_spec}
    _, peer, given, folder = sys.argv
    sys.stdout.write(json.dumps(ways[peer](Path(given), Path(folder))) + "\n")
