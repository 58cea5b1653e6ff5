"""Spans as a message of OTLP over HTTP, which each collector of traces takes.

`OTEL_EXPORTER_OTLP_HEADERS` (a token, say) and the other variables of OpenTelemetry's exporter count. The id of a span
follows from its run and its place, so a message that is sent again adds nothing at a collector that knows ids.
"""

import hashlib
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from ml_assets.extras.traces.span import TraceSpan, is_parent
from resources.addresses import Address

PATIENCE_SECONDS = 5
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


def send(url: Address, traces: Sequence[Trace], environment: str) -> str:
    """Send traces; return why they did not arrive, or an empty text."""
    resource = Resource({"service.name": "ml-assets", "deployment.environment.name": environment})
    spans = [span for one in traces for span in _readable(one, resource)]
    exporter = OTLPSpanExporter(endpoint=f"{url.reveal().rstrip('/')}/v1/traces", timeout=PATIENCE_SECONDS)
    try:
        result = exporter.export(spans)
    finally:
        exporter.shutdown()
    return "" if result is SpanExportResult.SUCCESS else f"the collector at {url} did not take them"


def _readable(trace: Trace, resource: Resource) -> Generator[ReadableSpan]:
    parent = None
    trace_id = _trace_id(trace.root_run_id)
    if is_parent(trace.parent):
        _, identity, above, _ = trace.parent.split("-")
        trace_id = int(identity, 16)
        parent = SpanContext(trace_id, int(above, 16), is_remote=True, trace_flags=_SAMPLED)
    yield from _spans(trace.span, trace.run_id, trace_id, parent, resource)


def _trace_id(run_id: str) -> int:
    try:
        return uuid.UUID(run_id).int
    except ValueError:
        return int(hashlib.sha256(run_id.encode()).hexdigest()[:32], 16)


def _spans(
    span: TraceSpan, place: str, trace_id: int, parent: SpanContext | None, resource: Resource
) -> Generator[ReadableSpan]:
    span_id = int(hashlib.sha256(place.encode()).hexdigest()[:16], 16)
    context = SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
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


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
