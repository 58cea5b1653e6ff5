"""`make bench` shows claims, not events: what scripts say besides goes into a file each."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks._report import Result, interleave, ratio_of, table_of
from benchmarks.run import run_all

FAST = """
import json, sys
print("an event", file=sys.stderr)
print("a line of its own")
both = ("fast", "slow")
rows = [{"name": name, "value": 2.0, "unit": "s", "bar": "≤ 3 × peer", "ok": name == "fast"} for name in both]
print(json.dumps(rows))
"""


def test_claims_are_shown_as_they_come_and_events_go_into_a_log(tmp_path: Path) -> None:
    scripts = [tmp_path / "fast.py", tmp_path / "broken.py"]
    scripts[0].write_text(FAST)
    scripts[1].write_text("raise SystemExit('no such input')")
    screen = io.StringIO()
    measured = run_all(scripts, tmp_path / "logs", Console(file=screen, width=200), quick=True)
    log = tmp_path / "logs" / "broken.log"
    assert [line.strip() for line in screen.getvalue().splitlines() if line.strip()] == [
        "ok    fast: fast 2 s (≤ 3 × peer)",
        "short fast: slow 2 s (≤ 3 × peer)",
        f"short broken: broken 0 results (ends with JSON; it ended with exit status 1, see {log})",
    ]
    assert [(script.stem, one.ok) for script, one in measured] == [
        ("fast", True),
        ("fast", False),
        ("broken", False),
    ]
    assert (tmp_path / "logs" / "fast.log").read_text().startswith("an event\na line of its own\n")
    assert "no such input" in log.read_text()


def test_the_table_says_the_command_that_measures_a_claim_alone(tmp_path: Path) -> None:
    script = tmp_path / "fast.py"
    script.write_text(FAST)
    measured = run_all([script], tmp_path / "logs", Console(file=io.StringIO()), quick=True)
    screen = io.StringIO()
    table = table_of([one for _, one in measured], ["make bench ARGS=fast"] * 2)
    Console(file=screen, width=200).print(table)
    assert screen.getvalue().count("make bench ARGS=fast") == 2


@pytest.mark.parametrize(
    "bar",
    [
        "≤ 50 ms each",
        "≤ 0.2 ms",
        "≤ 360 s",
        "≥ 20 MB/s",
        "≥ 1,000 rows/s",
        "≤ 1 query and ≤ 50 ms",
        "≥ 5 a second",
    ],
)
def test_a_bar_in_seconds_is_refused(bar: str) -> None:
    """A slower machine would miss it, though nothing became worse."""
    with pytest.raises(ValueError, match="absolute time"):
        Result(name="a claim", value=1.0, unit="s", bar=bar, ok=True)


@pytest.mark.parametrize(
    "bar", ["≤ 3 × import dagster", "≤ 1/12 × torch.save + fsync", "≤ 64 MiB", "3 of 3; 0", "≥ 80 %", "shown"]
)
def test_a_bar_without_time_is_accepted(bar: str) -> None:
    assert Result(name="a claim", value=1.0, unit="s", bar=bar, ok=True).bar == bar


def test_a_ratio_compares_measurements_of_the_same_round() -> None:
    """The machine was ten times slower in the second round, whose figures count like those of the others."""
    ratio = ratio_of([2.0, 30.0, 4.0], [1.0, 10.0, 2.0])
    assert (ratio.median, ratio.least, ratio.most, ratio.rounds) == (2.0, 2.0, 3.0, 3)
    assert ratio.spread == "2 to 3 × in 3 rounds"


def test_rounds_are_timed_in_turn_by_the_given_clock() -> None:
    called: list[str] = []
    ticks = iter(range(100))
    timings = interleave(
        {name: lambda name=name: called.append(name) for name in ("ours", "peer")}, 2, lambda: next(ticks)
    )
    assert called == ["ours", "peer"] * 3
    assert timings["ours"].seconds == (1, 1)
