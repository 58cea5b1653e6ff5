"""Order of tasks over workers: which runs next, which runs again, and which result the caller gets.

A range begins in the process of the caller, because workers take seconds to start. They start when the tasks so far
took long, and the rest will take as long again. Not here: processes and Ray, which implement `Workers`.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, closing
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from resources.pool import (
    Call,
    Handover,
    Item,
    Result,
    TaskOutcome,
    WorkerDied,
    call_of,
    import_path,
    run_here,
)
from resources.pool.code_text import code_here, is_edited

_log = logging.getLogger(__name__)

ATTEMPTS = 3
"""Workers that a task may end before the run gives up."""
AHEAD = 2
"""Tasks for each worker that are started before the caller asks: one runs, and the next one waits for its end."""

Handle = TypeVar("Handle")


class TaskLost(Exception):
    """The worker of a task died before its answer."""

    def __init__(self, said: str, *, began: bool = True) -> None:
        """`began`: False if the task still waited for the worker, which another task ended."""
        super().__init__(said)
        self.began = began


class Workers(Protocol[Handle]):
    """Started workers."""

    @property
    def number(self) -> int:
        """Tasks that run at the same time."""
        ...

    def start(self, call: Call) -> Handle:
        """Give a call to a worker; return without waiting."""
        ...

    def wait(self, handles: Collection[Handle]) -> Collection[Handle]:
        """Return those of `handles` that have ended; wait until there is one."""
        ...

    def answer(self, handle: Handle) -> TaskOutcome:
        """Return the answer of an ended call. Raises `TaskLost`."""
        ...


def mapped(
    function: Callable[[Item], Result],
    items: Mapping[str, Item],
    handover: Handover[Item, Result] | None,
    seconds_here: float,
    workers_for: Callable[[int], AbstractContextManager[Workers[Any]]],
) -> Generator[Result]:
    """Yield the results of all items: of the first in this process, of the rest by the workers for their number.

    If a file of the code was edited since this process read it, workers would import other code: all tasks run here.
    """
    import_path(function)  # refuse it also if all tasks run here
    code_here()  # while the files are those that this process imported
    left = yield from begun_here(function, items, seconds_here)
    if not left:
        return
    if is_edited():
        _log.warning("the code was edited since this run began, so no worker helps: it would import the edit")
        yield from begun_here(function, left, math.inf)
        return
    call_for = partial(call_of, function, handover)
    with workers_for(len(left)) as workers, closing(in_order(call_for, left, workers)) as results:
        for result in results:
            yield result if handover is None else handover.receive(result)


def begun_here(
    function: Callable[[Item], Result], items: Mapping[str, Item], seconds: float
) -> Generator[Result, None, Mapping[str, Item]]:
    """Yield results of the first tasks, run in this process; return the items that are left for workers.

    Items are left when the tasks took `seconds`, and the others will take as long by the mean so far.
    """
    spent = 0.0
    for number, (name, item) in enumerate(items.items()):
        left = len(items) - number
        if left > 1 and spent >= seconds and spent * left >= seconds * number:
            return dict(islice(items.items(), number, None))
        began = time.monotonic()
        result = run_here(function, name, item)
        spent += time.monotonic() - began
        yield result
        del result  # or it would stay in memory while the next task runs
    return {}


def in_order(
    call_for: Callable[[str, Item], Call], items: Mapping[str, Item], workers: Workers[Any]
) -> Generator[Any]:
    """Yield the result of each item in their order. Raises what `TaskOutcome.get` raises, at the turn of its item.

    A call whose worker died is started again, before any other. Raises `WorkerDied` after `ATTEMPTS` of them.
    """
    waiting = deque(enumerate(items.items()))
    running: dict[Any, tuple[int, Call]] = {}
    answers: dict[int, TaskOutcome] = {}
    deaths: dict[int, int] = {}

    def fill(turn: int) -> None:
        while waiting and waiting[0][0] < turn + AHEAD * workers.number:
            number, (name, item) = waiting.popleft()
            call = call_for(name, item)
            running[workers.start(call)] = number, call

    for turn in range(len(items)):
        fill(turn)
        while turn not in answers:
            for handle in workers.wait(running):
                number, call = running.pop(handle)
                try:
                    answers[number] = workers.answer(handle)
                except TaskLost as error:
                    deaths[number] = deaths.get(number, 0) + error.began
                    if deaths[number] == ATTEMPTS:
                        raise WorkerDied(_explain(call.name, str(error))) from error
                    running[workers.start(call)] = number, call
        result = answers.pop(turn).get()
        fill(turn + 1)  # the workers go on while the caller uses the result
        yield result
        del result


def _explain(name: str, said: str) -> str:
    return (
        f"{name} ended its worker {ATTEMPTS} times ({said}). Most often its memory ran out: give each task less with a "
        "smaller ML_ASSETS_CHUNK_MIB, run fewer at once with ML_ASSETS_POOL_WORKERS, or give the workers more memory"
    )
