"""Counts and latencies of the requests of this server, in the format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Upper bounds of the latency's buckets in seconds."""


class RequestCounts:
    """Requests of this server by route. Safe for threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "ml_assets_api_requests_total",
            "Requests that the API answered or refused.",
            ("method", "path", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "ml_assets_api_request_seconds",
            "Time to an answer; of a stream, to its first byte.",
            ("method", "path"),
            buckets=BUCKETS,
            registry=self.registry,
        )

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request; `path` is that of its route, without the names in it."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(method, path).observe(seconds)
