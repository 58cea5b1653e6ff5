"""Metrics page that Prometheus reads, with the newest values of a training.

    http://<rank 0>:<metrics_port>/metrics

Rank 0 serves it if the job sets `metrics_port`: on loopback only, or on all addresses in a pod. Here: the page. Not
here: the measurements (meter).
"""

import logging
import re
import threading
from http.server import BaseHTTPRequestHandler

from ml_assets.model.training.telemetry.event_log import tell_also
from resources.job.events import TrainingEvent
from resources.job.job import TrainingJob
from resources.web.http_bounds import BoundedHTTPServer

log = logging.getLogger(__name__)

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STEPPING = ("metrics", "epoch", "checkpoint")
"""Kinds of events that show the loop's progress; `system` comes from a thread beside the loop."""
_OWN_NAMES = frozenset({"gpu_utilization_pct", "checkpoint_duration_ms", "data_loading_latency_ms"})
"""Metrics that keep their names; all others get the prefix `training_`."""


class Page:
    """Metrics page, built from the events so far."""

    def __init__(self, job: TrainingJob) -> None:
        labels = {"model": job.model, "partition": job.partition, "fingerprint": job.fingerprint[:16]}
        self._labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}

    def note(self, event: TrainingEvent) -> None:
        """Copy the numbers of one event to the page."""
        with self._lock:
            if event.kind in _STEPPING:
                self._values["training_step"] = event.step
                self._values["training_last_step_timestamp_seconds"] = event.time
            if event.kind in (*_STEPPING, "system"):
                for name, value in event.values.items():
                    if isinstance(value, int | float):
                        self._values[_name(name)] = value
            elif event.kind == "started":
                self._values["training_world_size"] = event.values["world_size"]
                self._values["training_attempt"] = event.values["attempt"]
                self._values["training_steps_planned"] = event.values["steps"]
            elif event.kind == "recovered":
                self._values["training_recovery_seconds"] = event.values["seconds"]
                self._values["training_recovery_steps_lost"] = event.values["steps_lost"]

    def text(self) -> str:
        """Return the page in Prometheus' text format: gauges, one series each."""
        with self._lock:
            lines = [
                f"# TYPE {name} gauge\n{name}{{{self._labels}}} {float(value)!r}\n"
                for name, value in sorted(self._values.items())
            ]
        return "".join(lines)


def serve_figures(job: TrainingJob, all_addresses: bool) -> int | None:
    """Serve this process's page in a thread; return the port, or None if no page is served.

    A port that is in use logs a warning. A training does not fail for its metrics page: events carry the same
    values.
    """
    if job.settings.metrics_port is None:
        return None
    page = Page(job)
    address = ("" if all_addresses else "127.0.0.1", job.settings.metrics_port)
    try:
        server = BoundedHTTPServer(address, _handler_of(page))
    except OSError as error:
        log.warning(
            "no metrics for Prometheus, port %d cannot be opened: %s. Choose another metrics_port",
            address[1],
            error,
        )
        return None
    tell_also(page.note)
    threading.Thread(target=server.serve_forever, name="prometheus", daemon=True).start()
    return server.server_port


def _handler_of(page: Page) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(page.text().encode())

        def do_HEAD(self) -> None:
            self._answer(page.text().encode())

        def _answer(self, content: bytes) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "the metrics are at /metrics")
                return
            self.send_response(200)
            self.send_header("Content-Type", _TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: stderr belongs to the training's log."""

    return Handler


def _name(figure: str) -> str:
    name = re.sub(r"\W", "_", figure, flags=re.ASCII)
    return name if name in _OWN_NAMES or name.startswith("training_") else f"training_{name}"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
