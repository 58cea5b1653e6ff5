"""`ml-assets leaktest`: run the leakage test on a feature table."""

from datetime import datetime

import click

from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say

_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("leaktest", short_help="Cut the future, rebuild features, require identical rows.")
@click.argument("table")
@click.option(
    "--first", type=_DAY, metavar="DAY", help="First to build; by default 28 partitions before the last."
)
@click.option("--last", type=_DAY, metavar="DAY", help="Last to build; by default the newest in the lake.")
@click.option(
    "--cuts",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="At how many moments the future is hidden.",
)
def command(table: str, first: datetime | None, last: datetime | None, cuts: int) -> None:
    """Hide what was not yet known at some moments, rebuild TABLE (`features/…`) in a fresh process, and compare earlier
    rows. Then build its last two partitions each by itself, and compare them with those of the range.

    Exit status 1 where a column changed: it used the future, is random, or depends on what the function remembers; or
    the declared lookback is too short for it.
    """
    from ml_assets.components.dataset import Dataset
    from ml_assets.components.feature_table import FeatureTable
    from ml_assets.components.leakage_check import feature_declaration
    from ml_assets.tables.leakage import find_leaks, newest_partitions
    from ml_assets.tables.reader import TableReader

    project = Project.here()
    spec = project.component(FeatureTable, table.removeprefix("features/")).spec
    reader = TableReader.at(project.platform.lake, "main")
    low, high = (spec.cadence.key_of(day.date()) if day else None for day in (first, last))
    span = [key for key in reader.keys(table) if (low or key) <= key <= (high or key)]
    if not span:
        raise Problem(
            f"the lake has no partition of {table} between {low or 'the start'} and {high or 'the end'}"
        )
    keys = span if first else newest_partitions(span)
    cadences = {f"datasets/{one.spec.name}": one.spec.cadence for one in project.components(Dataset)}
    cadences |= {f"features/{one.spec.name}": one.spec.cadence for one in project.components(FeatureTable)}
    report = find_leaks(reader, feature_declaration(spec, cadences), keys, cuts)
    say(report.explain())
    if len(keys) == 1:
        say(f"lookback not tested: {keys[0]} alone is the whole range; choose an earlier --first")
    if not report.ok:
        raise SystemExit(1)
