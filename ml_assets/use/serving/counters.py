"""Counters and latencies of a server in the format of Prometheus."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from ml_assets.use.serving.canary import ShadowQueue
    from ml_assets.use.serving.log_retention import LogRetention
    from ml_assets.use.serving.request_log import RequestLog
    from ml_assets.use.serving.watch import StageWatch

_NAME = "ml_assets_serving_"
_OF_VERSION = ("model", "version", "role")
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the latency's buckets in seconds."""


class ServingMetrics(Collector):
    """Metrics of one server, with the state of its parts at the moment of a request."""

    def __init__(
        self, watch: "StageWatch", log: "RequestLog", retention: "LogRetention", shadows: "ShadowQueue"
    ) -> None:
        self._watch, self._log, self._retention, self._shadows = watch, log, retention, shadows
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._requests = self._counter(
            "requests_total", "Requests that a version answered or refused.", _OF_VERSION
        )
        self._rows = self._counter("rows_total", "Raw rows that a version predicted.", _OF_VERSION)
        self._errors = self._counter(
            "errors_total", "Requests that a version refused, or could not predict.", (*_OF_VERSION, "kind")
        )
        self._unknown = self._counter(
            "unknown_categories_total",
            "Rows with a category that no training row had.",
            ("model", "version", "column"),
        )
        self._refused = self._counter(
            "refused_total", "Requests that got no prediction, by status.", ("status",)
        )
        self._busy = self._counter(
            "canary_busy_total",
            "Requests of a canary's entities that production answered, because the canary had no free thread.",
            ("model", "version"),
        )
        self._looked_up = self._counter(
            "online_rows_total", "Rows with columns from the online store.", ("model",)
        )
        self._latency = Histogram(
            f"{_NAME}latency_seconds",
            "Time from the arrival of a request to its prediction.",
            _OF_VERSION,
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._of = cache(self._bound)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...]) -> Counter:
        return Counter(_NAME + name, meaning, labels, registry=self._registry)

    def _bound(self, model: str, version: int, role: str) -> tuple[Counter, Counter, Histogram]:
        labels = (model, str(version), role)
        return self._requests.labels(*labels), self._rows.labels(*labels), self._latency.labels(*labels)

    def answered(self, model: str, version: int, role: str, rows: int, seconds: float) -> None:
        requests, counted, latency = self._of(model, version, role)
        requests.inc()
        counted.inc(rows)
        latency.observe(seconds)

    def failed(self, model: str, version: int, role: str, kind: str) -> None:
        """Count a request that a version did not answer; `kind` is `refused` or the name of an unexpected error."""
        self._of(model, version, role)[0].inc()
        self._errors.labels(model, str(version), role, kind).inc()

    def unknown(self, model: str, version: int, columns: Iterable[str]) -> None:
        """Count the columns of a row whose category no training row had."""
        for column in columns:
            self._unknown.labels(model, str(version), column).inc()

    def canary_busy(self, model: str, version: int) -> None:
        self._busy.labels(model, str(version)).inc()

    def looked_up(self, model: str, rows: int) -> None:
        """Count rows with columns from the online store."""
        if rows:
            self._looked_up.labels(model).inc(rows)

    def refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield gauges and counters of the parts."""
        versions = GaugeMetricFamily(
            f"{_NAME}version", "Version in each role; 1 while it holds it.", labels=_OF_VERSION
        )
        problems = GaugeMetricFamily(
            f"{_NAME}problems", "Versions that the ledger names and that do not load.", labels=["model"]
        )
        for model in self._watch.declarations:
            served = self._watch.served(model)
            for role, version in served.versions.items() if served else ():
                versions.add_metric([model, str(version.number), role], 1)
            problems.add_metric([model], len(self._watch.problems(model)))
        yield versions
        yield problems
        age = self._watch.ledger_age
        yield GaugeMetricFamily(
            f"{_NAME}ledger_age_seconds",
            "Seconds since the ledger was read; infinite if it never was.",
            value=float("inf") if age is None else age,
        )
        yield GaugeMetricFamily(
            f"{_NAME}ledger_problem",
            "1 if the ledger could not be read.",
            value=int(bool(self._watch.ledger_problem)),
        )
        since = self._watch.unanswered_since
        yield GaugeMetricFamily(
            f"{_NAME}ledger_unanswered_seconds",
            "Seconds since which no read of the ledger succeeded; 0 if the last one did.",
            value=0 if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds()),
        )
        yield CounterMetricFamily(
            f"{_NAME}log_rows_total", "Rows of the request log that were written.", value=self._log.written
        )
        yield CounterMetricFamily(
            f"{_NAME}log_dropped_rows_total",
            "Rows of the request log that found no room.",
            value=self._log.dropped,
        )
        files = CounterMetricFamily(
            f"{_NAME}log_deleted_files_total",
            "Old files of the request log that were deleted.",
            labels=["model"],
        )
        sizes = CounterMetricFamily(
            f"{_NAME}log_deleted_bytes_total", "Bytes of these files.", labels=["model"]
        )
        above = GaugeMetricFamily(
            f"{_NAME}log_above_bounds",
            "1 if days of the stored request log stay above its bounds.",
            labels=["model"],
        )
        for model in self._watch.declarations:
            files.add_metric([model], self._retention.deleted_files[model])
            sizes.add_metric([model], self._retention.deleted_bytes[model])
            above.add_metric([model], int(bool(self._retention.kept.get(model))))
        yield files
        yield sizes
        yield above
        yield CounterMetricFamily(
            f"{_NAME}shadow_dropped_requests_total",
            "Requests whose shadow prediction found no room.",
            value=self._shadows.dropped,
        )
