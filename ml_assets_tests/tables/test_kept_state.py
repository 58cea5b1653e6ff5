"""Reads of a feature function that no record sees: kept from earlier calls, or in another process."""

import enum
import functools
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextvars import ContextVar
from datetime import date
from io import StringIO
from itertools import count
from multiprocessing import get_context
from queue import Queue, SimpleQueue
from random import Random
from threading import local
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars import col

from ml_assets.data.tables.derive import WatchedInputs
from ml_assets.data.tables.kept_state import StateKept, keeping_nothing
from ml_assets.data.tables.user_code import FeatureFunctionError
from ml_assets_tests import tables
from ml_assets_tests.tables import a_module_with_memory as shared
from ml_assets_tests.tables.orders_table import ORDERS, OrdersTable, day, days, keys
from ml_assets_tests.tables.test_exact_staleness import SUMS, ask, build, sums

Inputs = Mapping[str, pl.LazyFrame]

KEPT: dict[str, Any] = {}
COUNTS: defaultdict[str, int] = defaultdict(int)
LAST: pl.DataFrame | None = None


class Memory:
    """An object of the author's, with a class variable."""

    seen: dict[str, pl.DataFrame] = {}  # noqa: RUF012 - the fault that is tested

    def __init__(self) -> None:
        self.rows: pl.DataFrame | None = None


MEMORY = Memory()


@functools.cache
def _once() -> list[pl.DataFrame]:
    return []


