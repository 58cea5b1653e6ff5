"""Measurement of a bundle's latency and size, in the process of the step `evaluate`.

A run measures a bundle once and keeps the figures among the artifacts. A retried step reads them, so it makes the
same evaluation again. Not here: the document and the gates on it (`evaluation`).
"""

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING

from resources.artifacts import Artifacts
from resources.environment import machine
from resources.files import whole_file

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.model.evaluation.evaluation_document import Latency, ServingCost
    from ml_assets.model.release.bundle_store import Bundle
    from ml_assets.model.release.runtime import ServingModel

COSTS = "serving_costs"
"""Folder of all measurements among the artifacts."""
BATCH_ROWS = 1_000
"""Rows of a batch; fewer if the holdout has fewer, or if rows have blobs."""
THREADS = 1
_MOST_CALLS = 1_000
_FEWEST_CALLS = 20
_SECONDS = 1.0
"""Seconds after which no further call begins, once there are `_FEWEST_CALLS`. A large network takes seconds a batch."""
_WARM = 3
"""Calls before the first measured one. The first call of a session allocates its memory."""


def serving_cost_of(
    bundle: "Bundle", rows: "pl.DataFrame", artifacts: Artifacts, run_id: str
) -> "ServingCost":
    """Return latency and size of `bundle`, measured on `rows` unless this run has measured it before.

    `rows` are raw rows with all columns that the bundle reads.
    """
    from ml_assets.model.evaluation.evaluation_document import ServingCost

    name, file = f"{COSTS}/{bundle.digest}", f"{run_id}.json"
    if artifacts.exists(name, file):
        return ServingCost.model_validate_json((artifacts.pull(name, [file]) / file).read_bytes())
    found = _measured(bundle, rows)
    with whole_file(artifacts.folder(name) / file) as target:
        target.write_text(found.model_dump_json())
    artifacts.push(name, [file])
    return found


def _measured(bundle: "Bundle", rows: "pl.DataFrame") -> "ServingCost":
    from ml_assets.model.evaluation.evaluation_document import ServingCost
    from ml_assets.model.release.golden import spread
    from ml_assets.model.release.runtime import ServingModel

    model = ServingModel.load(bundle.folder, threads=THREADS)
    batch = spread(rows, BATCH_ROWS)
    return ServingCost(
        row=_latency(_rows(model, batch), 1),
        batch=_latency(cycle([lambda: model.predict(batch)]), batch.height),
        bundle_bytes=bundle.bytes,
        threads=THREADS,
        machine=machine(),
    )


def _rows(model: "ServingModel", frame: "pl.DataFrame") -> Iterator[Callable[[], object]]:
    """Yield calls that predict one row each, in turn and again."""
    # Ready mappings: a server gets its row from a request, not from a frame.
    return cycle([lambda row=row: model.predict_row(row) for row in frame.iter_rows(named=True)])


def _latency(calls: Iterator[Callable[[], object]], rows: int) -> "Latency":
    import numpy as np

    from ml_assets.model.evaluation.evaluation_document import Latency

    for _ in range(_WARM):
        next(calls)()
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < _MOST_CALLS and (len(taken) < _FEWEST_CALLS or time.perf_counter() - begin < _SECONDS):
        call = next(calls)
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    p50, p99 = (round(float(1e3 * found), 6) for found in np.percentile(taken, [50, 99]))
    return Latency(rows=rows, calls=len(taken), p50_ms=p50, p99_ms=p99)
