"""Answers of reads that are kept until what they were made from changes.

A route names the parts of the platform that its answer is made from, such as the commit of main or the row of a run
(`parts_read`). A kept answer is sent only after a look at these parts, which is a small query, found them unchanged.
Looks are shared: a request takes the result of a look that began after the request came. So no answer is older than its
request, and nobody sees an older state than the one before. Not here: time, which makes no answer old.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response


@dataclass(frozen=True)
class PartLook:
    """Look at the present state of a part of the platform."""

    place: str
    """Server or file that is asked. Each place has a thread of its own, so that a slow one holds up no other."""
    name: Hashable
    """Name of the part at its place."""
    see: Callable[[], Hashable]
    """Returns the state, such as a commit; None if it cannot tell, so that no answer may be kept."""


Part = Callable[[Mapping[str, Any]], PartLook]
"""Returns the look at a part, from the parameters of a request's path."""
MOST_ANSWERS, MOST_BYTES, MOST_BYTES_OF_ONE = 4_000, 64 * 2**20, 2**20
"""Answers that are kept at once, their bytes together with those of their requests' paths, and those of one."""


@dataclass
class _Making:
    """Answer that a request is made of now."""

    looks: Sequence[PartLook] = ()
    seen: tuple[Hashable, ...] = ()
    """State of each part, before the answer was made."""


@dataclass(frozen=True)
class _Kept:
    looks: Sequence[PartLook]
    seen: tuple[Hashable, ...]
    body: bytes
    media_type: str
    size: int
    """Bytes of the body, and of the path and the parameters under which it is kept: a client may repeat these."""


class _Place:
    """Looks at one place, in turns: all that wait make the next turn. Of one event loop."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"looks-{name}")
        self._waiting: dict[Hashable, tuple[PartLook, asyncio.Future[Hashable]]] = {}
        self._is_looking = False

    def seen(self, look: PartLook) -> "asyncio.Future[Hashable]":
        """Return the result of a look that has not begun yet."""
        if (known := self._waiting.get(look.name)) is not None:
            return known[1]
        future: asyncio.Future[Hashable] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_forget_error)
        self._waiting[look.name] = look, future
        if not self._is_looking:
            self._begin()
        return future

    def close(self) -> None:
        """End the thread once it has nothing to do."""
        self._thread.shutdown(wait=False)

    def _begin(self) -> None:
        turn, self._waiting = [*self._waiting.values()], {}
        futures = [future for _, future in turn]
        try:
            done = asyncio.get_running_loop().run_in_executor(
                self._thread, _look_at, [one for one, _ in turn]
            )
        except RuntimeError as error:  # no thread can begin: the next look tries again
            self._end(futures, [error] * len(futures))
            return
        self._is_looking = True
        done.add_done_callback(lambda found: self._end(futures, found.result()))

    def _end(
        self, futures: Sequence["asyncio.Future[Hashable]"], found: Sequence[Hashable | Exception]
    ) -> None:
        self._is_looking = False
        for future, result in zip(futures, found, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        if self._waiting:
            self._begin()


def _look_at(looks: Sequence[PartLook]) -> list[Hashable | Exception]:
    found: list[Hashable | Exception] = []
    for one in looks:
        try:
            found.append(one.see())
        except Exception as error:  # any: it belongs to the requests that wait
            found.append(error)
    return found


def _forget_error(future: "asyncio.Future[Hashable]") -> None:
    """Mark the error of a look as seen: all who waited for it may have left."""
    if not future.cancelled():
        future.exception()


_MAKING: ContextVar[_Making | None] = ContextVar("making", default=None)


@dataclass
class KeptAnswers:
    """Answers of one server. Of one event loop."""

    _kept: OrderedDict[Hashable, _Kept] = field(default_factory=OrderedDict[Hashable, _Kept])
    _bytes: int = 0
    _places: dict[str, _Place] = field(default_factory=dict[str, _Place])
    _in_the_making: dict[Hashable, "asyncio.Future[None]"] = field(
        default_factory=dict[Hashable, "asyncio.Future[None]"]
    )

    async def of(self, request: Request, make: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        """Return the kept answer to `request` if its parts did not change, or the one that `make` makes.

        Of requests for the same answer, one makes it. The others wait for it once, and look again.
        """
        key = request.scope["path"], request.scope["query_string"]
        if (known := await self._unchanged(key)) is not None:
            return known
        if (other := self._in_the_making.get(key)) is not None:
            await asyncio.wait([other])
            if (known := await self._unchanged(key)) is not None:
                return known
        ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_the_making.setdefault(key, ends)
        making = _Making()
        token = _MAKING.set(making)
        try:
            made = await make()
            self._keep(key, making, made)
        finally:
            _MAKING.reset(token)
            ends.set_result(None)
            if self._in_the_making.get(key) is ends:
                del self._in_the_making[key]
        return made

    def close(self) -> None:
        """End the threads."""
        for place in self._places.values():
            place.close()

    async def before(self, parts: Sequence[Part], parameters: Mapping[str, Any]) -> None:
        """Look at the parts from which the present request's answer is about to be made."""
        if (making := _MAKING.get()) is not None:
            making.looks = [one(parameters) for one in parts]
            for one in making.looks:
                making.seen = *making.seen, *await self._look([one])
                if making.seen[-1] is None:
                    return  # the answer is not kept: further looks, as at a server, would be in vain

    async def _unchanged(self, key: tuple[str, bytes]) -> Response | None:
        kept = self._kept.get(key)
        if kept is None or await self._look(kept.looks) != kept.seen:
            return None
        if key in self._kept:
            self._kept.move_to_end(key)
        return Response(kept.body, media_type=kept.media_type)

    async def _look(self, looks: Sequence[PartLook]) -> tuple[Hashable, ...]:
        seen = [self._place(one.place).seen(one) for one in looks]
        return tuple([await asyncio.shield(one) for one in seen])  # others wait for them, too

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            self._places[name] = _Place(name)
        return self._places[name]

    def _keep(self, key: tuple[str, bytes], making: _Making, made: Response) -> None:
        if (old := self._kept.pop(key, None)) is not None:
            self._bytes -= old.size
        is_known = bool(making.looks) and None not in making.seen
        if made.status_code != 200 or not is_known or len(made.body) > MOST_BYTES_OF_ONE:
            return
        size = len(made.body) + sum(map(len, key))
        self._kept[key] = _Kept(making.looks, making.seen, bytes(made.body), made.media_type or "", size)
        self._bytes += size
        while len(self._kept) > MOST_ANSWERS or self._bytes > MOST_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size
