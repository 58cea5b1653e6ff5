"""Dagster's pages of many pipelines with long histories, over HTTP, and memory of webserver, code server and daemon.

A home as that of `many_partitions.py` is served as `ml-assets ui` does. The questions are those of Dagster's pages:
lineage of all assets, their newest events, one asset with the state of each partition, and its newest partitions. After
the first ticks of each sensor, measured are the longest of five answers, and the private memory of the processes before
and after `--minutes` in which each sensor ticks and the pages are asked again and again.
`--pipelines 100 --partitions 1000 --minutes 12` is the aim; `--home` serves a home that exists, made with the same
numbers.
"""

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickStatus

from benchmarks._memory import resident_kib
from benchmarks._report import Result, emit
from benchmarks.claims.data._many_pipelines import HOME_HERE, SIMULATED, name_of
from benchmarks.claims.data.many_partitions import MOST_GROWTH_MIB, Simulation
from deployment.testbed.processes import free_port
from ml_assets.cli.ui import Location, pages_and_daemon
from ml_assets.foundation.checkout import ROOT
from resources.settings import Settings
from resources.words import name_some

_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
  locationOrLoadError { ... on PythonError { message } } } } } }"""
_LINEAGE = """{ assetNodes { assetKey { path } groupName isPartitioned isExecutable kinds description
  dependencyKeys { path } dependedByKeys { path } partitionDefinition { description } } }"""
_LIVE = """query Live($keys: [AssetKeyInput!]!) {
  assetNodes(assetKeys: $keys) { assetKey { path } staleStatus partitionStats {
    numMaterialized numPartitions numFailed numMaterializing } assetMaterializations(limit: 1) { runId timestamp } }
  assetsLatestInfo(assetKeys: $keys) { assetKey { path } unstartedRunIds inProgressRunIds
    latestRun { runId status } latestMaterialization { runId timestamp } } }"""
_ASSET = """query Asset($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetMaterializations(limit: 50) { runId timestamp partition metadataEntries { label description } }
  partitionStats { numMaterialized numPartitions numFailed numMaterializing }
  partitionKeyConnection(limit: 100000, ascending: true) { results }
  assetPartitionStatuses { ... on TimePartitionStatuses { ranges { startKey endKey status } } }
  staleStatus } } }"""
_PARTITION = """query Partition($key: AssetKeyInput!, $keys: [String!]!) { assetNodeOrError(assetKey: $key) {
  ... on AssetNode { latestMaterializationByPartition(partitions: $keys) { runId timestamp partition
    metadataEntries { label description } } staleStatusByPartition(partitions: $keys) } } }"""
LIVE_AT_ONCE = 100
"""Assets whose state Dagster's lineage page asks for at once."""
VISITS = 5
FIRST_TICKS = 3
"""Ticks of each sensor before memory is watched. The first one looks at everything, and fills caches."""
SETTLE_MINUTES = 20.0
CODE_SERVER = "code-server"
AUTOMATION = "automation"
"""Sensor whose evaluations Dagster keeps elsewhere."""


