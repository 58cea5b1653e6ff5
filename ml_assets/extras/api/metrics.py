"""Metrics of the platform in the format of Prometheus: its runs, tables and models, and the requests of this server.

Labels are bounded: names of declared tables and models, paths of routes, statuses. Not here: metrics of `ml-assets
serve` (`use.serving.counters`) and of trainings (`model.training.telemetry.prometheus`).
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

import dagster as dg
from fastapi import Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ml_assets.context.news import RunNews, made_by
from ml_assets.data.tables.spec import TableSpec
from ml_assets.extras.api.frame import ApiParts, Routes
from ml_assets.model.release.standing import CANARY, PRODUCTION, BundleStandings
from resources.web.request_counts import MEDIA_TYPE

FRESH_SECONDS = 15.0
"""Age up to which the state of the platform is not read again: several servers of Prometheus may ask."""
ENDED = {
    dg.DagsterRunStatus.SUCCESS: "succeeded",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "canceled",
}
_LOG = logging.getLogger(__name__)
_UNFINISHED = {
    "queued": [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED],
    "running": [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING],
}


def add_metrics(routes: Routes, parts: ApiParts) -> None:
    """Add the route."""
    parts.requests.registry.register(_Platform(parts))

    @routes.add(
        "GET",
        "/metrics",
        role="viewer",
        summary="Metrics of runs, tables, models and requests, for Prometheus",
        refuses=(),
        described={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        response_class=Response,
    )
    def metrics() -> Response:
        return Response(parts.requests.text(), media_type=MEDIA_TYPE)


class _Platform(Collector):
    """State of the platform, read when a server of Prometheus asks."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._news = RunNews(parts.context.project.instance, datetime.now(UTC))
        self._ended: dict[tuple[str, str], int] = {}
        """Runs that ended since this server began."""
        self._lock = threading.Lock()
        self._known: list[Metric] = []
        self._read_at = -FRESH_SECONDS

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registry does not read the platform when it begins."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the state as it was at most `FRESH_SECONDS` ago."""
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH_SECONDS:
                self._known = [*self._read()]
                self._read_at = time.monotonic()
            return self._known

    def _read(self) -> Iterator[Metric]:
        """Yield what can be read: a scrape that fails would also hide the requests that fail meanwhile."""
        answers = GaugeMetricFamily(
            "ml_assets_part_answers", "1 if the part of the platform could be read, else 0.", labels=("part",)
        )
        for part, read in (("runs", self._of_runs), ("tables", self._of_tables), ("models", self._of_models)):
            try:
                found = [*read()]
            except Exception as error:  # any: storages of Dagster raise errors of their libraries
                _LOG.warning("metrics of %s cannot be read: %s", part, error)
                found = []
            answers.add_metric((part,), float(bool(found)))
            yield from found
        yield answers

    @cached_property
    def _tables(self) -> Mapping[str, TableSpec]:
        """Declared tables. They stay as they were at the first scrape, as all declarations of a running API."""
        with self._parts.declared:
            return self._parts.context.project.declared.tables()

    @cached_property
    def _names(self) -> Set[str]:
        """Names of the declared tables and models."""
        tables = self._tables
        with self._parts.declared:
            return {*self._parts.context.project.declared.pipelines(), *tables}

    def _of_runs(self) -> Iterator[Metric]:
        names = self._names
        for name in names:
            # A counter that begins with the first failure would have no increase to alert on.
            for status in ENDED.values():
                self._ended.setdefault((name, status), 0)
        for run, _ in self._news.changed():
            if run.status in ENDED:
                for name in made_by(run) & names:
                    self._ended[name, ENDED[run.status]] += 1
        ended = CounterMetricFamily(
            "ml_assets_runs_ended",
            "Runs of a table or model that ended since the server began.",
            labels=("name", "status"),
        )
        for labels, number in sorted(self._ended.items()):
            ended.add_metric(labels, number)
        yield ended
        now = GaugeMetricFamily("ml_assets_runs", "Runs that did not end.", labels=("status",))
        for status, statuses in _UNFINISHED.items():
            now.add_metric(
                (status,),
                self._parts.context.project.instance.get_runs_count(dg.RunsFilter(statuses=statuses)),
            )
        yield now

    def _of_tables(self) -> Iterator[Metric]:
        ledger = self._parts.context.project.platform.ledger
        late = GaugeMetricFamily(
            "ml_assets_late_partitions",
            "Partitions that are over, and newer than the newest one that may be read.",
            labels=("table",),
        )
        rejected = GaugeMetricFamily(
            "ml_assets_rejected_partitions",
            "Partitions whose newest verdict rejects them.",
            labels=("table",),
        )
        for name, table in sorted(self._tables.items()):
            rejected.add_metric((name,), len(ledger.rejections(name)))
            usable = table.cadence.newest_of(ledger.volumes(name))
            # A table that ends, or that nobody built yet, is not late.
            if usable and table.cadence.kind != "none" and table.cadence.end is None:
                late.add_metric((name,), late_partitions(table, usable[0], datetime.now(UTC)))
        yield from (late, rejected)

    def _of_models(self) -> Iterator[Metric]:
        log = self._parts.context.project.platform.ledger.models
        version = GaugeMetricFamily(
            "ml_assets_released_version", "Version of a model in each role.", labels=("model", "role")
        )
        since = GaugeMetricFamily(
            "ml_assets_released_timestamp_seconds",
            "Time of the promotion of the version in each role.",
            labels=("model", "role"),
        )
        for name in log.models():
            standings = BundleStandings.of_stages(log.stage_changes(name))
            for role, held in ((PRODUCTION, standings.in_production), (CANARY, standings.canary)):
                if held is not None:
                    version.add_metric((name, role), float(held.version))
                    since.add_metric((name, role), held.at.timestamp())
        yield from (version, since)


def late_partitions(table: TableSpec, newest: str, now: datetime) -> int:
    """Return the number of partitions that are over at `now` (with a time zone) and newer than `newest`."""
    if table.cadence.kind == "hourly":
        return sum(key > newest for key in table.cadence.complete(now.astimezone(UTC) - timedelta(hours=1)))
    today = now.astimezone(ZoneInfo(table.contract.event_time_zone)).date()
    return sum(key > newest for key in table.cadence.complete(today - timedelta(days=1)))
