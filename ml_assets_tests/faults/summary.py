"""Summary of rounds of random deaths: printed after them, and kept in a file.

Not here: the rounds, which say by `record_property("killed", …)` how many processes they ended.
"""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

KILLED = "killed"
_OUTCOMES = ("passed", "failed", "error")


@dataclass(frozen=True)
class Round:
    """One chaos test, run once."""

    test: str
    """Test id without the seed."""
    seconds: float
    killed: int
    why: str
    """Failure, in a line; empty where there was none."""


def rounds_of(stats: Mapping[str, Sequence[Any]]) -> list[Round]:
    """Return the rounds in pytest's reports, by outcome, of a run of chaos tests alone."""
    reports = [report for outcome in _OUTCOMES for report in stats.get(outcome, ())]
    return [
        Round(
            test=report.nodeid.partition("[")[0],
            seconds=report.duration,
            killed=sum(int(value) for name, value in report.user_properties if name == KILLED),
            why="" if report.passed else f"{report.nodeid}: {report.longreprtext.strip().splitlines()[-1]}",
        )
        for report in reports
        if report.when == "call" or report.failed
    ]


def summary(rounds: Sequence[Round]) -> list[str]:
    """Lines for a person: a test each, then what failed."""
    failed = [one.why for one in rounds if one.why]
    lines = [
        f"{len(rounds)} rounds, {sum(one.killed for one in rounds)} processes killed, {len(failed)} rounds failed",
        "rounds  killed  failed  seconds (median, longest)  test",
    ]
    for test in sorted({one.test for one in rounds}):
        of_test = [one for one in rounds if one.test == test]
        seconds = [one.seconds for one in of_test]
        lines.append(
            f"{len(of_test):6}  {sum(one.killed for one in of_test):6}  {sum(bool(one.why) for one in of_test):6}  "
            f"{statistics.median(seconds):16.1f} {max(seconds):8.1f}  {test}"
        )
    return lines + failed


def keep(lines: Sequence[str], file: Path, command: Sequence[str]) -> None:
    """Write a summary, and where and with what it came about."""
    where = [
        f"pytest {' '.join(command)}",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {metadata.version('torch')}",
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*where, "", *lines, ""]))
