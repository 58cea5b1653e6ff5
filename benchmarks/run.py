"""Run the scripts of claims in turn and fail if a bar does not hold: `make bench`. It measures nothing itself.

A script in a room of `claims` is a benchmark unless its name begins with `_` (helpers of its room) or `bare_` (peers).
`python -m benchmarks.run lake import_time` runs only these two. The scripts named in `claims.toml` as `only_by_name`
run in no other way. `research` has explorations, and peers that run in environments of their own.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks._report import Result, emit, table_of

FOLDER = Path(__file__).parent
LOGS = FOLDER.parent / "build" / "bench"


def chosen(names: list[str]) -> list[Path]:
    """Return the benchmarks to run, by name; without names all except `only_by_name` of `claims.toml`."""
    known = {
        path.stem: path
        for path in sorted((FOLDER / "claims").glob("*/*.py"))
        if not path.name.startswith(("_", "bare_"))
    }
    if unknown := set(names) - known.keys():
        raise SystemExit(
            f"No benchmark named {', '.join(sorted(unknown))}; the benchmarks are {', '.join(known)}."
        )
    only_by_name = tomllib.loads((FOLDER / "claims.toml").read_text())["only_by_name"]
    return [known[name] for name in names or known if names or name not in only_by_name]


def run_all(
    scripts: Sequence[Path], logs: Path, console: Console, *, quick: bool
) -> list[tuple[Path, Result]]:
    """Run `scripts` in turn, with a bar and a line for each claim on `console`. All other output goes to a file per
    script under `logs`.
    """
    logs.mkdir(parents=True, exist_ok=True)
    measured: list[tuple[Path, Result]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(scripts))
        for script in scripts:
            progress.update(task, description=script.stem)
            for one in _run(script, logs / f"{script.stem}.log", quick=quick):
                measured.append((script, one))
                state = "ok   " if one.ok else "[red]short[/red]"
                claim = escape(f"{script.stem}: {one.name} {one.value:.4g} {one.unit} ({one.bar})")
                progress.print(f"{state} {claim}")
            progress.advance(task)
    return measured


def _run(script: Path, log: Path, *, quick: bool) -> list[Result]:
    """Return the script's own results, or a result that misses its bar if it printed none. All output goes to `log`."""
    with log.open("w") as said:
        done = subprocess.run(
            [sys.executable, script, "--json", *(["--quick"] if quick else [])],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            check=False,
        )
        said.write(done.stdout)
    lines = done.stdout.strip().splitlines()
    try:
        document: dict[str, Any] | list[dict[str, Any]] = json.loads(lines[-1] if lines else "")
    except json.JSONDecodeError:
        bar = f"ends with JSON; it ended with exit status {done.returncode}, see {log}"
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
    parser.add_argument(
        "--json", action="store_true", help="print the results as one line of JSON, and no table"
    )
    arguments = parser.parse_args()
    measured = run_all(chosen(arguments.names), LOGS, Console(stderr=True), quick=arguments.quick)
    results = [one for _, one in measured]
    if arguments.json:
        return emit(results, json=True)
    commands = [f"make bench ARGS={script.stem}" for script, _ in measured]
    Console().print(table_of(results, commands))
    (LOGS / "results.json").write_text(json.dumps([dataclasses.asdict(one) for one in results], indent=1))
    Console().print(
        f"Output of the scripts, and the results as JSON: {LOGS.relative_to(FOLDER.parent)}", soft_wrap=True
    )
    return 0 if all(one.ok for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
