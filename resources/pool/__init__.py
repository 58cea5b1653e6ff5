"""Pools that run the tasks of a range: the protocol, its errors, and what crosses the border of a process.

A task is a function of a module and a small value: a commit id, keys, addresses. It reads and writes files itself, so a
pool passes no frames. Results come in the order of the items, and do not depend on the pool, on the number of workers,
or on workers that died.

`processes.py`: workers of this machine. `ray_pool.py`: workers of a Ray cluster. `schedule.py`: which task runs next.
`code_text.py`: the version of the code that a worker has. `exchange.py`: ways of files to and from workers.
`shared.py`: a value that many tasks read. Here: the pool of this process alone. Not here: the tasks.
"""

import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic, Protocol, TypeVar

from resources.memory import explained
from resources.pool.code_text import code_here, version_here
from resources.words import name_some

Item = TypeVar("Item")
Result = TypeVar("Result")


class PoolError(Exception):
    """Base of all errors of a pool."""


class TaskNotImportable(PoolError):
    """A worker cannot import the function of a task: it is nested, a lambda, or of the program itself."""


class TaskFailed(PoolError):
    """A task raised an error, which is the `__cause__` if it could leave its process."""

    def __init__(self, name: str, kind: str, said: str) -> None:
        """`name`: of the task. `kind`, `said`: name of the error's type, and its message."""
        super().__init__(f"{name}: {kind}: {said}")
        self.name = name
        self.kind = kind
        self.said = said


class WorkerDied(PoolError):
    """A task ended its worker as often as it was tried."""


class WorkerHasOtherCode(PoolError):
    """A worker has another version of the code than this process."""


class PoolRefused(PoolError):
    """The settings of a pool do not fit together."""


class PoolUnavailable(PoolError):
    """The cluster of a pool does not answer, or was lost. The same run may succeed later."""


@dataclass(frozen=True)
class Handover(Generic[Item, Result]):
    """Way of a large result out of a worker: as files. In the process of the caller, a result stays what it is."""

    send: Callable[[Item, Result], Any]
    """Write the result to files; return what the caller needs to find them. A function of a module: it runs in the
    worker."""
    receive: Callable[[Any], Result]
    """Return the result that `send` wrote. Runs in the process of the caller."""


class PartitionPool(Protocol):
    """Runs the tasks of a range."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Mapping[str, Item],
        handover: Handover[Item, Result] | None = None,
        at_once: int | None = None,
    ) -> Generator[Result]:
        """Yield `function(item)` for each of `items`, in their order. A name of `items` stands in errors.

        `function` is a function of a module, and each item can be pickled. Tasks run ahead of the caller, by two for
        each worker; never more than `at_once` run at the same time. A task whose worker died runs again. Close the
        iterator to end the tasks in progress.

        Raises `TaskFailed` at the turn of the task that failed, `WorkerDied`, `WorkerHasOtherCode` and
        `TaskNotImportable`.
        """
        ...

    def kept(self) -> AbstractContextManager["PartitionPool"]:
        """Yield a pool whose workers, once started, stay from one `map` to the next and end with the block.

        For passes over the same partitions: a worker takes a second of CPU to start. Ranges that are open at the same
        time each have workers of their own, as those of two pools.
        """
        ...


class ThisProcess:
    """Pool without workers: one task after the other, in the process of the caller."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Mapping[str, Item],
        handover: Handover[Item, Result] | None = None,
        at_once: int | None = None,
    ) -> Generator[Result]:
        """See `PartitionPool`."""
        import_path(function)
        for name, item in items.items():
            yield run_here(function, name, item)

    def kept(self) -> AbstractContextManager[PartitionPool]:
        """Return this pool."""
        return nullcontext(self)


HERE = ThisProcess()
"""The pool of code that was given none."""


@contextmanager
def raising_as_here(*kinds: type[Exception]) -> Generator[None]:
    """Raise an error of `kinds`, if a task of the block raised it, in place of its `TaskFailed`.

    For errors that name their partition themselves, so that callers see the same types with and without a pool.
    """
    own: BaseException | None = None
    try:
        yield
    except TaskFailed as error:
        if not isinstance(error.__cause__, kinds):
            raise
        own = error.__cause__
    if own is not None:  # outside of the handler: neither error is behind the other
        raise own


def run_here(function: Callable[[Item], Result], name: str, item: Item) -> Result:
    """Return the result of a task in this process. Raises `TaskFailed`."""
    try:
        return function(item)
    except BaseException as error:
        # The author's `sys.exit` ends his task, not the run. A panic of polars is no `Exception`.
        if isinstance(error, Exception | SystemExit) or type(error).__name__ == "PanicException":
            raise TaskFailed(name, type(error).__name__, _said(error)) from error
        raise


