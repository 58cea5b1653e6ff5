"""Reads of the REST API at a rate: latency by route, with Dagster and the ledger in PostgreSQL.

The home has trained models, tables with hundreds of partitions, and thousands of runs. `ml-assets api` is a process of
its own, the client another one, on the same cores as PostgreSQL. The load is an open loop: a request is sent at its
planned time, whether the ones before were answered or not, and its latency counts from the planned time. In the last
measurement another process writes meanwhile, each second in turn: a run with its launch in the ledger, a verdict, a
commit of the lake. The yardstick is `/health` at the same rate, which reads nothing.

`--folder` keeps home and PostgreSQL for the next call; `python -m deployment.testbed servers --state FOLDER/servers
down` ends it.
"""

import argparse
import itertools
import os
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import dagster as dg
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks._report import Result, emit, ratio_of
from benchmarks.claims.serving._api_home import MODEL, TRAINED, ApiHome, api_home, newest_run, served
from benchmarks.claims.serving._load import Load, open_loop_of
from ml_assets.context import Context
from resources.ledger import NewVerdict, Person

RATES = (50, 100, 200)
"""Requests a second."""
YARDSTICK = "/health"
MOST_RATIO = 10
"""Highest p99 of reads at the highest rate, in those of the yardstick."""
EACH_PLAN = 200
"""Requests of which one is a plan, which people and programs ask before a launch: of 200 a second, one each second."""
COPIED_RUNS = 5_000
"""Ten days of 500 runs."""


@dataclass(frozen=True)
class Read:
    """Request of a mix."""

    route: str
    path: str


