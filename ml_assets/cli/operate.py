"""`ml-assets doctor`, `drill`, `trainings`, `gc`, `events`: check the platform, and clean it up."""

import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ml_assets.cli.opened import writing
from ml_assets.cli.terminal import (
    SuggestingGroup,
    json_option,
    progress,
    say,
    say_aside,
)
from resources.words import counted, name_some

if TYPE_CHECKING:
    from ml_assets.extras.drills.drills import DrillReport
    from ml_assets.model.steps.waste import Waste


NAMES = ("kill-rank", "kill-node", "hang", "sigterm", "corrupt-checkpoint", "nan")
"""Names of the drills."""


@click.command("doctor")
@click.argument("parts", nargs=-1)
def doctor(parts: tuple[str, ...]) -> None:
    """Check each part of the platform, or PARTS alone, and print a line for it. A failed check names its remedy.

    PARTS are names as the lines show them: `ml-assets doctor definitions 'cluster pods'`. Exit status 1 if a check
    fails. A line `warn` is not a failure.
    """
    from ml_assets.cli import doctor as work

    work.doctor(parts)


@click.command("drill")
@click.argument("name", type=click.Choice([*NAMES, "all"]))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per drill, each on a line.")
def drill(name: str, as_json: bool) -> None:
    """Train a small model on synthetic rows with real worker processes, damage the training, and check its recovery.

    All files are in a temporary folder. Exit status 1 if a check fails.
    """
    from ml_assets.extras.drills import drills, fixture

    console = progress()
    began = time.monotonic()
    reports: list[DrillReport] = []
    with tempfile.TemporaryDirectory(prefix="drill-") as temporary:
        small = fixture.Fixture(Path(temporary))
        for one in NAMES if name == "all" else (name,):
            with console.status(one) as status:
                report = drills.perform(one, small, lambda text, d=one, s=status: s.update(f"{d}: {text}"))
            reports.append(report)
            for line in [json.dumps(report.to_dict())] if as_json else [*report.lines(), ""]:
                say(line)
    failed = [report.drill for report in reports if not report.ok]
    if not as_json:
        what = f"{len(reports) - len(failed)} of {len(reports)} drills passed"
        say(f"{what} in {time.monotonic() - began:.0f} s{'; failed: ' + ', '.join(failed) if failed else ''}")
    if failed:
        raise SystemExit(1)


@click.group("trainings", cls=SuggestingGroup)
def trainings() -> None:
    """Remove abandoned trainings from the cluster."""


@trainings.command("prune", short_help="Remove trainings whose launcher is gone and whose run has ended.")
def trainings_prune() -> None:
    """Remove the Jobs, pods and Services of every training whose launcher is gone and whose run has ended.

    Dagster's daemon prunes by itself. Checkpoints stay: the next launch resumes from them. A training whose run has not
    ended is kept until the run returns, for ML_ASSETS_KUBERNETES_RETURN_SECONDS at most.
    """
    from ml_assets.components.sensors.ended_runs import NOTHING_TO_PRUNE, has_ended
    from ml_assets.context.launch import end_abandoned

    project = writing().project
    end_abandoned(project)
    pruned = project.platform.launcher.prune(lambda run: has_ended(project.instance, run), say_aside)
    for name in pruned:
        say(f"removed {name}")
    if not pruned:
        say(NOTHING_TO_PRUNE)


@click.command("gc")
@click.option("--delete", is_flag=True, help="Delete it. Without this option nothing changes.")
@json_option
def gc(delete: bool, as_json: bool) -> None:
    """Show what no model, run, kept branch or environment needs; delete it with --delete.

    Partitions that their table does not retain leave main. Rows that left a branch stay in the lake's history for
    ML_ASSETS_HISTORY_DAYS. It is safe beside running launches.
    """
    from ml_assets.components.metadata import declared_tables
    from ml_assets.model.steps.waste import delete_waste, find_waste

    project = writing(on_main=True).project
    main = project.platform
    windows: dict[str, int] = {}
    for one in project.declared.pipelines().values():
        window, table = one.window, one.features.table
        windows[table] = max(windows.get(table, 0), window.total + 2 * window.embargo)
    waste = find_waste(main, declared_tables(project.defs), windows, datetime.now(UTC))
    lake = delete_waste(main, waste, main.acting.name) if delete else waste.lake
    rows = _rows(waste)
    rows.append(("lake contents", lake.objects, lake.size, lake.note))
    if as_json:
        facts = {
            kind: {"things": things, "bytes": size, "which": which} for kind, things, size, which in rows
        }
        say(json.dumps({"deleted": delete, **facts, "damaged": list(waste.damaged)}, indent=1))
        return
    for name in waste.damaged:
        say(
            f"{name}: its job.json is damaged, so all snapshots stay: launch the partition again, or delete the folder"
        )
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

    def sized(kind: str, sizes: Sequence[int], names: Iterable[str]) -> tuple[str, int, int, str]:
        return kind, len(sizes), sum(sizes), name_some(list(names), 2)

    retired = waste.retired
    spans = [f"{one.table} {one.keys[0]}..{one.keys[-1]}" for one in retired]
    shared = [one.rpartition("/")[2][:12] for one in waste.shared]
    checkpoints = [sum(files.values()) for files in waste.checkpoints.values()]
    keys, size = sum(len(one.keys) for one in retired), sum(one.size for one in retired)
    return [
        ("partitions not retained", keys, size, name_some(spans, 2)),
        ("audit branches", len(waste.audits), None, name_some(waste.audits, 2)),
        ("inputs without a version", len(waste.inputs), None, name_some(waste.inputs, 2)),
        sized("cached snapshots", [*waste.snapshots.values()], (one.name for one in waste.snapshots)),
        sized("snapshots for pods", [*waste.shared.values()], shared),
        sized("packages of reproduce", [*waste.packages.values()], (one.name for one in waste.packages)),
        sized("checkpoints of finished jobs", checkpoints, waste.checkpoints),
    ]


@click.group("events", cls=SuggestingGroup)
def events() -> None:
    """Make Dagster's event log smaller."""


@events.command(
    "prune", short_help="Show old events that no answer of Dagster needs; delete them with --delete."
)
@click.option("--delete", is_flag=True, help="Delete them. Without this option nothing changes.")
@json_option
def events_prune(delete: bool, as_json: bool) -> None:
    """Show old events that no answer of Dagster about assets needs; delete them with --delete.

    Events of the last ML_ASSETS_HISTORY_DAYS stay, and those of runs that have not ended. Pages of older runs lose
    their log lines.
    """
    from ml_assets.extras.event_pruning.prune import find_prunable, prune_events

    project = writing().project
    since = datetime.now(UTC) - timedelta(days=project.settings.history_days)
    work = prune_events if delete else find_prunable
    found = work(project.instance, project.defs.resolve_asset_graph(), since)
    if as_json:
        facts = {"rows": dict(found.rows), "bytes": found.before, "bytes_after": found.after}
        say(json.dumps({"deleted": delete, **facts}, indent=1))
        return
    for kind, rows in found.rows.items():
        say(f"{kind:<20}{rows:>12,}")
    went = found.before - found.after
    if delete:
        say(f"deleted; the event log has {found.after:,} bytes, {went:,} less than before")
        return
    days = counted(project.settings.history_days, "day")
    say(f"About {went:,} of {found.before:,} bytes. Events of the last {days} stay.")
    say("Nothing was deleted. To delete them: ml-assets events prune --delete")
