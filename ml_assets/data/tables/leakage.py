"""Leakage test on partitions in the lake.

Here: choosing the partitions to test, reading the rows they are built from, and a new process for the function, where
it cannot use values that it kept from earlier calls. Not here: comparing two builds (features.cut_and_rebuild), and
starting the test (cli, components).
"""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import polars as pl

from ml_assets.data.features.cut_and_rebuild import Alone, Build, KnowledgeRule, LeakReport, leak_test
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import InputTable
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.user_code import FeatureFunctionError, building


@contextmanager
def in_fresh_process(function: Build, path: str) -> Generator[Build]:
    """Yield `function`, declared as `path` (`package.module.function`), as a callable that runs in one new process.

    The callable raises `FeatureFunctionError` if the function fails or ends its process.
    """
    place = _importable(function) or path
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:

        def build(inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
            try:
                return pool.submit(_call, place, dict(inputs), first, last).result()
            except BrokenProcessPool as error:
                raise FeatureFunctionError(
                    f"the process of {place} died, perhaps for lack of memory: test fewer partitions (--first)"
                ) from error

        yield build


def _call(place: str, inputs: Mapping[str, pl.DataFrame], first: date, last: date) -> pl.DataFrame:
    return building(_found(place))(inputs, first, last)


def _importable(function: Any) -> str:
    """Return the path under which the function's module holds it; empty for a function that a factory made."""
    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        return place if _found(place) is function else ""
    except (ImportError, AttributeError, ValueError):
        return ""


def _found(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)


TESTED_PARTITIONS = 28
"""Partitions that are tested by default: the newest of the table."""
_LENGTHS = {"hourly": timedelta(hours=1), "daily": timedelta(days=1), "weekly": timedelta(days=7)}
"""Cadence of an input → length of the leaks that the test finds. Of a month and more, 28 days."""
_ALONE = 2
"""Partitions that the test also builds alone: the newest of those tested."""


@dataclass(frozen=True, kw_only=True)
class FeatureDeclaration:
    """Part of a feature table's declaration that the test needs."""

    table: str
    """Table id."""
    function: Build
    path: str
    """`package.module.function` of `function`, as declared."""
    inputs: Sequence[InputTable]
    known_at: Mapping[str, Sequence[KnowledgeRule]]
    """Input table → rules for the moment when its facts became known. An input without an entry cannot be tested."""
    cadence: Cadence
    primary_key: Sequence[str]
    labels: Sequence[str]
    predicted_at: str
    partition_date: str
    hidden: Sequence[str]
    """Columns whose values never appear in messages."""


def find_leaks(
    reader: TableReader, declared: FeatureDeclaration, keys: Sequence[str], cuts: int | None = None
) -> LeakReport:
    """Rebuild partitions `keys` (sorted, at least one) with the future hidden and compare with one build of all.

    Hides the future at `cuts` moments; by default at those that find a leak as long as the shortest partition of an
    input. Also builds each of the last two partitions alone. Reads the inputs at the
    reader's commit, but not the table's own rows. Raises `LeakTestError` if the declaration does not allow the test,
    `FeatureFunctionError` if the function fails.
    """
    with in_fresh_process(declared.function, declared.path) as rebuild:
        return leak_test(
            building(declared.function),
            {
                one.table: reader.scan(one.table, _around(reader, one, keys)).collect()
                for one in declared.inputs
            },
            declared.known_at,
            declared.cadence.bounds(keys[0])[0],
            declared.cadence.bounds(keys[-1])[1],
            primary_key=declared.primary_key,
            labels=declared.labels,
            predicted_at=declared.predicted_at,
            cuts=_length_to_find(declared) if cuts is None else cuts,
            hidden=declared.hidden,
            rebuild=rebuild,
            alone=[_alone(reader, declared, key) for key in keys[-_ALONE:]] if len(keys) > 1 else (),
            partition_date=declared.partition_date,
        )


def _length_to_find(declared: FeatureDeclaration) -> timedelta:
    kinds = [one.cadence.kind for one in declared.inputs if one.cadence.kind != "none"]
    return min(_LENGTHS.get(kind, timedelta(days=28)) for kind in kinds or [declared.cadence.kind])


def newest_partitions(cadence: Cadence, keys: Sequence[str]) -> Sequence[str]:
    """Return the newest `TESTED_PARTITIONS` among `keys` on main, without those of an earlier cadence."""
    return cadence.newest_of(keys, TESTED_PARTITIONS)


def _around(reader: TableReader, source: InputTable, keys: Sequence[str]) -> Sequence[str]:
    """Return the partitions of `source` that a build of the range reads and that the lake has."""
    have = reader.keys(source.table)
    if source.cadence.kind == "none":
        return have
    first, last = source.needed_for(keys[0])[0], source.needed_for(keys[-1])[-1]
    return [key for key in have if first <= key <= last and source.cadence.is_key(key)]


def _alone(reader: TableReader, declared: FeatureDeclaration, key: str) -> Alone:
    """Return `key` with the input rows within its lookbacks. Partitions that the lake lacks are left out there, too."""
    rows = {
        one.table: reader.scan(
            one.table, [needed for needed in one.needed_for(key) if needed in reader.digests(one.table)]
        ).collect()
        for one in declared.inputs
    }
    first, last = declared.cadence.bounds(key)
    return Alone(key=key, first=first, last=last, inputs=rows)
