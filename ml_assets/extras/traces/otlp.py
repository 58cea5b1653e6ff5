"""Spans as a message of OTLP over HTTP, which each collector of traces takes.

`OTEL_EXPORTER_OTLP_HEADERS` (a token, say) and the other variables of OpenTelemetry's exporter count. The id of a span
follows from its run and its place, so a message that is sent again adds nothing at a collector that knows ids.
"""

import hashlib
import logging
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from ml_assets.extras.traces.span import TraceSpan, is_parent
from resources.addresses import Address

PATIENCE_SECONDS = 5
_ABOUT_THE_MESSAGE = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Spans of one run."""

    run_id: str
    root_run_id: str
    """First run of all tries. Its id, without dashes, is that of the trace."""
    span: TraceSpan
    parent: str = ""
    """`traceparent` of the request that launched the run: then the spans belong to its trace."""
    request: TraceSpan | None = None
    """The request to the API that launched the first try: the span above those of all tries, sent with the first."""


class CollectorAway(Exception):
    """The collector did not take a message, and may take it later. Only the sensor handles it."""


class _MessageRefused(CollectorAway):
    """The collector does not take this message, which may be about one of its traces."""


def send(url: Address, traces: Sequence[Trace], environment: str) -> int:
    """Send traces in one message; return how many of them the collector refused. Raises `CollectorAway`.

    If it refuses the message, send each trace by itself. One counts as refused only if the collector took another one.
    """
    try:
        _post(url, traces, environment)
        return 0
    except _MessageRefused as error:
        if len(traces) == 1:
            raise
        newest = error
    refused = 0
    for one in traces:
        try:
            _post(url, [one], environment)
        except _MessageRefused as error:
            refused, newest = refused + 1, error
    if refused == len(traces):
        raise newest
    return refused


def _post(url: Address, traces: Sequence[Trace], environment: str) -> None:
    resource = Resource({"service.name": "ml-assets", "deployment.environment.name": environment})
    spans = [span for one in traces for span in _readable(one, resource)]
    parts = urlsplit(url.reveal())
    endpoint = parts._replace(path=f"{parts.path.rstrip('/')}/v1/traces").geturl()
    session = _Session()
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=PATIENCE_SECONDS, session=session)
    # Its words hold the address with its credentials.
    logging.getLogger(OTLPSpanExporter.__module__).disabled = True
    try:
        exporter.export(spans)
    finally:
        exporter.shutdown()
    if session.status is not None and 200 <= session.status < 300:
        return
    answer = (
        f"answered {session.status}" if session.status else session.failure or "cannot be sent this message"
    )
    is_refused = session.status in _ABOUT_THE_MESSAGE or not (session.status or session.failure)
    raise (_MessageRefused if is_refused else CollectorAway)(f"the collector at {url} {answer}")


class _Session(requests.Session):
    """Connection that keeps the newest answer. It reads no body, which may come byte by byte."""

    status: int | None = None
    failure: str = ""

    def request(self, *given: Any, **named: Any) -> requests.Response:
        self.status, self.failure = None, ""
        try:
            answer = super().request(*given, **{**named, "stream": True})
        except Exception as error:
            # Not its text, which may hold a part of the address.
            self.failure = f"did not answer ({type(error).__name__})"
            raise
        self.status = answer.status_code
        return answer


def _readable(trace: Trace, resource: Resource) -> Generator[ReadableSpan]:
    parent = None
    trace_id = _trace_id(trace.root_run_id)
    if is_parent(trace.parent):
        _, identity, above, _ = trace.parent.split("-")
        trace_id = int(identity, 16)
        parent = SpanContext(trace_id, int(above, 16), is_remote=True, trace_flags=_SAMPLED)
    if trace.request is not None:
        place = f"{trace.root_run_id}/request"
        if trace.run_id == trace.root_run_id:
            yield from _spans(trace.request, place, trace_id, parent, resource)
        parent = _context(place, trace_id)
    yield from _spans(trace.span, trace.run_id, trace_id, parent, resource)


def _trace_id(run_id: str) -> int:
    try:
        return uuid.UUID(run_id).int
    except ValueError:
        return int(hashlib.sha256(run_id.encode()).hexdigest()[:32], 16)


def _spans(
    span: TraceSpan, place: str, trace_id: int, parent: SpanContext | None, resource: Resource
) -> Generator[ReadableSpan]:
    context = _context(place, trace_id)
    yield ReadableSpan(
        name=span.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
        start_time=_nanoseconds(span.began),
        end_time=_nanoseconds(max(span.began, span.ended)),
        instrumentation_scope=InstrumentationScope("ml_assets"),
    )
    for number, part in enumerate(span.parts):
        yield from _spans(part, f"{place}/{number}", trace_id, context, resource)


def _context(place: str, trace_id: int) -> SpanContext:
    span_id = int(hashlib.sha256(place.encode()).hexdigest()[:16], 16)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