class Pages:
    """A webserver that answers."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, question: str, **variables: Any) -> Any:
        """Return the data of an answer. Raises `SystemExit` for an error in it."""
        body = json.dumps({"query": question, "variables": variables}).encode()
        request = urllib.request.Request(f"{self._url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            said = json.load(answer)
        if "errors" in said:
            raise SystemExit(f"{question[:60]}: {said['errors']}")
        return said["data"]


def private_mib(processes: Sequence[psutil.Process]) -> float:
    """Return the private memory of processes in MiB."""
    return sum(resident_kib(one.pid)["RssAnon"] for one in processes) / 1024


def parts_of(processes: Mapping[str, subprocess.Popen[bytes]]) -> Mapping[str, Sequence[psutil.Process]]:
    """Return part of the platform → its processes. The code server has one below it that holds the definitions; runs
    are below it, too."""
    found = {name: [psutil.Process(one.pid)] for name, one in processes.items()}
    [first] = found[CODE_SERVER]
    found[CODE_SERVER] += [one for one in first.children() if "grpc" in one.cmdline()]
    return found


def asked(pages: Pages, partitions: Sequence[str]) -> dict[str, float]:
    """Ask for each page once; return page → seconds until its answer."""
    table = {"path": ["features", name_of(0)]}
    began = time.perf_counter()
    nodes = pages.ask(_LINEAGE)["assetNodes"]
    found = {"lineage": time.perf_counter() - began}
    some = [one["assetKey"] for one in nodes[:LIVE_AT_ONCE]]
    for page, question, variables in (
        (f"state of {len(some)} assets", _LIVE, {"keys": some}),
        ("an asset and all its partitions", _ASSET, {"key": table}),
        (f"newest {len(partitions)} partitions of an asset", _PARTITION, {"key": table, "keys": partitions}),
    ):
        began = time.perf_counter()
        pages.ask(question, **variables)
        found[page] = time.perf_counter() - began
    return found


def ticks_of(instance: dg.DagsterInstance) -> dict[str, int]:
    """Return sensor → how often the daemon has evaluated it to the end."""
    ended = [TickStatus.SUCCESS, TickStatus.SKIPPED, TickStatus.FAILURE]
    return {
        one.instigator_name: len(
            instance.get_ticks(one.instigator_origin_id, one.selector_id, limit=100_000, statuses=ended)
        )
        for one in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    }


def settle(
    pages: Pages, partitions: Sequence[str], instance: dg.DagsterInstance, before: Mapping[str, int]
) -> None:
    """Ask for the pages until each sensor was evaluated `FIRST_TICKS` times, so that what is filled once is full.

    Raises `SystemExit` if this takes more than `SETTLE_MINUTES`.
    """
    until = time.monotonic() + 60 * SETTLE_MINUTES
    while True:
        asked(pages, partitions)
        ticks = ticks_of(instance)
        waiting = [
            name
            for name, number in ticks.items()
            if number - before.get(name, 0) < FIRST_TICKS and name != AUTOMATION
        ]
        if ticks and not waiting:
            return
        if time.monotonic() > until:
            raise SystemExit(
                f"not evaluated {FIRST_TICKS} times in {SETTLE_MINUTES} minutes: {name_some(waiting)}"
            )
        time.sleep(2)


def measured(pages: Pages, partitions: Sequence[str], minutes: float) -> tuple[Mapping[str, float], int]:
    """Return page → the longest of `VISITS` answers; then ask for `minutes`, and return the number of these visits."""
    visits = [asked(pages, partitions) for _ in range(VISITS)]
    longest = {page: max(one[page] for one in visits) for page in visits[0]}
    until, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < until:
        asked(pages, partitions)
        number += 1
        time.sleep(2)
    return longest, number


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=250)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--home", type=Path, help="home of many_partitions.py")
    parser.add_argument("--quick", action="store_true", help="4 pipelines of 40 days, one minute")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    given = parser.parse_args()
    pipelines, partitions, minutes = given.pipelines, given.partitions, given.minutes
    if given.quick:
        pipelines, partitions, minutes = 4, 40, 1.0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="many-pages-")))
        home = given.home
        if home is None:
            made = Simulation(folder, pipelines, partitions)
            made.first_ticks()
            made.close()
            home = made.settings.home
        settings = Settings(home=home)
        os.environ |= {
            SIMULATED: f"{pipelines},{partitions},{home}",
            "DAGSTER_HOME": str(settings.dagster_home),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
        }
        instance = stack.enter_context(dg.DagsterInstance.from_config(str(settings.dagster_home)))
        port, stop = free_port(), threading.Event()
        pages = Pages(f"http://127.0.0.1:{port}")
        before_ticks = ticks_of(instance)
        location = Location(HOME_HERE, "many")
        processes = stack.enter_context(pages_and_daemon(port, folder, location, os.environ, stop))
        for one in pages.ask(_LOCATIONS)["workspaceOrError"]["locationEntries"]:
            if message := (one["locationOrLoadError"] or {}).get("message"):
                raise SystemExit(message)
        keys = pages.ask(_ASSET, key={"path": ["features", name_of(0)]})["assetNodeOrError"]
        newest = keys["partitionKeyConnection"]["results"][-100:]
        settle(pages, newest, instance, before_ticks)
        first_ticks = sum(ticks_of(instance).values())
        before = {part: private_mib(some) for part, some in parts_of(processes).items()}
        longest, visits = measured(pages, newest, minutes)
        after = {part: private_mib(some) for part, some in parts_of(processes).items()}
        ticks = sum(ticks_of(instance).values()) - first_ticks
    size = f"{pipelines} pipelines × {partitions:,} partitions"
    results = [
        Result(name=f"page over HTTP: {page}; {size}", value=1000 * wall, unit="ms", bar="shown", ok=True)
        for page, wall in longest.items()
    ]
    results += [
        Result(
            name=f"memory that {ticks:,} ticks and {visits} visits to each page add to the {name}; {size}",
            value=after[name] - before[name],
            unit="MiB",
            peers={"before": before[name]},
            bar=f"≤ {MOST_GROWTH_MIB:g} MiB",
            ok=after[name] - before[name] <= MOST_GROWTH_MIB,
        )
        for name in before
    ]
    return emit(results, json=given.json)


if __name__ == "__main__":
    raise SystemExit(main())
