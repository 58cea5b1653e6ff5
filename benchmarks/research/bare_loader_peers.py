"""Rows per second of mosaicml-streaming and litdata. `loader_libraries.py` runs it in their environment.

`bare_loader_peers.py PEER NUMBERS WORK BATCH` prints one JSON object: rows per second without workers and with two, of
the fastest of several epochs. NUMBERS is an `.npy` file of float32 `[rows, columns]`; an item is a row, as both expect.
"""

import json
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

EPOCHS = 3


def rate(loader: Iterable[Any], rows: int) -> float:
    """Return rows per second in the fastest epoch. An element of each batch is read."""
    fastest = float("inf")
    for _ in range(EPOCHS):
        seen, start = 0, time.perf_counter()
        for batch in loader:
            batch["x"][0, 0].item()
            seen += len(batch["x"])
        fastest = min(fastest, time.perf_counter() - start)
        if seen != rows:
            raise SystemExit(f"An epoch had {seen} rows, not {rows}.")
    return rows / fastest


def mosaicml(numbers: np.ndarray, work: Path, batch: int) -> dict[str, float]:
    """Write MDS shards, shuffle them by its own algorithm, read them by its own loader."""
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    with MDSWriter(out=str(work), columns={"x": f"ndarray:float32:{numbers.shape[1]}"}) as writer:
        for row in numbers:
            writer.write({"x": row})
    rates: dict[str, float] = {}
    for workers in (0, 2):
        data = StreamingDataset(local=str(work), shuffle=True, batch_size=batch)
        loader = StreamingDataLoader(
            data, batch_size=batch, num_workers=workers, persistent_workers=workers > 0
        )
        rates[f"{workers} workers"] = rate(loader, len(numbers))
    return rates


def sample(path: str, row: int) -> dict[str, Any]:
    """Return a row in the format of litdata's writers."""
    return {"x": np.load(path, mmap_mode="r")[row].copy()}


def litdata(numbers: np.ndarray, work: Path, batch: int) -> dict[str, float]:
    """Write optimized chunks, shuffle them, read them by its own loader."""
    import litdata as library

    library.optimize(
        partial(sample, sys.argv[2]),
        list(range(len(numbers))),
        output_dir=str(work),
        chunk_bytes="64MB",
        num_workers=2,
    )
    rates: dict[str, float] = {}
    for workers in (0, 2):
        data = library.StreamingDataset(str(work), shuffle=True)
        loader = library.StreamingDataLoader(data, batch_size=batch, num_workers=workers)
        rates[f"{workers} workers"] = rate(loader, len(numbers))
    return rates


if __name__ == "__main__":
    peer, path, folder, size = sys.argv[1:]
    ways = {"mosaicml-streaming": mosaicml, "litdata": litdata}
    print(json.dumps(ways[peer](np.load(path, mmap_mode="r"), Path(folder), int(size))), flush=True)
