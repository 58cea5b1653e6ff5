"""The summary of random deaths counts rounds and deaths by test, and says which failed how."""

import re
from pathlib import Path

import pytest

from ml_assets_tests.faults.summary import keep, rounds_of, summary


def _report(
    outcome: str, seed: int, killed: int, *, when: str = "call", chaos: bool = True
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=f"tests/test_x.py::test_survives[{seed}]",
        location=("tests/test_x.py", 1, "test_survives"),
        keywords={},
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=None if outcome == "passed" else f"line one\nE assert {seed}",
        when=when,  # type: ignore[arg-type]
        duration=2.0 * seed,
        user_properties=[("killed", killed), ("other", 7)],
    )


def test_rounds_and_deaths_are_counted_and_failures_named(tmp_path: Path) -> None:
    stats = {
        "": [_report("passed", 1, 0, when="setup")],
        "passed": [_report("passed", 1, 2), _report("passed", 2, 3)],
        "failed": [_report("failed", 3, 0)],
        "error": [_report("failed", 4, 0, when="setup")],
    }
    lines = summary(rounds_of(stats))
    assert re.findall(r"\d+ \w+", lines[0]) == ["4 rounds", "5 processes", "2 rounds"]
    assert lines[2].split() == ["4", "5", "2", "5.0", "8.0", "tests/test_x.py::test_survives"]
    assert lines[3:] == [
        "tests/test_x.py::test_survives[3]: E assert 3",
        "tests/test_x.py::test_survives[4]: E assert 4",
    ]
    kept = tmp_path / "new" / "chaos.txt"
    keep(lines, kept, ["-m", "chaos"])
    first, where, empty, *rest = kept.read_text().splitlines()
    assert (first, empty, rest) == ("pytest -m chaos", "", lines)
    assert " cores, Python 3." in where