def mix(home: ApiHome, *, large: bool) -> list[Read]:
    """Return the reads of clients, in the order in which they are sent."""
    context = home.context
    trainings = [newest_run(context, f"{MODEL}/checkpoint", key) for key in TRAINED]
    others = [one.run_id for one in context.project.instance.get_runs(limit=8)]
    tracked, _ = context.project.platform.tracker.search(MODEL, "", limit=3)
    tables = [
        ("datasets/sales", TRAINED[-1]),
        ("features/sales_features", TRAINED[-1]),
        ("datasets/sales", TRAINED[0]),
        ("features/sales_features", TRAINED[0]),
    ]
    models = [MODEL]
    if large:
        tables[2:] = [("datasets/flights", "2013-06-15"), ("features/flight_departures", "2013-12-15")]
        models.append("flight_delay")
    reads = [Read(YARDSTICK, YARDSTICK)]

    def add(route: str, *paths: str) -> None:
        reads.extend(Read(route, f"/api/v1{one}") for one in paths)

    add("/models", "/models", "/models?limit=3")
    add("/models/{name}/versions", *(f"/models/{one}/versions" for one in models))
    add("/models/{name}/versions/{v}", *(f"/models/{MODEL}/versions/{v}" for v in (1, 2, 3)))
    add("/{kind}/{table}/versions", *(f"/{table}/versions?limit=20" for table, _ in tables))
    add("/{kind}/{table}/partitions/{key}", *(f"/{table}/partitions/{key}" for table, key in tables))
    add("/training-runs/{id}", *(f"/training-runs/{one}" for one in trainings))
    add("/training-runs/{id}/checkpoints", f"/training-runs/{trainings[0]}/checkpoints")
    add("/training-runs/{id}/costs", f"/training-runs/{trainings[1]}/costs")
    add("/pipelines/runs/{id}", *(f"/pipelines/runs/{one}" for one in others))
    add("/experiments/{experiment}/runs", f"/experiments/{MODEL}/runs")
    add(
        "/experiments/{experiment}/runs/{run}",
        *(f"/experiments/{MODEL}/runs/{one.run_id}" for one in tracked),
    )
    add("/costs", "/costs")
    # Each route comes again and again, not in blocks.
    step = next(one for one in (7, 11, 13) if len(reads) % one)
    turn = [reads[step * number % len(reads)] for number in range(len(reads))]
    plan = Read("/plan", f"/api/v1/plan?model={MODEL}&partition={TRAINED[-1]}")
    return [*(turn * -(-EACH_PLAN // len(turn)))[: EACH_PLAN - 1], plan]


def requests_of(address: str, reads: Sequence[Read], tokens: Sequence[str]) -> list[bytes]:
    """Return requests, each read from each account: an account may send 20 requests a second."""
    host = address.removeprefix("http://")
    return [
        f"GET {reads[number % len(reads)].path} HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {tokens[number % len(tokens)]}\r\n\r\n".encode()
        for number in range(len(reads) * len(tokens))
    ]


@contextmanager
def changing(context: Context, done: Counter[str]) -> Generator[None]:
    """Change what the API reads every second in turn, until the block ends, and count the changes of each kind in
    `done`: a run of Dagster with its launch in the ledger, a verdict, a commit of the lake.
    """
    ends = threading.Event()
    platform = context.project.platform
    (account, *_) = platform.ledger.accounts.in_force()
    root = Person.proved(account, "token")

    def launch() -> None:
        run = context.project.instance.add_run(dg.DagsterRun(job_name="simulated"))
        platform.ledger.launches.record([run.run_id], root, "launchRun")

    def judge() -> None:
        verdict = NewVerdict(
            table="datasets/sales",
            key="2024-06-03",
            content_digest="c" * 64,
            contract_digest="r" * 64,
            status="passed",
            rows=2,
            body_json='{"findings": []}',
            run_id="simulated",
            branch="main",
        )
        platform.ledger.record_verdicts([verdict])

    def commit() -> None:
        branch = f"audit-{uuid.uuid4().hex}"
        platform.lake.create_branch(branch, "main")
        platform.lake.put(branch, "_streams/datasets/simulated/change", branch.encode())
        platform.lake.commit(branch, "change", {})
        platform.lake.merge(branch, "main", "change", {"audit": "passed"})
        platform.lake.delete_branch(branch)

    def change() -> None:
        for one in itertools.cycle((launch, judge, commit)):
            if ends.wait(1.0):
                return
            one()
            done[one.__name__] += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def main() -> int:
    """Measure each rate in turns; return exit status 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the flights demo, and shorter rounds")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--folder", type=Path, help="folder that keeps the home, with PostgreSQL running")
    given = parser.parse_args()
    rounds, seconds = (1, 4.0) if given.quick else (3, 6.0)
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="api-load-")))
        is_large = not given.quick
        home = stack.enter_context(
            api_home(folder, large=is_large, runs=COPIED_RUNS, stays=given.folder is not None)
        )
        reads = mix(home, large=is_large)
        address = stack.enter_context(served(home))
        client = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        requests = requests_of(address, reads, home.tokens)
        alone = requests_of(address, [Read(YARDSTICK, YARDSTICK)], home.tokens)

        def send(some: Sequence[bytes], rate: float, seconds: float) -> Load:
            return client.submit(open_loop_of, address, some, rate=rate, seconds=seconds).result()

        send(requests, RATES[0], 4.0)  # the API opens what it reads
        loads: dict[str, list[Load]] = {}
        yardstick: list[float] = []
        changes = Counter[str]()
        for _ in range(rounds):
            for rate in RATES:
                loads.setdefault(f"{rate}", []).append(send(requests, rate, seconds))
            yardstick.append(_quantile(send(alone, RATES[-1], seconds / 2), 0.99))
            with changing(home.context, changes):
                loads.setdefault("beside changes", []).append(send(requests, RATES[-1], seconds))
    if not given.json:
        Console().print(_table(reads, loads))
        Console().print(f"load average {os.getloadavg()[0]:.1f}; changes: {dict(changes)}")
    results = [
        _result(f"{rate} reads a second", loads[f"{rate}"], yardstick, is_judged=rate == RATES[-1])
        for rate in RATES
    ]
    results.append(
        _result(
            f"{RATES[-1]} reads a second beside changes", loads["beside changes"], yardstick, is_judged=False
        )
    )
    return emit(results, json=given.json)


def _quantile(load: Load, share: float) -> float:
    """Return a quantile of the latencies in ms."""
    return float(np.quantile(load.seconds, share)) * 1e3


def _result(name: str, loads: Sequence[Load], yardstick: Sequence[float], *, is_judged: bool) -> Result:
    p99 = [_quantile(one, 0.99) for one in loads]
    ratio = ratio_of(p99, yardstick)
    refused = sum(one.statuses.total() - one.statuses[200] for one in loads)
    return Result(
        name=f"{name}, {refused} refused: p99, median of {len(loads)} rounds ({min(p99):.0f} to {max(p99):.0f})",
        value=median(p99),
        unit="ms",
        peers={
            "p50": median(_quantile(one, 0.5) for one in loads),
            f"p99 of {YARDSTICK}, {RATES[-1]} a second": median(yardstick),
        },
        ratio=ratio.median,
        bar=f"≤ {MOST_RATIO} × {YARDSTICK}, none refused" if is_judged else "shown, none refused",
        ok=not refused and (not is_judged or ratio.median <= MOST_RATIO),
    )


def _table(reads: Sequence[Read], loads: Mapping[str, Sequence[Load]]) -> Table:
    """Return a table of median and p99 in ms, over all rounds, of each route at each load."""
    table = Table("route", *(f"{name}: p50, p99" for name in loads))
    for route in [*dict.fromkeys(one.route for one in reads), ""]:
        places = [number for number, one in enumerate(reads) if not route or one.route == route]
        taken = [
            np.concatenate([one.seconds[np.isin(one.numbers % len(reads), places)] for one in some])
            for some in loads.values()
        ]
        cells = [np.quantile(one, (0.5, 0.99)) * 1e3 if len(one) else () for one in taken]
        table.add_row(route or "all", *(", ".join(f"{value:.1f}" for value in one) for one in cells))
    return table


if __name__ == "__main__":
    raise SystemExit(main())
