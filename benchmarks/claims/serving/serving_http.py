"""HTTP on loopback: latency at a fixed rate with a change of version in the middle and beside a canary, and requests a
second.

The model has 78 numeric columns and 6 categories, as many as the flights model. The first measurement is an open loop:
a request is sent at its planned time, whether the ones before were answered or not, and its latency counts from the
planned time (no coordinated omission). The second is the same while a canary answers half of the entities. The third
asks as fast as 8 connections can, in turns with `mlflow models serve` of the same bundle, without a canary. The load
comes from this process, on the same machine.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import orjson
from rich.console import Console

from benchmarks._report import Result, emit, parse_args
from benchmarks.claims.serving._load import Load, closed_loop, open_loop
from benchmarks.claims.serving.serving import flights_shaped
from ml_assets.model.release.bundle import build_bundle
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.releases import bundles_of
from ml_assets.model.release.rules import CanarySection, Rules
from ml_assets.model.release.rules_in_force import as_json
from resources.ledger import Person, Promotion
from resources.platform import Platform
from resources.settings import Settings

MODEL = "flight_delay"
RATE = 500
"""Requests a second of the open loop."""
CONNECTIONS = 8
"""Connections of the closed loop."""
ENTITY = "tail_number"
"""Column of a request that names its entity. The model does not read it."""
BIN = Path(sys.executable).parent


def main() -> int:
    """Measure the open loop, then the closed loops in turns."""
    arguments = parse_args(__doc__)
    seconds, turns, turn_seconds = (12, 2, 2.0) if arguments.quick else (40, 5, 6.0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        platform = Platform(Settings(home=Path(folder)))
        store = bundles_of(platform)
        bundles = [build_bundle(flights_shaped(MODEL, name), store) for name in ("1", "2")]
        rows = flights_shaped().rows
        row = rows.row(0, named=True)
        # Declared from the start: a request names its entity, whether there is a canary or not.
        shared = Rules(canary=CanarySection(share=0.5, by=(ENTITY,)))
        platform.ledger.models.record_first_rules(MODEL, as_json(shared), Person.unchecked("benchmark"))
        _promote(platform, bundles[0], 1)
        ours = stack.enter_context(_ours(Path(folder)))
        bodies = [orjson.dumps({**row, ENTITY: f"N{number}"}) for number in range(64)]
        body = bodies[0]
        open_loop(ours, bodies, rate=RATE, seconds=1)  # both sides warm up

        half = threading.Timer(seconds / 2, lambda: _promote(platform, bundles[1], 2))
        half.start()
        load = open_loop(ours, bodies, rate=RATE, seconds=seconds)
        half.join()
        versions = {match[1] for said in load.bodies if (match := re.search(rb'"version":(\d)', said))}
        if versions != {b"1", b"2"}:
            raise RuntimeError(f"the change of version was not measured: {load.bodies}")
        p50, p99, longest = (np.quantile(load.seconds, (0.5, 0.99, 1.0)) * 1e3).tolist()
        errors = load.statuses.total() - load.statuses[200]

        canary = _promote(platform, bundles[0], 1, "canary")
        _wait_for(lambda: _share_of_canary(open_loop(ours, bodies, rate=RATE, seconds=0.2)) > 0)
        beside = open_loop(ours, bodies, rate=RATE, seconds=seconds / 2)
        if not 0 < (share := _share_of_canary(beside)) < 1:
            raise RuntimeError(
                f"the canary answered {100 * share:g} % of the requests: not both sides were measured"
            )
        of_canary = (np.quantile(beside.seconds, (0.5, 0.99, 1.0)) * 1e3).tolist()
        lost = beside.statuses.total() - beside.statuses[200]
        platform.ledger.models.demote(canary, by=Person.unchecked("benchmark"), reason="measured")
        _wait_for(lambda: _share_of_canary(open_loop(ours, bodies, rate=RATE, seconds=0.2)) == 0)

        peer = stack.enter_context(_mlflow(bundles[0].folder))
        peer_body = orjson.dumps({"dataframe_records": [row]})
        closed_loop(peer, peer_body, connections=CONNECTIONS, seconds=1)
        found: dict[str, list[float]] = {"ours": [], "mlflow models serve": []}
        for _ in range(turns):
            for name, url, asked in (("ours", ours, body), ("mlflow models serve", peer, peer_body)):
                closed = closed_loop(url, asked, connections=CONNECTIONS, seconds=turn_seconds)
                if set(closed.statuses) != {200}:
                    raise RuntimeError(f"{name} answered {closed.statuses}: {closed.bodies}")
                found[name].append(closed.statuses[200] / closed.took)
    mine, peers = median(found["ours"]), median(found["mlflow models serve"])
    answer_ms = 1e3 * CONNECTIONS / peers
    if not arguments.json:
        Console().print(f"statuses {dict(load.statuses)}; versions {b' '.join(sorted(versions)).decode()}")
        Console().print(f"load average {os.getloadavg()[0]:.1f}; requests a second by turn: {found}")
    results = [
        Result(
            name=f"p99 at {RATE} requests a second for {seconds} s, a change of version in the middle, {errors} errors",
            value=p99,
            unit="ms",
            peers={"p50": p50, "longest": longest, "mean of mlflow models serve, 8 connections": answer_ms},
            ratio=p99 / answer_ms,
            bar="≤ 1/30 × mlflow models serve, no error",
            ok=30 * p99 <= answer_ms and errors == 0,
        ),
        Result(
            name=f"p99 at {RATE} requests a second for {seconds / 2:g} s, a canary for {share:.0%}, {lost} errors",
            value=of_canary[1],
            unit="ms",
            peers={"p50": of_canary[0], "longest": of_canary[2]},
            bar="shown, no error",
            ok=lost == 0,
        ),
        Result(
            name=f"requests a second, {CONNECTIONS} connections",
            value=mine,
            unit="1/s",
            peers={"mlflow models serve": peers},
            ratio=mine / peers,
            bar="≥ 5 × mlflow models serve",
            ok=mine >= 5 * peers,
        ),
    ]
    return emit(results, json=arguments.json)


def _share_of_canary(load: Load) -> float:
    """Return the share of the answers that the canary gave."""
    return sum(many for said, many in load.bodies.items() if b'"role":"c' in said) / load.bodies.total()


def _promote(platform: Platform, bundle: Bundle, version: int, alias: str = "production") -> Promotion:
    return platform.ledger.models.promote(
        MODEL,
        str(version),
        alias,
        by=Person.unchecked("benchmark"),
        reason="measured",
        bundle_digest=bundle.digest,
        evaluation_digest="e" * 64,
    )


@contextmanager
def _ours(home: Path) -> Generator[str]:
    """Yield the address of predictions of `ml-assets serve`."""
    with _running([str(BIN / "ml-assets"), "serve", MODEL, "--port", "0"], home) as said:
        found: list[str] = []

        def is_up() -> bool:
            found.extend(re.findall(r"Serving on (\S+) until", said.read_text()))
            return bool(found)

        _wait_for(is_up)
        yield f"{found[0]}/models/{MODEL}/predict"


@contextmanager
def _mlflow(folder: Path) -> Generator[str]:
    """Yield the address of predictions of `mlflow models serve`, with its defaults."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(BIN / "mlflow"), "models", "serve", "-m", str(folder), "--env-manager", "local"]
    with _running([*command, "-h", "127.0.0.1", "-p", str(port)], folder.parent.parent.parent):

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5) as answer:
                    return answer.status == 200
            except OSError:
                return False

        _wait_for(answers)
        yield f"http://127.0.0.1:{port}/invocations"


@contextmanager
def _running(command: list[str], home: Path) -> Generator[Path]:
    """Run a server with one thread for each computation; yield the file of its output."""
    said = home / f"{Path(command[0]).name}.txt"
    environment = os.environ | {
        "ML_ASSETS_HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    with said.open("wb") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        yield said
    finally:
        os.killpg(server.pid, 15)
        server.wait()


def _wait_for(is_up: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_up():
        if time.monotonic() > deadline:
            raise TimeoutError("the server did not start within 120 s")
        time.sleep(0.1)


if __name__ == "__main__":
    raise SystemExit(main())
