"""`ml-assets skew`: served rows against the feature table, after the training transform."""

import click

from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say
from resources.words import counted


@click.command("skew", short_help="Compare served rows with the feature table, bit by bit.")
@click.argument("model")
@click.argument("partition")
def command(model: str, partition: str) -> None:
    """Compare the rows of requests for MODEL that arrived in PARTITION with the rows of its feature table.

    Both go through the transform of the version's training. Exit status 1 if an input differs in more rows than
    `served_skew` of the model allows; without this section, in any bit. Values of sensitive columns are hidden. Changes
    nothing.
    """
    from ml_assets.components.feature_table import FeatureTable
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.data.tables.layout import MAIN
    from ml_assets.data.tables.reader import TableReader
    from ml_assets.use.live.served_skew import ServedSkewRule, served_skew

    with Project.to_read() as project:
        spec = project.component(TrainingPipeline, model).spec
        rule = spec.served_skew or ServedSkewRule()
        spec.partitions.as_cadence.require(partition)
        found = served_skew(spec, TableReader.at(project.platform.lake, MAIN), project.platform, partition)
        name = spec.features.table.removeprefix("features/")
        contract = project.component(FeatureTable, name).spec.contract
    if not any(one.rows for one in found):
        left_out = "; ".join(f"{count:,} {why}" for one in found for why, count in one.left_out.items())
        raise Problem(
            f"nothing to compare: no request for {model} of {partition} has a row in {spec.features.table}"
            + (f" ({left_out})" if left_out else "")
            + ". Send the primary key with each request, and build the table of that day"
        )
    for one in found:
        verb = "differs" if len(one.columns) == 1 else "differ"
        compared = f"{counted(one.rows, 'row')} compared, {counted(len(one.columns), 'input')} {verb}"
        say(f"Version {one.version}: {compared}.")
        for column in one.columns:
            pair = f"{column.served!r} was served, the table has {column.stored!r}"
            is_hidden = any(map(contract.hides, (column.name, *spec.features.primary_key)))
            shown = "values are hidden" if is_hidden else f"{pair} at {column.key}"
            verb = "differs" if column.rows == 1 else "differ"
            allowed = ", which served_skew allows" if rule.allows(column, one.rows) else ""
            say(f"  {column.name}: {counted(column.rows, 'row')} {verb}{allowed}; {shown}")
        if one.rounded:
            names = ", ".join(one.rounded)
            say(f"  {names}: equal as values of the table's type; the last bits were rounded by the client")
        for why, count in one.left_out.items():
            say(f"  not compared: {count:,} rows, because they {why}")
        if one.not_compared:
            say(f"  not compared: {', '.join(one.not_compared)}, which hold blobs")
    if rule.findings(found, spec.features.table):
        raise click.exceptions.Exit(1)
