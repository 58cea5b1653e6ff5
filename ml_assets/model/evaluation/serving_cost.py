"""Latency and size of a bundle: the document, and the figures that a gate can limit.

Not here: the measurement, which needs the bundle (`pipeline.bundling`).
"""

from ml_assets.model.evaluation.document import Document
from ml_assets.model.evaluation.metrics import MetricFacts

SERVING_METRICS: tuple[MetricFacts, ...] = tuple(
    MetricFacts(name=name, label=label, higher_is_better=False, lowest=0, needs_skill=False)
    for name, label in (
        ("row_p50_ms", "median latency of one row in ms"),
        ("row_p99_ms", "p99 latency of one row in ms"),
        ("batch_p50_ms", "median latency of a batch in ms"),
        ("batch_p99_ms", "p99 latency of a batch in ms"),
        ("bundle_mb", "size of the bundle in MB"),
    )
)
"""Figures of a bundle that `at_most` of a gate can limit."""
SERVING_NAMES = tuple(metric.name for metric in SERVING_METRICS)


class Latency(Document):
    """Wall time of calls with the same number of rows."""

    rows: int
    """Rows of each call."""
    calls: int
    p50_ms: float
    p99_ms: float
    """Nearly the slowest of fewer than 100 calls."""


class ServingCost(Document):
    """Latency and size of one bundle, measured by its own runtime."""

    row: Latency
    """Calls of `predict_row`."""
    batch: Latency
    """Calls of `predict`."""
    bundle_bytes: int
    """Bytes of all files that the digest of the bundle covers."""
    threads: int
    """Threads of onnxruntime in one call."""
    machine: str
    """Machine of the step that measured, such as `Linux x86_64, 8 cores`."""

    def values(self) -> dict[str, float]:
        """Return each of `SERVING_METRICS` by name."""
        return {
            "row_p50_ms": self.row.p50_ms,
            "row_p99_ms": self.row.p99_ms,
            "batch_p50_ms": self.batch.p50_ms,
            "batch_p99_ms": self.batch.p99_ms,
            "bundle_mb": self.bundle_bytes / 1e6,
        }
