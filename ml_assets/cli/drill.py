"""`ml-assets drill`: damage a real training on this machine and check that it survives. Takes about a minute."""

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.project import say

if TYPE_CHECKING:
    from ml_assets.extras.drills.drills import DrillReport

NAMES = ("kill-rank", "kill-node", "hang", "sigterm", "corrupt-checkpoint", "nan")


@click.command("drill", short_help="Damage a short real training and check its recovery.")
@click.argument("name", type=click.Choice([*NAMES, "all"]))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per drill, each on a line.")
def command(name: str, as_json: bool) -> None:
    """Train a small model on synthetic rows with real worker processes, damage the training, and check its recovery.

    All files are in a temporary folder. Exit status 1 if a check fails.
    """
    from rich.console import Console

    from ml_assets.extras.drills.drills import perform
    from ml_assets.extras.drills.fixture import Fixture

    console = Console(stderr=True)
    began = time.monotonic()
    reports: list[DrillReport] = []
    with tempfile.TemporaryDirectory(prefix="drill-") as temporary:
        fixture = Fixture(Path(temporary))
        for drill in NAMES if name == "all" else (name,):
            with console.status(drill) as status:
                report = perform(drill, fixture, lambda text, d=drill, s=status: s.update(f"{d}: {text}"))
            reports.append(report)
            for line in [json.dumps(report.to_dict())] if as_json else [*report.lines(), ""]:
                say(line)
    failed = [report.drill for report in reports if not report.ok]
    if not as_json:
        what = f"{len(reports) - len(failed)} of {len(reports)} drills passed"
        say(f"{what} in {time.monotonic() - began:.0f} s{'; failed: ' + ', '.join(failed) if failed else ''}")
    if failed:
        raise SystemExit(1)
