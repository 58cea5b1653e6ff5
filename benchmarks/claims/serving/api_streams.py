"""Metrics of a real training as server-sent events: time from the step to the event, and the cost of 200 listeners.

`store_demand` trains on this machine, two workers, for one week after the other: in turns without and with 200
listeners of `GET /training-runs/{id}/metrics`, each a connection of a process of its own. A worker notes the time of a
step; a listener notes the time at which its event came. Steps a second are those between the notes of one epoch, so
that start and validation do not count. Dagster and the ledger are in PostgreSQL.

`--folder` is that of `api_load`.
"""

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks._report import Result, emit, ratio_of
from benchmarks.claims.serving._api_home import (
    MODEL,
    PROGRAM,
    ApiHome,
    api_home,
    build_tables,
    newest_run,
    served,
)
from ml_assets.context import Context
from resources.artifacts import read_artifact
from resources.job.events import EVENTS, TrainingEvent, folder_of_training

LISTENERS = 200
OF_ACCOUNT = 10
"""Streams that an account may have open."""
LEAST_RATIO = 0.97
"""Least steps a second with listeners, in those without."""
_WITHIN_SECONDS = 300.0


@dataclass(frozen=True)
class Heard:
    """Events that the listeners of one training heard."""

    events: Sequence[tuple[int, float]]
    """Step, and seconds since the epoch at which its event came, of all listeners."""
    ended: int
    """Listeners that heard the end."""


def listen(address: str, run_id: str, tokens: Sequence[str], listeners: int) -> Heard:
    """Open the streams of a run, and read all to their end."""
    host, _, port = address.removeprefix("http://").partition(":")
    events: list[tuple[int, float]] = []
    ended = 0

    async def one(number: int) -> None:
        nonlocal ended
        token = tokens[number // OF_ACCOUNT]
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET /api/v1/training-runs/{run_id}/metrics HTTP/1.1\r\nHost: {host}\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the API answered {status!r}")
        kind = b""
        while line := await reader.readline():
            if line.startswith(b"event: "):
                kind = line.split()[1]
            elif line.startswith(b"data: ") and kind == b"metrics":
                events.append((json.loads(line[6:])["step"], time.time()))
            elif line.startswith(b"data: ") and kind == b"end":
                ended += 1
                break
        writer.close()

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(listeners)))

    asyncio.run(run())
    return Heard(events, ended)


def weeks(context: Context, number: int) -> list[str]:
    """Return weeks that were not trained yet: a launch would find the finished training."""
    trained = context.project.platform.ledger.models.evaluations(MODEL)
    first = date.fromisoformat(max(one.partition for one in trained))
    return [f"{first + timedelta(weeks=one + 1)}" for one in range(number)]


def train(home: ApiHome, week: str, listening: "Callable[[str], Future[Heard]] | None") -> "FollowedTraining":
    """Train a week in a process of its own; `listening` begins to follow the run."""
    before = time.time()
    with (home.folder / "launch.log").open("ab") as log:
        process = subprocess.Popen([PROGRAM, "launch", MODEL, week], stdout=log, stderr=log)
    heard = None
    if listening is not None:
        heard = listening(_run_since(home.context, before, process))
    if process.wait():
        raise RuntimeError(f"the launch failed: {(home.folder / 'launch.log').read_text()[-2000:]}")
    run_id = newest_run(home.context, f"{MODEL}/checkpoint", week)
    runs = home.context.runs
    folder = folder_of_training(MODEL, str(runs.training_set(runs.training(run_id))["fingerprint"]))
    text = read_artifact(home.context.project.platform.artifacts, folder, EVENTS).decode()
    events = [event for line in text.splitlines() if (event := TrainingEvent.from_line(line)) is not None]
    return FollowedTraining(
        notes=[(one.step, one.time) for one in events if one.kind == "metrics"],
        epochs={one.step for one in events if one.kind == "epoch"},
        heard=None if heard is None else heard.result(_WITHIN_SECONDS),
    )


def _run_since(context: Context, moment: float, process: "subprocess.Popen[bytes]") -> str:
    """Return the id of the run that a launch makes."""
    deadline = time.monotonic() + _WITHIN_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        newest = context.project.instance.get_run_records(limit=1, order_by="id")
        if newest and newest[0].create_timestamp.replace(tzinfo=UTC).timestamp() >= moment:
            return newest[0].dagster_run.run_id
        time.sleep(0.1)
    raise RuntimeError("the launch made no run")


@dataclass(frozen=True)
class FollowedTraining:
    """A training."""

    notes: Sequence[tuple[int, float]]
    """Step, and seconds since the epoch at which a worker noted it."""
    epochs: Set[int]
    """Last step of each epoch, after which it validates."""
    heard: Heard | None

    @property
    def steps_a_second(self) -> float:
        """Median over the spans between two notes of one epoch, without the first epoch, in which libraries warm up."""
        first = min(self.epochs)
        spans = [
            (after[0] - before[0]) / (after[1] - before[1])
            for before, after in pairwise(self.notes)
            if before[0] >= first and not any(before[0] <= end < after[0] for end in self.epochs)
        ]
        return median(spans)

    def delays(self) -> list[float]:
        """Return seconds from the step to each event of each listener."""
        at = dict(self.notes)
        assert self.heard is not None
        return [came - at[step] for step, came in self.heard.events if step in at]


def main() -> int:
    """Measure; return exit status 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one pair of trainings")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    parser.add_argument("--folder", type=Path, help="folder that keeps the home, with PostgreSQL running")
    given = parser.parse_args()
    pairs = 1 if given.quick else 3
    alone: list[FollowedTraining] = []
    beside: list[FollowedTraining] = []
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="api-streams-")))
        home = stack.enter_context(api_home(folder, large=False, runs=0, stays=given.folder is not None))
        some = weeks(home.context, 2 * pairs)
        build_tables(some[-1])
        address = stack.enter_context(served(home))
        client = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))

        def listening(run_id: str) -> "Future[Heard]":
            return client.submit(listen, address, run_id, home.tokens, LISTENERS)

        for number, week in enumerate(some):
            # The first of a pair is in turns the one without listeners and the one with them.
            is_beside = number % 4 in (1, 2)
            made = train(home, week, listening if is_beside else None)
            (beside if is_beside else alone).append(made)
    delays = [one for made in beside for one in made.delays()]
    ended = [made.heard.ended for made in beside if made.heard is not None]
    ratio = ratio_of([one.steps_a_second for one in beside], [one.steps_a_second for one in alone])
    if not given.json:
        print(
            f"steps a second alone {[round(one.steps_a_second) for one in alone]}, beside listeners "
            f"{[round(one.steps_a_second) for one in beside]}; listeners that heard the end: {ended}"
        )
    results = [
        Result(
            name=f"from the step to the event, {LISTENERS} listeners, {len(delays)} events: longest",
            value=max(delays),
            unit="s",
            peers={"p50": median(delays), "p99": float(np.quantile(delays, 0.99))},
            bar="shown; each listener hears the end",
            ok=ended == [LISTENERS] * len(beside),
        ),
        Result(
            name=f"steps a second beside {LISTENERS} listeners ({ratio.spread})",
            value=median(one.steps_a_second for one in beside),
            unit="1/s",
            peers={"alone": median(one.steps_a_second for one in alone)},
            ratio=ratio.median,
            bar=f"≥ {LEAST_RATIO} × alone",
            ok=ratio.median >= LEAST_RATIO,
        ),
    ]
    return emit(results, json=given.json)


if __name__ == "__main__":
    raise SystemExit(main())
