"""Routes of a training while it runs: its metrics as server-sent events, and its checkpoints.

An event's id is the place of its point among Dagster's events. A client that lost its connection sends the last one as
`Last-Event-ID`, and gets every later point once.
"""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ml_assets.context.runs import ENDED, MOST_POINTS, MetricsPoint, ShownRun, State
from ml_assets.extras.api.frame import ApiParts, Caller, Routes, in_thread
from ml_assets.extras.api.shapes import CheckpointDocument, RunId, number_or_none
from ml_assets.extras.governance.proxy.persons import PageVisitor
from resources.words import has_remedy

_LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.5
"""Seconds between two looks at a training, for all its listeners together."""
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
    feeds: dict[str, _Feed] = {}  # run → what its streams share

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
        return _Stream(feeds, parts, run, caller, last_event_id)

    @routes.add(
        "GET",
        "/training-runs/{id}/checkpoints",
        role="viewer",
        summary="Checkpoints of a training, newest first",
        kept_while=(parts.read.run(), parts.read.checkpoints()),
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

    def __init__(
        self, feeds: "dict[str, _Feed]", parts: ApiParts, run: ShownRun, caller: PageVisitor, after: int
    ) -> None:
        super().__init__(_events(feeds, parts, run, caller, after), media_type="text/event-stream")
        self._open = partial(parts.streams.open, caller.person.account)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open():
            await super().__call__(scope, receive, send)


async def _events(
    feeds: "dict[str, _Feed]", parts: ApiParts, run: ShownRun, caller: PageVisitor, after: int
) -> AsyncIterator[str]:
    """Yield the events of a stream. It ends with the run, with the account of its reader, or with the ledger.

    Its answer began long ago. So if a server goes away, the client asks again, and then gets the reason as a problem.
    """
    try:
        async for text in _told(feeds, parts, run, caller, after):
            yield text
    except Exception as error:
        if not has_remedy(error):
            raise
        _LOG.warning("the stream of the run %s ends: %s", run.id, error)


async def _told(
    feeds: "dict[str, _Feed]", parts: ApiParts, run: ShownRun, caller: PageVisitor, after: int
) -> AsyncIterator[str]:
    spoke = time.monotonic()
    yield "retry: 2000\n\n"
    async with _feed_of(feeds, parts, run, after) as feed:
        looks = 0
        while await _is_still_here(parts, caller):
            points = await feed.after(after)
            for one in points:
                yield one.text
                after = one.place
            if points:
                spoke = time.monotonic()
                continue
            if feed.has_ended:
                yield f"event: end\ndata: {json.dumps({'state': feed.state})}\n\n"
                return
            if time.monotonic() - spoke > COMMENT_SECONDS:
                yield ": waiting\n\n"
                spoke = time.monotonic()
            looks = await feed.look_after(looks)


async def _is_still_here(parts: ApiParts, caller: PageVisitor) -> bool:
    return parts.callers.is_known(caller) or await in_thread(parts.callers.is_still_here, caller)


@dataclass(frozen=True)
class _Told:
    """Point as an event."""

    place: int
    text: str

    @classmethod
    def of(cls, point: MetricsPoint) -> "_Told":
        values = {name: number_or_none(value) for name, value in point.values.items()}
        data = json.dumps({"step": point.step, "at": point.at.isoformat(), "values": values})
        return cls(point.place, f"id: {point.place}\nevent: metrics\ndata: {data}\n\n")


class _Feed:
    """Newest points of one training. One task reads them for all its listeners, however many these are."""

    def __init__(self, parts: ApiParts, run: ShownRun, after: int) -> None:
        self.listeners = 0
        self.state, self.has_ended = "", False
        self._parts, self._run = parts, run
        self._from = self._newest = after
        """The feed holds all points from here on; and the place of the last point it read."""
        self._points: deque[_Told] = deque()
        self._looks = 0
        self._error: Exception | None = None
        self._looked = asyncio.Condition()
        self._task = asyncio.create_task(self._follow())

    @property
    def is_broken(self) -> bool:
        """True once its storage did not answer."""
        return self._error is not None

    async def after(self, place: int) -> Sequence[_Told]:
        """Return points after a place, oldest first; those that the feed no longer holds from Dagster's storage."""
        if place < self._from:
            return [*map(_Told.of, await in_thread(self._parts.context.runs.metrics, self._run, place))]
        return [one for one in self._points if one.place > place]

    async def look_after(self, looks: int) -> int:
        """Wait until the feed has looked more often than `looks`; return how often. Raise what ended it."""
        async with self._looked:
            await self._looked.wait_for(lambda: self._looks > looks or self._error is not None)
        if self._error is not None:
            raise self._error
        return self._looks

    def close(self) -> None:
        """End the task."""
        self._task.cancel()

    async def _follow(self) -> None:
        while not self.has_ended:
            is_behind = False
            try:
                state, points = await in_thread(self._look)
                self._take(state, points)
                is_behind = len(points) >= MOST_POINTS
            except Exception as error:  # any: each listener tells it
                self._error = error
            async with self._looked:
                self._looked.notify_all()
            if self._error is not None:
                return
            await asyncio.sleep(0 if is_behind else POLL_SECONDS)

    def _take(self, state: State, points: Sequence[MetricsPoint]) -> None:
        self._points.extend(map(_Told.of, points))
        if points:
            self._newest = points[-1].place
        while len(self._points) > MOST_POINTS:
            self._from = self._points.popleft().place
        self.state, self.has_ended = state, not points and state in ENDED
        self._looks += 1

    def _look(self) -> tuple[State, Sequence[MetricsPoint]]:
        self._parts.callers.keep_fresh()
        runs = self._parts.context.runs
        state = runs.state(self._run.id)  # before the points, so that the end follows all of them
        return state, runs.metrics(self._run, self._newest)


@asynccontextmanager
async def _feed_of(
    feeds: dict[str, _Feed], parts: ApiParts, run: ShownRun, after: int
) -> AsyncIterator[_Feed]:
    """Yield the feed of a run, which lives as long as it has listeners and its storage answers."""
    feed = feeds.get(run.id)
    if feed is None or feed.is_broken:
        feed = feeds[run.id] = _Feed(parts, run, after)
    feed.listeners += 1
    try:
        yield feed
    finally:
        feed.listeners -= 1
        if not feed.listeners:
            feed.close()
        if (not feed.listeners or feed.is_broken) and feeds.get(run.id) is feed:
            del feeds[run.id]
