"""`ml-assets acceptances`: who accepted which rejected partitions, and why."""

import click

from ml_assets.cli.project import Project, say


@click.command("acceptances", short_help="List accepted partitions: who accepted them, and why.")
@click.argument("table", required=False)
def command(table: str | None) -> None:
    """List the accepted partitions of TABLE, or of all tables, oldest first.

    An acceptance covers one verdict. `overtaken` means that the partition has a newer verdict, so that it decides.
    """
    from resources.ledger import author_in_words

    with Project.to_read() as project:
        ledger = project.platform.ledger
        found = ledger.acceptances(table)
        if table and not found:
            project.table(table)  # refuses a mistyped name
        keys = {
            name: {one.key for one in found if one.table == name} for name in {one.table for one in found}
        }
        newest = {(name, key): row for name, some in keys.items()
                  for key, row in ledger.newest_verdicts(name, some).items()}  # fmt: skip
    for one in found:
        overtaken = "" if newest[one.table, one.key].number == one.number else "  (overtaken)"
        say(
            f"{one.at:%Y-%m-%d %H:%M} UTC  {one.table} {one.key}  {author_in_words(one)}: {one.reason}"
            f"{f'  (level {one.level})' if one.level else ''}{overtaken}"
        )
    if not found:
        say(f"No partition{f' of {table}' if table else ''} was accepted.")
