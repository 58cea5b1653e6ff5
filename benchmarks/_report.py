"""Timing, printing and bars of every benchmark. Measurements belong in the scripts.

Each script answers one claim. It measures our way and its peers in the same run, interleaved, and ends with one line of
JSON (`{"name","value","unit","peers","ratio","bar","ok"}`, or a list of them). The exit status is 1 if a bar does not
hold, so that `make bench` fails. A bar is a ratio to a peer or to a yardstick of the same run: plain library code for
the same work, a plain write of as many bytes, the start of a training. Seconds depend on the machine. They are shown,
not judged.
"""

import argparse
import dataclasses
import gc
import json as jsonlib
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured claim."""

    name: str
    value: float
    """Measurement of our way, in `unit`."""
    unit: str
    peers: dict[str, float] = field(default_factory=dict[str, float])
    """Measurements of the peers in the same run, in `unit`."""
    ratio: float | None = None
    """`value` divided by the value of the peer that the bar names."""
    bar: str
    """The bar in words, such as `≤ 1.25 × hand-written polars`; `shown` if nothing is judged. No absolute time."""
    ok: bool
    """True if the bar holds."""

    def __post_init__(self) -> None:
        if has_time(self.bar):
            raise ValueError(
                f"{self.name}: the bar {self.bar!r} is an absolute time, which a slower machine misses. Measure a peer "
                "or a yardstick in the same run and judge the ratio, or make the bar 'shown'"
            )


_TIME = re.compile(
    r"\d\s*(ns|µs|ms|s|sec|seconds?|min|minutes?|h|hours?)\b"
    r"|\b([kMGT]i?B|[kMGT]?bit|bytes|rows|steps|points|metrics|blobs|tokens|requests|reads|messages)/(s|min|h)\b"
    r"|\b(a|per) (second|minute|hour)\b"
)


def has_time(bar: str) -> bool:
    """True if a bar in words has seconds or a rate, so that it depends on the machine."""
    return _TIME.search(bar) is not None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Wall seconds of one way over several rounds."""

    median: float
    best: float
    spread: float
    """Slowest minus the fastest round, in seconds."""
    rounds: int
    seconds: tuple[float, ...]
    """Seconds of each round, in their order."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A measurement divided by that of a peer, round by round."""

    median: float
    least: float
    most: float
    rounds: int

    @property
    def spread(self) -> str:
        """Lowest and highest ratio, for the name of a claim."""
        return f"{self.least:.3g} to {self.most:.3g} × in {self.rounds} rounds"


def ratio_of(ours: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Return the ratio of measurements of the same rounds.

    Both of a round met the same load. So the median of the ratios varies less than the ratio of the medians.
    """
    ratios = [mine / other for mine, other in zip(ours, peer, strict=True)]
    return Ratio(median=statistics.median(ratios), least=min(ratios), most=max(ratios), rounds=len(ratios))


def parse_args(description: str | None) -> argparse.Namespace:
    """Parse the two flags of every script: `quick` (smaller input, fewer rounds) and `json`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller input and fewer rounds")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    return parser.parse_args()


def interleave(
    ways: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Timing]:
    """Time each way `rounds` times in turn by `clock`, in seconds, after one unmeasured round.

    Other work on the machine comes and goes. In turns it disturbs a way and its peer alike.
    """
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            gc.collect()
            start = clock()
            way()
            seconds[name].append(clock() - start)
    return {
        name: Timing(
            median=statistics.median(taken),
            best=min(taken),
            spread=max(taken) - min(taken),
            rounds=rounds,
            seconds=tuple(taken),
        )
        for name, taken in seconds.items()
    }


def emit(results: Result | Sequence[Result], *, json: bool) -> int:
    """Print a table for people (unless `json`) and the JSON as the last line; return the exit status.

    Use as `raise SystemExit(emit(results, json=arguments.json))`.
    """
    every = [results] if isinstance(results, Result) else list(results)
    if not json:
        Console().print(table_of(every))
    documents = [dataclasses.asdict(one) for one in every]
    last_line = documents[0] if isinstance(results, Result) else documents
    print(jsonlib.dumps(last_line, ensure_ascii=False), flush=True)
    return 0 if all(one.ok for one in every) else 1


def table_of(results: Sequence[Result], commands: Sequence[str] = ()) -> Table:
    """Return a table of claims beside their bars. `commands`: for each claim, the command that measures only this
    claim.
    """
    table = Table("claim", "measured", "peers", "ratio", "bar", "", *(["alone"] if commands else []))
    for at, one in enumerate(results):
        peers = "\n".join(f"{name}: {value:.4g} {one.unit}" for name, value in one.peers.items())
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        state = "ok" if one.ok else "[red]short[/red]"
        table.add_row(
            one.name, f"{one.value:.4g} {one.unit}", peers, ratio, one.bar, state, *commands[at : at + 1]
        )
    return table
