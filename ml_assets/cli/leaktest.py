"""`ml-assets leaktest`: does a feature table use anything it could not have known?"""

from datetime import date, datetime

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
    from ml_assets.components.imports import resolve_function
    from ml_assets.features.leaktest import Alone, leak_test
    from ml_assets.tables.declared import InputTable
    from ml_assets.tables.fresh_process import in_fresh_process
    from ml_assets.tables.reader import TableReader
    from ml_assets.tables.user_code import answering

    project = Project.here()
    spec = project.component(FeatureTable, table.removeprefix("features/")).spec
    reader = TableReader.at(project.platform.lake, "main")
    low, high = (spec.cadence.key_of(day.date()) if day else None for day in (first, last))
    span = [key for key in reader.keys(table) if (low or key) <= key <= (high or key)]
    if not span:
        raise Problem(
            f"the lake has no partition of {table} between {low or 'the start'} and {high or 'the end'}"
        )
    keys = span if first else span[-28:]
    frames = {}
    for section in spec.inputs:
        have = reader.keys(section.table)
        if section.lookback != "whole":
            before = [key for key in have if key < keys[0]][-section.lookback :] if section.lookback else []
            have = [*before, *(key for key in have if keys[0] <= key <= keys[-1])]
        frames[section.table] = reader.scan(section.table, have).collect()
    cadences = {f"datasets/{one.spec.name}": one.spec.cadence for one in project.components(Dataset)}
    cadences |= {f"features/{one.spec.name}": one.spec.cadence for one in project.components(FeatureTable)}
    inputs = [
        InputTable(
            table=section.table,
            cadence=cadences[section.table],
            lookback=0 if section.lookback == "whole" else section.lookback,
        )
        for section in spec.inputs
    ]

    def alone(key: str) -> Alone:
        # A partition that the lake lacks is not in the range either.
        needed = {
            one.table: [n for n in one.needed_for(key) if n in reader.digests(one.table)] for one in inputs
        }
        rows = {name: reader.scan(name, have).collect() for name, have in needed.items()}
        first_day, last_day = spec.cadence.bounds(key)
        return Alone(key=key, first=first_day, last=last_day, inputs=rows)

    function = resolve_function(spec.function)
    with in_fresh_process(function, spec.function) as rebuild:
        report = leak_test(
            answering(function),
            frames,
            {section.table: section.known for section in spec.inputs if section.known is not None},
            date.fromisoformat(keys[0]),
            spec.cadence.bounds(keys[-1])[1],
            key=spec.contract.key,
            labels=spec.labels,
            predicted_at=spec.predicted_at,
            cuts=cuts,
            hidden=[name for name in spec.contract.names if spec.contract.hides(name)],
            rebuild=rebuild,
            alone=[alone(key) for key in keys[-2:]] if len(keys) > 1 else (),
            partition_date=spec.partition_date,
        )
    say(report.explain())
    if len(keys) == 1:
        say(f"lookback not tested: {keys[0]} alone is the whole range; choose an earlier --first")
    if not report.ok:
        raise SystemExit(1)
