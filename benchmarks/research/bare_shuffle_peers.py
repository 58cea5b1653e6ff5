"""Shuffle of a table's rows by Ray Data and Daft. `shuffle_peers.py` runs it in their environment.

`bare_shuffle_peers.py PEER TABLE INTO COLUMNS` reads these columns of the Parquet files in TABLE, puts the rows into
another order, and writes Parquet files to INTO. Each peer may use all cores of this machine.
"""

import sys
from pathlib import Path


def ray_data(table: str, into: str, columns: list[str]) -> None:
    """Shuffle all rows by `random_shuffle`, the only one of its shuffles that mixes rows of all files."""
    import ray

    ray.init(include_dashboard=False, logging_level="error", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.read_parquet(table, columns=columns).random_shuffle(seed=1).write_parquet(into)
    ray.shutdown()


def daft_sort(table: str, into: str, columns: list[str]) -> None:
    """Sort all rows by a hash of their number, as Daft has no shuffle of its own."""
    import daft
    from daft import col

    rows = daft.read_parquet(f"{table}/*.parquet").select(*columns)
    key = col(columns[0]).hash() ^ col(columns[1]).hash() ^ col(columns[2]).hash()
    rows.with_column("order", key).sort("order").exclude("order").write_parquet(into)


if __name__ == "__main__":
    peer, table, into, names = sys.argv[1:]
    Path(into).mkdir(parents=True)
    {"Ray Data": ray_data, "Daft": daft_sort}[peer](table, into, names.split())