def in_a_global(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    global LAST
    if LAST is None:
        LAST = sums(inputs, first, last).collect()
    return LAST


def in_a_dict(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    if "rows" not in KEPT:
        KEPT["rows"] = sums(inputs, first, last).collect()
    return KEPT["rows"]


def in_a_counter(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
    COUNTS["calls"] += 1
    return sums(inputs, first, last)


def in_a_default(inputs: Inputs, first: date, last: date, kept: list[Any] = []) -> pl.LazyFrame:  # noqa: B006
    kept.append(inputs)
    return sums(inputs, first, last)


def in_an_attribute(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
    in_an_attribute.rows = sums(inputs, first, last).collect()  # type: ignore[attr-defined]
    return sums(inputs, first, last)


def in_an_object(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
    MEMORY.rows = sums(inputs, first, last).collect()
    return sums(inputs, first, last)


def in_a_class(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
    Memory.seen[str(first)] = sums(inputs, first, last).collect()
    return sums(inputs, first, last)


def in_a_closure() -> Callable[[Inputs, date, date], pl.LazyFrame]:
    """Return a function with a memory."""
    rows: list[pl.DataFrame] = []

    def remembering(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
        rows.append(sums(inputs, first, last).collect())
        return sums(inputs, first, last)

    return remembering


class Step:
    """A step of the author's, with a method that remembers."""

    def run(self, inputs: Inputs, first: date, last: date) -> pl.DataFrame:
        """Return the sums of the first call."""
        return in_a_dict(inputs, first, last)


STEPS_BY_NAME: dict[str, Callable[..., Any]] = {"sums": in_a_dict}
STEPS_IN_ORDER = ([Step()],)


def by_a_table_of_steps(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    return STEPS_BY_NAME["sums"](inputs, first, last)


def by_an_object_in_a_list(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    return STEPS_IN_ORDER[0][0].run(inputs, first, last)


def by_a_default(
    inputs: Inputs, first: date, last: date, step: Callable[..., Any] = in_a_dict
) -> pl.DataFrame:
    return step(inputs, first, last)


def in_a_module_imported_here(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
    from ml_assets_tests.tables import a_module_with_memory

    a_module_with_memory.SEEN.append(first)
    return sums(inputs, first, last)


def in_a_name_imported_here(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
    from ml_assets_tests.tables.a_module_with_memory import SEEN

    SEEN.append(first)
    return sums(inputs, first, last)


NAMESPACE, QUEUE, NUMBERS, TEXT = SimpleNamespace(), Queue[int](), array("d"), StringIO()
COUNTER, OF_THREAD, DRAWN, GENERATOR = count(), local(), Random(1), np.random.default_rng(1)
CONTEXT: ContextVar[int] = ContextVar("context", default=0)
WALK, NUMBERED, PIPE = iter([1, 2, 3]), enumerate("abc"), SimpleQueue[int]()
STEPS = (number for number in range(100))
HOLDERS: dict[str, Callable[[], object]] = {
    "NAMESPACE": lambda: setattr(NAMESPACE, "rows", 1),
    "QUEUE": lambda: QUEUE.put(1),
    "NUMBERS": lambda: NUMBERS.append(1.0),
    "TEXT": lambda: TEXT.write("x"),
    "COUNTER": lambda: next(COUNTER),
    "OF_THREAD": lambda: setattr(OF_THREAD, "rows", 1),
    "DRAWN": lambda: DRAWN.random(),
    "GENERATOR": lambda: GENERATOR.random(),
    "CONTEXT": lambda: CONTEXT.set(1),
    "STEPS": lambda: next(STEPS),
    "WALK": lambda: next(WALK),
    "NUMBERED": lambda: next(NUMBERED),
    "PIPE": lambda: PIPE.put(1),
}
"""Objects of the standard library and numpy that keep something → a call that changes them."""


@pytest.mark.parametrize("name", HOLDERS)
def test_what_an_object_of_the_standard_library_keeps_is_found(name: str) -> None:
    with pytest.raises(StateKept, match=f"{name} is another "), keeping_nothing(HOLDERS[name]):
        HOLDERS[name]()
    with keeping_nothing(HOLDERS[name]):
        pass


def _unload(patch: pytest.MonkeyPatch) -> None:
    """Make the next import of the module its first one, until the test ends."""
    patch.delitem(sys.modules, shared.__name__)
    patch.delattr(tables, "a_module_with_memory")


def _with_a_default(value: int = 1, *, by: int = 2) -> int:
    return shared.scale(value, by)


def _with_an_attribute() -> int:
    return _with_a_default()


_with_an_attribute.title = "of an author"  # type: ignore[attr-defined]


class Kind(enum.Flag):
    """Flags of an author; Python makes their combinations when they are first used."""

    SALE = 1
    GIFT = 2


def _combining_flags() -> Kind:
    return Kind.SALE | Kind.GIFT


def _importing_a_helper() -> int:
    from ml_assets_tests.tables.a_module_with_memory import scale

    return scale(1)


def _importing_a_class() -> int:
    from ml_assets_tests.tables.a_module_with_memory import Rule

    return Rule().of(1)


def _by_names_of_columns() -> pl.DataFrame:
    return pl.DataFrame({"x": [1]}).select(col("x").alias("y"), col.x)


@pytest.mark.parametrize(
    "function",
    [
        _by_names_of_columns,
        _with_a_default,
        _with_an_attribute,
        _combining_flags,
        _importing_a_helper,
        _importing_a_class,
        functools.partial(_with_a_default, by=3),
        lambda: Memory().rows,
    ],
)
@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_function_that_keeps_nothing_is_never_refused(
    monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any], is_loaded: bool
) -> None:
    """Defaults, attributes and constants that nobody changes, also of a module that the first call imports.

    `polars.col` has an attribute of every name.
    """
    if not is_loaded:
        _unload(monkeypatch)
    for _ in range(3):
        with keeping_nothing(function):
            function()


def _of_a_package() -> None:
    import ml_assets_tests.tables

    ml_assets_tests.tables.a_module_with_memory.SEEN.append(1)


def _by_another_name() -> None:
    import ml_assets_tests.tables.a_module_with_memory as other

    other.SEEN.append(1)


def _relative() -> None:
    from . import a_module_with_memory as other

    other.SEEN.append(1)


def _relative_name() -> None:
    from .a_module_with_memory import SEEN

    SEEN.append(1)


def _by_text() -> None:
    import importlib

    importlib.import_module("ml_assets_tests.tables.a_module_with_memory").SEEN.append(1)


def _long() -> Callable[[], None]:
    """Return a function with more than 256 names and constants before its import."""
    lines = [f"if False: print(name_{number}, {number}.5)" for number in range(300)]
    lines += ["from .a_module_with_memory import SEEN", "SEEN.append(1)"]
    variables: dict[str, Any] = {"__package__": __package__, "__name__": __name__}
    exec("\n    ".join(["def long():", *lines]), variables)
    return variables["long"]


@pytest.mark.parametrize(
    "function", [_of_a_package, _by_another_name, _relative, _relative_name, _by_text, _long()]
)
def test_state_is_found_however_its_module_is_imported(function: Callable[[], None]) -> None:
    with (
        pytest.raises(StateKept, match="a_module_with_memory.SEEN is another"),  # noqa: RUF043
        keeping_nothing(function),
    ):
        function()


def test_a_module_imported_by_the_first_call_is_watched_from_the_second_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """State that the first call put into it cannot come from an earlier one."""

    def remembering() -> None:
        from ml_assets_tests.tables import a_module_with_memory

        a_module_with_memory.SEEN.append(1)

    _unload(monkeypatch)
    with keeping_nothing(remembering):
        remembering()
    with pytest.raises(StateKept, match="SEEN is another"), keeping_nothing(remembering):
        remembering()


def by_a_helper(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    return in_a_dict(inputs, first, last)


def in_a_cache(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    """Read the orders in the first call alone, if nobody empties the cache."""
    if not _once():
        _once().append(inputs[ORDERS].collect())
    return sums({ORDERS: _once()[0].lazy()}, first, last).collect()


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    global LAST
    LAST, MEMORY.rows = None, None
    KEPT.clear(), COUNTS.clear(), Memory.seen.clear(), _once.cache_clear()
    vars(in_an_attribute).clear()


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (in_a_global, "test_kept_state.LAST"),
        (in_a_dict, "test_kept_state.KEPT"),
        (in_a_counter, "test_kept_state.COUNTS"),
        (in_a_default, "a default argument of ml_assets_tests.tables.test_kept_state.in_a_default"),
        (in_an_attribute, "an attribute of ml_assets_tests.tables.test_kept_state.in_an_attribute"),
        (in_an_object, "test_kept_state.MEMORY"),
        (in_a_class, "Memory.seen"),
        (in_a_closure(), "rows in ml_assets_tests.tables.test_kept_state.in_a_closure"),
        (by_a_helper, "test_kept_state.KEPT"),
        (by_a_table_of_steps, "test_kept_state.KEPT"),
        (by_an_object_in_a_list, "test_kept_state.KEPT"),
        (by_a_default, "test_kept_state.KEPT"),
        (in_a_module_imported_here, "a_module_with_memory.SEEN"),
        (in_a_name_imported_here, "a_module_with_memory.SEEN"),
    ],
)
def test_what_a_function_keeps_between_calls_is_refused_by_name(
    orders: OrdersTable, function: Callable[..., Any], named: str
) -> None:
    """The second build read nothing, so no change of the orders made it stale."""
    orders.publish(days(2))
    with pytest.raises(FeatureFunctionError, match=r"test_kept_state.py:\d+: .*functools.cache") as error:
        build(orders, SUMS, function, keys(2))
    assert named in str(error.value)


CACHED_STEPS = {"sums": in_a_cache}


def by_a_cached_step(inputs: Inputs, first: date, last: date) -> pl.DataFrame:
    return CACHED_STEPS["sums"](inputs, first, last)


@pytest.mark.parametrize("function", [in_a_cache, by_a_cached_step])
def test_caches_are_emptied_before_each_call(orders: OrdersTable, function: Callable[..., Any]) -> None:
    orders.publish(days(4))
    build(orders, SUMS, function, keys(2))
    build(orders, SUMS, function, keys(2, start=2))
    assert not ask(orders).stale
    orders.publish({keys(4)[3]: day(keys(4)[3], factor=2.0)}, run="correction")
    assert set(ask(orders).stale) == {keys(4)[3]}


def test_an_input_that_no_read_was_seen_of_counts_as_read_whole(orders: OrdersTable) -> None:
    def reads_nothing(_: Inputs, first: date, last: date) -> pl.DataFrame:
        every = pl.date_range(first, last, eager=True).alias("partition_date")
        return every.to_frame().with_columns(amount=pl.lit(1.0))

    orders.publish(days(2))
    build(orders, SUMS, reads_nothing, keys(2))
    orders.publish({keys(1)[0]: day(keys(1)[0], factor=2.0)}, run="correction")
    assert set(ask(orders, 2).stale) == set(keys(2))


def test_a_frame_kept_from_an_earlier_call_cannot_be_read() -> None:
    rows = pl.LazyFrame({"a": [1]})
    with WatchedInputs({"t": rows}) as watched:
        kept = watched.frames["t"]
        assert kept.collect().height == 1
    with pytest.raises(Exception, match="of an earlier call"):
        kept.collect()


def _total(frame: pl.LazyFrame) -> int:
    return frame.select(pl.col("b").sum()).collect().item()


def test_a_thread_is_recorded_and_another_process_is_refused() -> None:
    with WatchedInputs({"t": pl.LazyFrame({"a": [1], "b": [2]})}) as watched:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(_total, watched.frames["t"]).result() == 2
        assert watched.columns_read("t") == ("b",)
        with (
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
            pytest.raises(Exception, match=r"in another process|[Pp]ickle|serialize"),
        ):
            pool.submit(_total, watched.frames["t"]).result()


def test_constants_of_a_module_may_be_read(orders: OrdersTable) -> None:
    """Also large ones, frames and functions of other modules."""
    table = pl.DataFrame({"shop": ["north", "south"]})
    names = {"south": [1, 2, {"a": (3, float("nan"))}]}

    def reading(inputs: Inputs, first: date, last: date) -> pl.LazyFrame:
        assert table.height == 2
        assert len(names) == 1
        return sums(inputs, first, last)

    orders.publish(days(2))
    assert list(build(orders, SUMS, reading, keys(2)).merged) == keys(2)
