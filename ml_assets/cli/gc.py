"""`ml-assets gc`: show what nothing needs any more, in bytes; delete it."""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ml_assets.cli.project import Project, say
from resources.words import counted, name_some

if TYPE_CHECKING:
    from ml_assets.model.steps.waste import Waste


@click.command("gc", short_help="Show what nothing needs any more, in bytes; delete it with --delete.")
@click.option("--delete", is_flag=True, help="Delete it. Without this option nothing changes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(delete: bool, as_json: bool) -> None:
    """Show what no model, run, kept branch or environment needs; delete it with --delete.

    Partitions that their table does not retain leave main. Rows that left a branch stay in the lake's history for
    ML_ASSETS_HISTORY_DAYS. It is safe beside running launches.
    """
    from ml_assets.components.metadata import declared_tables
    from ml_assets.components.training_pipeline import TrainingPipeline
    from ml_assets.model.steps.waste import delete_waste, find_waste

    project = Project.on_main()
    main = project.platform
    windows: dict[str, int] = {}
    for one in project.components(TrainingPipeline):
        window, table = one.spec.window, one.spec.features.table
        windows[table] = max(windows.get(table, 0), window.total + 2 * window.embargo)
    waste = find_waste(main, declared_tables(project.defs), windows, datetime.now(UTC))
    lake = delete_waste(main, waste, main.acting.name) if delete else waste.lake
    rows = _rows(waste)
    rows.append(("lake contents", lake.objects, lake.size, lake.note))
    if as_json:
        facts = {
            kind: {"things": things, "bytes": size, "which": which} for kind, things, size, which in rows
        }
        say(json.dumps({"deleted": delete, **facts}, indent=1))
        return
    for kind, things, size, which in rows:
        said = "–" if size is None else f"{size:,}"
        say(f"{kind:<28}{things:>9,}{said:>18} bytes  {which}".rstrip())
    if delete:
        say(
            f"deleted; rows that left main are readable for {counted(project.settings.history_days, 'day')} more"
        )
    else:
        say("Nothing was deleted. To delete it: ml-assets gc --delete")


def _rows(waste: "Waste") -> list[tuple[str, int, int | None, str]]:
    """Return (kind, number of things, bytes, which) of everything but the contents of the lake."""
    spans = [f"{one.table} {one.keys[0]}..{one.keys[-1]}" for one in waste.retired]
    checkpoints = waste.checkpoints
    return [
        (
            "partitions not retained",
            sum(len(one.keys) for one in waste.retired),
            sum(one.size for one in waste.retired),
            _some(spans),
        ),
        ("audit branches", len(waste.audits), None, _some(waste.audits)),
        ("inputs without a version", len(waste.inputs), None, _some(waste.inputs)),
        (
            "cached snapshots",
            len(waste.snapshots),
            sum(waste.snapshots.values()),
            _some([one.name for one in waste.snapshots]),
        ),
        (
            "snapshots for pods",
            len(waste.shared),
            sum(waste.shared.values()),
            _some([one.rpartition("/")[2][:12] for one in waste.shared]),
        ),
        (
            "packages of reproduce",
            len(waste.packages),
            sum(waste.packages.values()),
            _some([one.name for one in waste.packages]),
        ),
        (
            "checkpoints of finished jobs",
            len(checkpoints),
            sum(size for files in checkpoints.values() for size in files.values()),
            _some(list(checkpoints)),
        ),
    ]


def _some(names: Collection[str]) -> str:
    return name_some(names, 2)
