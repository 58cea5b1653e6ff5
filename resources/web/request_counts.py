"""Counts and latencies of the requests to a server, in the format of Prometheus."""

from http import HTTPMethod

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
"""Upper bounds of the latency's buckets in seconds."""
MEDIA_TYPE = CONTENT_TYPE_LATEST
OTHER = "other"
"""Label of a path without a route, and of a method that HTTP does not know: anybody may invent them."""


class RequestCounts:
    """Requests of one server by route. Safe for threads."""

    def __init__(self, *, requests: str, seconds: str) -> None:
        """`requests` and `seconds` are the names of the metrics."""
        self.registry = CollectorRegistry()
        self._requests = Counter(
            requests,
            "Requests that the server answered or refused.",
            ("method", "path", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            seconds,
            "Time to an answer; of a stream, to its first byte.",
            ("method", "path"),
            buckets=BUCKETS,
            registry=self.registry,
        )

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request; `path` is that of its route, without the names in it."""
        known = method if method in set(HTTPMethod) else OTHER
        self._requests.labels(known, path, str(status)).inc()
        self._seconds.labels(known, path).observe(seconds)

    def text(self) -> bytes:
        """Return the counts, and whatever else is in the registry."""
        return generate_latest(self.registry)
