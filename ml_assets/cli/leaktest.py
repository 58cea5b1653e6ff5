"""`ml-assets leaktest`: run the leakage test on a feature table."""

from datetime import UTC, datetime, time

import click

from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say

_DAY = click.DateTime(["%Y-%m-%d"])


@click.command("leaktest", short_help="Rebuild features without the future; require identical rows.")
@click.argument("table")
@click.option(
    "--first",
    type=_DAY,
    metavar="DAY",
    help="First partition to build. Default: the test builds the newest 28 partitions.",
)
@click.option(
    "--last", type=_DAY, metavar="DAY", help="Last partition to build. Default: the newest in the lake."
)
@click.option(
    "--cuts",
    type=click.IntRange(min=1),
    help="Number of moments at which the test hides the future, evenly spread. Default: one for each hour of the day "
    "or day of the week, by the shortest partition of the inputs.",
)
def command(table: str, first: datetime | None, last: datetime | None, cuts: int | None) -> None:
    """Hide the facts that became known after some moment, rebuild TABLE (`features/…`) in a fresh process, and compare
    the rows before that moment. Then build the last two partitions each alone, and compare them with the range.

    Exit status 1 if a column changed. Such a column uses the future, is random, depends on state that the function
    keeps, or needs a longer lookback than declared.
    """
    from ml_assets.components.checks.leakage import feature_declaration
    from ml_assets.components.dataset import Dataset
    from ml_assets.components.feature_table import FeatureTable
    from ml_assets.data.tables.leakage import find_leaks, newest_partitions
    from ml_assets.data.tables.reader import TableReader

    project = Project.read_only()
    spec = project.component(FeatureTable, table.removeprefix("features/")).spec
    reader = TableReader.at(project.platform.lake, "main")
    low = spec.cadence.key_of(first.date()) if first else None
    high = spec.cadence.key_of(datetime.combine(last, time(23), UTC)) if last else None  # also of hours
    span = [
        key for key in reader.keys(table) if (low or key) <= key <= (high or key) and spec.cadence.is_key(key)
    ]
    if not span:
        raise Problem(
            f"the lake has no partition of {table} between {low or 'the start'} and {high or 'the end'}"
        )
    keys = span if first else newest_partitions(spec.cadence, span)
    cadences = {f"datasets/{one.spec.name}": one.spec.cadence for one in project.components(Dataset)}
    cadences |= {f"features/{one.spec.name}": one.spec.cadence for one in project.components(FeatureTable)}
    report = find_leaks(reader, feature_declaration(spec, cadences), keys, cuts)
    say(report.explain())
    if len(keys) == 1:
        say(f"lookback not tested: {keys[0]} is the only partition of the range; choose an earlier --first")
    if not report.ok:
        raise SystemExit(1)
