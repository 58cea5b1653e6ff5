"""Routes of a training while it runs: its metrics as server-sent events, and its checkpoints.

An event's id is the place of its point among Dagster's events. A client that lost its connection sends the last one as
`Last-Event-ID`, and gets every later point once.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ml_assets.context.runs import ENDED, MetricsPoint, ShownRun
from ml_assets.extras.api.frame import ApiParts, Caller, Routes, in_thread
from ml_assets.extras.api.shapes import CheckpointDocument, RunId, number_or_none
from ml_assets.extras.governance.proxy.persons import PageVisitor
from resources.words import has_remedy

_LOG = logging.getLogger(__name__)
POLL_SECONDS = 1.0
COMMENT_SECONDS = 15.0
"""Longest silence of a stream. Proxies close connections on which nothing comes."""
_EVENTS: Mapping[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `metrics`, and `end` with the state once the run has ended.",
        "content": {
            "text/event-stream": {
                "schema": {"type": "string"},
                "example": 'id: 1207\nevent: metrics\ndata: {"step": 40, "at": "2026-11-29T10:00:00+00:00", '
                '"values": {"loss": 0.41}}\n\nevent: end\ndata: {"state": "completed"}\n\n',
            }
        },
    }
}


def add_following(routes: Routes, parts: ApiParts) -> None:
    """Add the routes."""

    @routes.add(
        "GET",
        "/training-runs/{id}/metrics",
        role="viewer",
        summary="Metrics of a training as they come",
        response_class=StreamingResponse,
        described=_EVENTS,
    )
    async def metrics(
        id: RunId,
        caller: Caller,
        last_event_id: Annotated[
            int, Header(ge=0, le=2**63 - 1, description="Id of the last event that came.")
        ] = 0,
    ) -> StreamingResponse:
        run = await in_thread(parts.context.runs.training, id)
        parts.streams.require_room(caller.person.account)
        return _Stream(parts, run, caller, last_event_id)

    @routes.add(
        "GET",
        "/training-runs/{id}/checkpoints",
        role="viewer",
        summary="Checkpoints of a training, newest first",
    )
    def checkpoints(id: RunId) -> list[CheckpointDocument]:
        found = parts.context.runs.checkpoints(parts.context.runs.training(id))
        return [
            CheckpointDocument(
                step=one.step,
                epoch=one.epoch,
                loss=None if one.loss is None else number_or_none(one.loss),
                bytes=one.bytes,
                at=one.at,
                kept=list(one.kept),
            )
            for one in found
        ]


class _Stream(StreamingResponse):
    """Stream of a training. It is counted from its first byte to its end, also if its client has gone before."""

    def __init__(self, parts: ApiParts, run: ShownRun, caller: PageVisitor, after: int) -> None:
        super().__init__(_events(parts, run, caller, after), media_type="text/event-stream")
        self._open = partial(parts.streams.open, caller.person.account)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open():
            await super().__call__(scope, receive, send)


async def _events(parts: ApiParts, run: ShownRun, caller: PageVisitor, after: int) -> AsyncIterator[str]:
    """Yield the events of a stream. It ends with the run, with the account of its reader, or with the ledger.

    Its answer began long ago. So if a server goes away, the client asks again, and then gets the reason as a problem.
    """
    try:
        async for text in _told(parts, run, caller, after):
            yield text
    except Exception as error:
        if not has_remedy(error):
            raise
        _LOG.warning("the stream of the run %s ends: %s", run.id, error)


async def _told(parts: ApiParts, run: ShownRun, caller: PageVisitor, after: int) -> AsyncIterator[str]:
    runs, spoke = parts.context.runs, time.monotonic()
    yield "retry: 2000\n\n"
    while await in_thread(parts.callers.is_still_here, caller):
        state = await in_thread(runs.state, run.id)  # before the points, so that the end follows all of them
        points = await in_thread(runs.metrics, run, after)
        for one in points:
            yield f"id: {one.place}\nevent: metrics\ndata: {_data(one)}\n\n"
            after = one.place
        if not points and state in ENDED:
            yield f"event: end\ndata: {json.dumps({'state': state})}\n\n"
            return
        if points:
            spoke = time.monotonic()
        elif time.monotonic() - spoke > COMMENT_SECONDS:
            yield ": waiting\n\n"
            spoke = time.monotonic()
        await asyncio.sleep(POLL_SECONDS)


def _data(point: MetricsPoint) -> str:
    values = {name: number_or_none(value) for name, value in point.values.items()}
    return json.dumps({"step": point.step, "at": point.at.isoformat(), "values": values})
