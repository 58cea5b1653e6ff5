"""`ml-assets accept`: accept a rejected partition manually."""

import click

from ml_assets.cli.project import Project, say


@click.command("accept", short_help="Accept a rejected partition as it is, with a reason.")
@click.argument("table")
@click.argument("partition")
@click.option("--reason", required=True, help="Reason to use these rows; recorded with your name.")
def command(table: str, partition: str, reason: str) -> None:
    """Put the rejected rows of TABLE PARTITION (`datasets/flights 2013-07-04`) on main as they are."""
    from ml_assets.components.reconcile import report_acceptance
    from ml_assets.tables.accept import accept_partition
    from ml_assets.tables.reader import TableReader

    project = Project.here()
    platform = project.platform
    acting = platform.acting
    acceptance = accept_partition(
        platform.lake, platform.ledger, table, partition, acting.name, reason, checked_by=acting.checked_by
    )
    report_acceptance(project.instance, TableReader.at(platform.lake), platform.ledger, acceptance)
    say(f"{table} {partition} is accepted by {acting.in_words}: {reason}")
    say(
        "You can now materialize the tables that read it: ml-assets launch …, or in the pages of `ml-assets ui`."
    )
