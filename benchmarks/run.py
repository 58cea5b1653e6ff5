"""Runs every benchmark in turn and fails where a bar falls short: `make bench`. It measures nothing itself.

A script of this folder is a benchmark unless its name begins with `_` (shared helpers) or `bare_` (what
another benchmark compares with). `benchmarks/run.py lake import_time` runs only these two. Those of `WHEN_NAMED`
run only so.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks._report import Result, emit

FOLDER = Path(__file__).parent
WHEN_NAMED = ("cluster_start", "demo_servers", "lake_servers", "loader_libraries")
"""They need what `make servers-up cluster-up` starts, or a large environment of their own."""


def _scripts(names: list[str]) -> list[Path]:
    """The benchmarks to run, by name; all of them without names."""
    known = {
        path.stem: path
        for path in sorted(FOLDER.glob("*.py"))
        if path != Path(__file__) and not path.name.startswith(("_", "bare_"))
    }
    if unknown := set(names) - known.keys():
        raise SystemExit(f"No benchmark named {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    return [known[name] for name in names or known if names or name not in WHEN_NAMED]


def _run(script: Path, *, quick: bool) -> list[Result]:
    """The script's own results, or one that falls short if it ended without any."""
    done = subprocess.run(
        [sys.executable, script, "--json", *(["--quick"] if quick else [])],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    try:
        document: dict[str, Any] | list[dict[str, Any]] = json.loads(lines[-1] if lines else "")
    except json.JSONDecodeError:
        bar = f"ends with JSON; it ended with exit status {done.returncode}"
        return [Result(name=script.stem, value=0.0, unit="results", bar=bar, ok=False)]
    names = {field.name for field in dataclasses.fields(Result)}
    return [
        Result(**{name: value for name, value in row.items() if name in names})
        for row in (document if isinstance(document, list) else [document])
    ]


def main() -> int:
    """Run, print, decide."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run; all by default")
    parser.add_argument("--quick", action="store_true", help="smaller input and fewer rounds")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    arguments = parser.parse_args()
    progress = Console(stderr=True)
    results: list[Result] = []
    for script in _scripts(arguments.names):
        progress.print(f"[dim]running benchmarks/{script.name}[/dim]")
        results += _run(script, quick=arguments.quick)
    return emit(results, json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
