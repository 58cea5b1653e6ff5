"""Process of a server: its parts start, uvicorn runs the application, and everything ends in order.

Here: start and end. Not here: routes (`app`).
"""

import math
import signal
import socket
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

import uvicorn
from pydantic import BaseModel, ConfigDict, Field

from ml_assets.model.release.known_versions import stage_reader_of
from ml_assets.model.release.releases import bundles_of
from ml_assets.use.serving.answering import Limits, ServerParts
from ml_assets.use.serving.app import make_app
from ml_assets.use.serving.canary import CanaryThreads, ShadowQueue, shared_secret
from ml_assets.use.serving.counters import ServingMetrics
from ml_assets.use.serving.log_retention import LogBounds, LogRetention
from ml_assets.use.serving.online_lookup import OnlineLookup
from ml_assets.use.serving.openapi import ErrorAnswer
from ml_assets.use.serving.request_log import RequestLog
from ml_assets.use.serving.watch import Declaration, StageWatch
from resources.platform import Platform
from resources.web.bounded_uvicorn import BoundedProtocol, answer_promptly, bounded_options
from resources.web.http_bounds import BACKLOG, HttpBounds

_KEEP_ALIVE_SECONDS = 75
"""Time until an idle connection is closed: longer than clients and balancers keep one, 60 s at most by default.
Otherwise a request meets a connection that the server just closed. With uvicorn's 5 s, 46 of 20,000 requests did."""


class ServerSettings(BaseModel):
    """Settings of a server beside its address."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    poll_seconds: float = Field(default=2.0, gt=0)
    """Seconds between two looks at the ledger."""
    log_share: float = Field(default=1.0, ge=0, le=1)
    """Share of requests in the log."""
    log_keep_days: int = Field(default=90, ge=0)
    """Days before today whose log stays; 0: all days."""
    log_max_gib: float = Field(default=0.0, ge=0)
    """Size of a model's stored log above which its oldest days are deleted; 0: any size."""
    max_body_mib: float = Field(default=4.0, gt=0)
    """Largest body of a request."""
    max_rows: int = Field(default=10_000, ge=1)
    """Most rows of a request."""
    max_connections: int = Field(default=1_024, ge=4)
    """Connections at once. One address has at most a quarter of them."""
    canary_seconds: float = Field(default=1.0, gt=0)
    """Time that a request waits for a thread of its canary, and then for the prediction; then production answers."""
    stop_seconds: int = Field(default=30, ge=0)
    """Time that open requests have to end after a SIGTERM."""

    @property
    def log_bounds(self) -> LogBounds:
        return LogBounds(
            keep_days=self.log_keep_days or None,
            most_bytes=math.ceil(self.log_max_gib * 2**30) or None,
        )


@contextmanager
def started(
    watch: StageWatch,
    log: RequestLog,
    retention: LogRetention,
    limits: Limits,
    online: Mapping[str, OnlineLookup] | None = None,
) -> Generator[ServerParts]:
    """Yield the parts of a server, started; stop them after the block, the log last."""
    shadows = ShadowQueue()
    with log:
        watch.start()
        shadows.start()
        retention.start()
        try:
            yield ServerParts(
                watch=watch,
                log=log,
                retention=retention,
                shadows=shadows,
                metrics=ServingMetrics(watch, log, retention, shadows),
                limits=limits,
                canaries=CanaryThreads(limits.canary_seconds),
                online=online or {},
            )
        finally:
            retention.stop()
            shadows.stop()
            watch.stop()


def serve(
    platform: Platform,
    declarations: Sequence[Declaration],
    settings: ServerSettings,
    *,
    host: str,
    port: int,
    on_start: Callable[[str, ServerParts], object],
    online: Mapping[str, OnlineLookup] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `on_start` gets the address, with the real port if `port` is 0.

    `online` is model → online rows from which columns are taken that its requests leave out.

    Raises `OSError` if the address is taken.
    """
    watch = StageWatch(
        stage_reader_of(platform),
        bundles_of(platform),
        declarations,
        seconds=settings.poll_seconds,
        secret=lambda: shared_secret(platform.artifacts, platform.ledger),
    )
    log = RequestLog(platform.artifacts, share=settings.log_share)
    retention = LogRetention(platform.artifacts, watch, settings.log_bounds)
    limits = Limits(
        body_bytes=int(settings.max_body_mib * 2**20),
        rows=settings.max_rows,
        canary_seconds=settings.canary_seconds,
    )
    with (
        socket.create_server((host, port), backlog=BACKLOG) as listening,
        started(watch, log, retention, limits, online) as parts,
    ):
        config = uvicorn.Config(
            make_app(parts),
            **bounded_options(HttpBounds(connections=settings.max_connections), JsonErrorProtocol),
            ws="none",  # a request to upgrade gets the answer of its route, not a connection that waits
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=settings.stop_seconds,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        answer_promptly()
        address, bound = listening.getsockname()[:2]
        on_start(f"http://{f'[{address}]' if ':' in address else address}:{bound}", parts)
        # uvicorn handles both signals, and raises them again at its end. The default handler would then end the process
        # before the log is written.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _let_uvicorn_end)
        uvicorn.Server(config).run(sockets=[listening])


def _let_uvicorn_end(number: int, frame: FrameType | None) -> None:
    """Do nothing: uvicorn has ended when its raised signal arrives here."""


class JsonErrorProtocol(BoundedProtocol):
    """uvicorn's protocol within bounds, whose errors are JSON as those of all routes are."""

    def refusal(self, status: int, why: str) -> tuple[bytes, bytes]:
        said = f"{why} Send HTTP/1.1, without TLS" if status == 400 else why
        error = ErrorAnswer(message=said, request_id=uuid.uuid4().hex)
        headers = f"content-type: application/json\r\nx-request-id: {error.request_id}\r\n"
        return headers.encode(), error.model_dump_json().encode()
