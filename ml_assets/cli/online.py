"""`ml-assets online get`: the newest feature row of an entity, as requests get it."""

from datetime import UTC, datetime, timedelta

import click

from ml_assets.cli.groups import SuggestingGroup
from ml_assets.cli.problems import Problem
from ml_assets.cli.project import Project, say


@click.group("online", cls=SuggestingGroup, short_help="Read the newest feature row of an entity.")
def command() -> None:
    """Read the online store, which holds the newest row of each entity of a feature table."""


@command.command("get", short_help="Print the newest feature row of an entity.")
@click.argument("table")
@click.argument("entity", nargs=-1, required=True, metavar="COLUMN=VALUE…")
def get(table: str, entity: tuple[str, ...]) -> None:
    """Print the newest row of an entity of TABLE (`features/…`). Name the entity by each column of `online.entity`.

    Values of sensitive columns are hidden. Exit status 1 if the store has no row, or the row has expired.
    """
    from ml_assets.components.feature_table import FeatureTable

    with Project.to_read() as project:
        spec = project.component(FeatureTable, table.removeprefix("features/")).spec
        declared, store = spec.online_table, project.platform.online
        typed = declared.entity_typed(entity)
        row = declared.newest(store, [declared.entity_of(typed)])[0]
        if row is None:
            raise Problem(
                f"{store.place} has no row of {declared.table} for {' '.join(entity)}, or it has expired. To fill it: "
                f"ml-assets launch {declared.table}/online PARTITIONS"
            )
        for name, value in declared.values_in(row).items():
            say(f"{name}: {'(hidden)' if spec.contract.hides(name) else value}")
        known = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.known_us)
        say(f"From main as of {known:%Y-%m-%d %H:%M:%S} UTC, in {store.place}")