def import_path(function: Callable[..., Any]) -> str:
    """Return `module:name` of a function that every worker can import. Raises `TaskNotImportable`."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module and name and module != "__main__" and "<" not in name:
        return f"{module}:{name}"
    raise TaskNotImportable(
        f"a worker cannot import {name or function!r} of {module}: define it with def at the top of a module"
    )


@dataclass(frozen=True, kw_only=True)
class Call:
    """A task on its way to a worker. The item is read when the worker's code was compared."""

    name: str
    function: str
    """`module:name`, as of `import_path`."""
    send: str
    """The same of `Handover.send`; empty without one."""
    item: bytes
    """The pickled item."""
    code: Mapping[str, str]
    """Versions of code in the process of the caller: `code_here`."""
    threads: int
    """Threads of polars there. The order in which it adds the floats of a column depends on their number."""


@dataclass(frozen=True, kw_only=True)
class TaskOutcome:
    """Outcome of a call. The first field that is set counts."""

    other_code: str = ""
    """Difference between the worker's code and the caller's, with the worker's name."""
    failed: tuple[str, str, str] | None = None
    """Name of the task, type and message of its error."""
    cause: Exception | None = None
    """The task's own error, if it can be pickled."""
    result: Any = None

    def get(self) -> Any:
        """Return the result. Raises `TaskFailed` and `WorkerHasOtherCode`."""
        if self.other_code:
            raise WorkerHasOtherCode(
                f"{self.other_code}: let the workers run the image and the folder of this process. No task ran there"
            )
        if self.failed is not None:
            raise TaskFailed(*self.failed) from self.cause
        return self.result


def call_of(
    function: Callable[[Item], Result], handover: Handover[Item, Result] | None, name: str, item: Item
) -> Call:
    """Return a task as a call. Raises `TaskNotImportable`."""
    return Call(
        name=name,
        function=import_path(function),
        send=import_path(handover.send) if handover else "",
        item=pickle.dumps(item),
        code=code_here(),
        threads=importlib.import_module("polars").thread_pool_size(),
    )


def run_call(call: Call, worker: str) -> TaskOutcome:
    """Run a call in this process, a worker called `worker`. An error of the task is an answer, too."""
    if differing := [
        f"{what} has version {found} in worker {worker} and {version} in this run"
        for what, version in call.code.items()
        if (found := version_here(what)) != version
    ]:
        return TaskOutcome(other_code=name_some(differing))
    if "polars" not in sys.modules:
        os.environ["POLARS_MAX_THREADS"] = str(call.threads)
    try:
        item = pickle.loads(call.item)
        result = _named(call.function)(item)
        return TaskOutcome(result=_named(call.send)(item, result) if call.send else result)
    except (
        BaseException
    ) as error:  # also `sys.exit` and a panic of polars: the pool would raise it in the caller
        # Where it happened is lost with the worker's frames.
        error.add_note(f"in worker {worker}:\n{''.join(traceback.format_tb(error.__traceback__))}")
        # The limit and the peak are those of this process, and what is behind the error stays here.
        said = explained(_said(error), error)
        failed = (call.name, type(error).__name__, said)
        return TaskOutcome(failed=failed, cause=portable(error))


def answer_to(call: Call, worker: str) -> bytes:
    """Run a call as `run_call` does; return the pickled outcome. A result that cannot be pickled fails the task."""
    outcome = run_call(call, worker)
    try:
        return pickle.dumps(outcome)
    except Exception as error:  # each class may have reasons of its own
        return pickle.dumps(failed_outcome(call, error, portable(error)))


def read_answer(call: Call, answer: bytes) -> TaskOutcome:
    """Return the outcome in an answer to `call`. One that cannot be read here fails the task."""
    try:
        return pickle.loads(answer)
    except Exception as error:  # as of a class that only the worker can import
        return failed_outcome(call, error, error)


def failed_outcome(call: Call, error: BaseException, cause: Exception | None) -> TaskOutcome:
    """Return the outcome of a call that raised `error`."""
    return TaskOutcome(failed=(call.name, type(error).__name__, _said(error)), cause=cause)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as in_text:  # an author's `__str__` raises anything
        return f"its text cannot be read: {type(in_text).__name__}"


def _named(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return reduce(getattr, name.split("."), importlib.import_module(module))


def portable(error: BaseException | None) -> Exception | None:
    """Return `error` as it arrives elsewhere.

    An error that cannot be pickled and read again becomes one of its nearest base that can, with the same message: by
    its base, a failed connection is tried again. Without such a base, and for an error that ends a process: None.
    """
    if not isinstance(error, Exception):
        return None
    try:
        found = pickle.loads(pickle.dumps(error))
        return found if isinstance(found, Exception) else None
    except Exception:  # an `__init__` of other arguments raises anything
        return _as_base(error)


def _as_base(error: Exception) -> Exception | None:
    for base in type(error).__mro__[1:]:
        if issubclass(base, Exception) and base is not Exception:  # which says no more than None
            with suppress(Exception):
                return pickle.loads(pickle.dumps(base(_said(error))))
    return None
