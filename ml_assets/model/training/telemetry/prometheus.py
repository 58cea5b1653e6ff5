"""Beginning of a training's reports: the first events of an attempt, and the metrics page that Prometheus reads.

    http://<rank 0>:<metrics_port>/metrics

Rank 0 serves the page, with the newest values, if the job sets `metrics_port`: on loopback only, or on all addresses in
a pod. Not here: the measurements (meter), the record of an attempt (attempt.attempts).
"""

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ml_assets.model.training.telemetry.event_log import emit, tell_also
from resources.environment import device_facts
from resources.job.events import MOST_RANKS_TOLD, TrainingEvent
from resources.job.job import TrainingJob
from resources.web.http_bounds import BoundedHTTPServer

log = logging.getLogger(__name__)

_STEPPING = ("metrics", "epoch", "checkpoint")
"""Kinds of events that show the loop's progress; `system` comes from a thread beside the loop."""
_OWN_NAMES = frozenset({"gpu_utilization_pct", "checkpoint_duration_ms", "data_loading_latency_ms"})
"""Metrics that keep their names; all others get the prefix `training_`."""


def tell_beginning(
    job: TrainingJob,
    attempt: int,
    from_step: int,
    *,
    world_size: int,
    pids: Sequence[int],
    ranks_began: Sequence[float],
    steps: int,
    device: str,
    is_stored: bool,
) -> None:
    """Emit `started` and, after step 0, `resumed`; serve the metrics page if the job asks for it.

    `pids`: the known ranks. `ranks_began`: the first line of each, in seconds since the epoch. `steps`: of the whole
    training (0: unknown). `is_stored`: the folder has a durable copy elsewhere, as in pods.
    """
    emit(
        "started",
        from_step,
        world_size=world_size,
        pids=pids,
        ranks_began=ranks_began[:MOST_RANKS_TOLD],
        steps=steps,
        attempt=attempt,
        device=device,
        metrics_port=serve_figures(job, all_addresses=is_stored),
        torch=metadata.version("torch"),
        **device_facts(),
    )
    if from_step:
        emit("resumed", from_step, attempt=attempt)


class _NewestFigures(Collector):
    """Newest numbers of the events so far: gauges, one series each."""

    def __init__(self, job: TrainingJob) -> None:
        self._labels = {"model": job.model, "partition": job.partition, "fingerprint": job.fingerprint[:16]}
        self._values: dict[str, float] = {}

    def note(self, event: TrainingEvent) -> None:
        """Copy the numbers of one event."""
        found: dict[str, Any] = {}
        if event.kind in _STEPPING:
            found |= {"step": event.step, "last_step_timestamp_seconds": event.time}
        if event.kind in (*_STEPPING, "system", "interval"):
            found |= {name: value for name, value in event.values.items() if isinstance(value, int | float)}
        elif event.kind == "started":
            found = {name: event.values[name] for name in ("world_size", "attempt")}
            found["steps_planned"] = event.values["steps"]
        elif event.kind == "recovered":
            found = {f"recovery_{name}": event.values[name] for name in ("seconds", "steps_lost")}
        self._values |= {_name(name): value for name, value in found.items()}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges. Called in the threads of the server, so on a copy."""
        for name, value in sorted(self._values.copy().items()):
            gauge = GaugeMetricFamily(name, "", labels=tuple(self._labels))
            gauge.add_metric(tuple(self._labels.values()), value)
            yield gauge


class _Handler(MetricsHandler):
    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/metrics":
            super().do_GET()
        else:
            self.send_error(404, "the metrics are at /metrics")


def serve_figures(job: TrainingJob, all_addresses: bool) -> int | None:
    """Serve this process's page in a thread; return the port, or None if no page is served.

    A port that is in use logs a warning. A training does not fail for its metrics page: events carry the same
    values.
    """
    if job.settings.metrics_port is None:
        return None
    figures, registry = _NewestFigures(job), CollectorRegistry()
    registry.register(figures)
    address = ("" if all_addresses else "127.0.0.1", job.settings.metrics_port)
    try:
        server = BoundedHTTPServer(address, _Handler.factory(registry))
    except OSError as error:
        log.warning(
            "no metrics for Prometheus, port %d cannot be opened: %s. Choose another metrics_port",
            address[1],
            error,
        )
        return None
    tell_also(figures.note)
    threading.Thread(target=server.serve_forever, name="prometheus", daemon=True).start()
    return server.server_port


def _name(figure: str) -> str:
    name = re.sub(r"\W", "_", figure, flags=re.ASCII)
    return name if name in _OWN_NAMES or name.startswith("training_") else f"training_{name}"
