"""Partitions of a source that workers read: those of one reader, and its faults."""

import os
from collections.abc import Mapping
from datetime import date
from email.message import Message
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import polars as pl

from ml_assets.components.failures import OUT_OF_REACH
from ml_assets.data.sources.kinds import open_source, read_partitions
from ml_assets.data.sources.protocol import PartitionOpen, SourceTable
from ml_assets.data.sources.python_source import PythonSource
from ml_assets.data.sources.workers import read_by_workers
from ml_assets.data.tables.publish.prepare import MadePartition, make
from ml_assets_tests.tables import orders_table
from resources.platform import Platform
from resources.settings import Settings

HERE = "ml_assets_tests.sources.test_source_workers"
SILENT, BROKEN, OPEN = "2013-01-03", "2013-01-05", "2013-01-06"


def read_orders(first: date) -> pl.DataFrame:
    """Return the orders of a day. One day's server is silent, and a value of another day is broken."""
    if first.isoformat() == SILENT:
        raise ConnectionError("no answer")
    if first.isoformat() == BROKEN:
        raise ZeroDivisionError("no orders")
    return orders_table.day(first.isoformat())


def read_processes(first: date) -> pl.DataFrame:
    """Return the process that reads a day."""
    return orders_table.day(first.isoformat(), rows=1).with_columns(order=pl.lit(os.getpid(), pl.Int64))


def read_busy(first: date) -> pl.DataFrame:
    """Ask a server that is busy. The error holds its open answer, which cannot be pickled."""
    raise HTTPError("http://orders", 503, "busy", Message(), BufferedReader(FileIO(os.devnull)))


def _require_closed(key: str) -> None:
    if key >= OPEN:
        raise PartitionOpen(f"{key} has not ended")


SECTION = PythonSource(function=f"{HERE}.read_orders", at_once=2)
TABLE = SourceTable(name=orders_table.ORDERS, contract=orders_table.CONTRACT, start=orders_table.FIRST)


def _platform(home: Path, **pool: Any) -> Platform:
    return Platform(Settings.model_validate({"home": home, "pool_after_seconds": 0, **pool}))


def test_workers_read_the_partitions_of_one_reader(tmp_path: Path) -> None:
    """With the same reasons where there are none, and the errors behind them, by which a run is repeated."""
    spec, keys, platform = orders_table.spec(), orders_table.keys(7), _platform(tmp_path, pool_workers=2)
    reader = open_source(SECTION, TABLE, platform)
    alone = [make(spec, one) for one in read_partitions(reader, spec.cadence, keys, _require_closed)]
    found = list(read_by_workers(platform, SECTION, TABLE, spec, keys, _require_closed))
    assert [_facts(one) for one in found] == [_facts(one) for one in alone]
    assert [one.key for one in found if one.ready is None] == [SILENT, BROKEN, OPEN, "2013-01-07"]
    causes = [type(one.cause) for one in found if one.ready is None]
    assert causes == [ConnectionError, ZeroDivisionError, PartitionOpen, PartitionOpen]


def _facts(one: MadePartition) -> Mapping[str, Any]:
    return {
        "key": one.key,
        "failed": one.failed,
        "memory": one.memory,
        "stored": one.ready and one.ready.stored,
        "undated": one.ready and one.ready.undated and one.ready.undated.frame.height,
    }


def test_a_busy_server_is_out_of_reach_for_any_pool(tmp_path: Path) -> None:
    """So the step is tried again."""
    section = PythonSource(function=f"{HERE}.read_busy", at_once=2)
    spec, keys = orders_table.spec(), orders_table.keys(2)
    for pool in ({"pool": "in-process"}, {"pool_workers": 2}):
        made = list(read_by_workers(_platform(tmp_path, **pool), section, TABLE, spec, keys, _require_closed))
        assert all("HTTPError: HTTP Error 503: busy" in one.failed for one in made)
        assert all(isinstance(one.cause, OUT_OF_REACH) for one in made)


def test_a_source_is_read_by_as_many_as_it_allows(tmp_path: Path) -> None:
    section = PythonSource(function=f"{HERE}.read_processes", at_once=2)
    spec, platform = orders_table.spec(), _platform(tmp_path, pool_workers=4)
    made = read_by_workers(platform, section, TABLE, spec, orders_table.keys(5), _require_closed)
    processes = {one.ready.frame["order"][0] for one in made if one.ready is not None}
    assert len(processes) == 2
    assert os.getpid() not in processes
