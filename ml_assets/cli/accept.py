"""`ml-assets accept`: accept a rejected partition manually."""

import click

from ml_assets.cli.project import Project, say
from resources.words import counted


@click.command("accept", short_help="Accept a rejected partition as it is, with a reason.")
@click.argument("table")
@click.argument("partition")
@click.option("--reason", required=True, help="Reason to use these rows; recorded with your name.")
def command(table: str, partition: str, reason: str) -> None:
    """Put the rejected rows of TABLE PARTITION (`datasets/flights 2013-07-04`) on main as they are.

    A range `FIRST..LAST` accepts all partitions in it that only the number of rows rejects, as a new level: later
    partitions are compared with it. The finding of such a partition names the range.
    """
    from ml_assets.components.sensors.reconcile import report_acceptance
    from ml_assets.data.tables.publish.accept import accept_level, accept_partition
    from ml_assets.data.tables.reader import TableReader

    project, acting = Project.to_decide()
    platform = project.platform
    first, dots, last = partition.partition("..")
    if dots:
        found = accept_level(platform.lake, platform.ledger, table, first, last, by=acting, reason=reason)
    else:
        found = [accept_partition(platform.lake, platform.ledger, table, partition, by=acting, reason=reason)]
    for acceptance in found:
        report_acceptance(project.instance, TableReader.at(platform.lake), platform.ledger, acceptance)
    what = f" ({counted(len(found), 'partition')})" if dots else ""
    say(f"{table} {partition}{what} is accepted by {acting.in_words}: {reason}")
    say(
        "You can now materialize the tables that read it: ml-assets launch …, or in the pages of `ml-assets ui`."
    )
