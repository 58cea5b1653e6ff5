"""All definitions together: the pipelines of the defs folder, the platform, and the policy common to all.

Nothing else belongs here. `definitions` loads this module for Dagster and for commands; tests call `build_defs` with
parts of their own.
"""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets.components.assets.digest import nightly_digest
from ml_assets.components.base import SpecComponent
from ml_assets.components.behind import SingleComponents
from ml_assets.components.checks.leakage import request_leakage_tests
from ml_assets.components.declarations import DeclarationRefused, in_one_line, require_consistent
from ml_assets.components.failures import executed
from ml_assets.components.metadata import declared_tables
from ml_assets.components.sensors.ended_runs import build_missing_upstream, prune_trainings, tell_failures
from ml_assets.components.sensors.reconcile import report_missing_materializations
from ml_assets.components.sensors.traces import trace_sensors
from ml_assets.dagster_host.dead_runs import in_process_within
from ml_assets.dagster_host.defs_folder import PipelineTree
from ml_assets.dagster_host.run_watcher import watched
from ml_assets.dagster_host.steps import step_values
from ml_assets.data.tables.declared import DeclaredTables
from resources.platform import Platform
from resources.settings import Settings

# A run of a table may cover a range, a run of a model only one partition. Dagster warns of it whenever it loads a
# scheduled model's job, 13 times in 13 minutes of a daemon, although that job always runs for one partition.
warnings.filterwarnings(
    "ignore", r"Asset job \w+ materializes assets with varying BackfillPolicies", UserWarning
)


def build_defs(
    settings: Settings | None = None,
    *,
    components: Sequence[SpecComponent] | None = None,
    platform: Platform | None = None,
    tree: PipelineTree | None = None,
    only: Sequence[str] = (),
    automation_seconds: int = 30,
) -> dg.Definitions:
    """Return all definitions, with the platform that `settings` (by default the environment) select.

    `tree` keeps the components that a command read before. `only` are names of models and tables: then the definitions
    are theirs and those of all tables behind them. A replay and tests pass `components` instead of the files of the
    defs folder, and a `platform` to inspect afterwards. `automation_seconds`: time between two evaluations of the
    automation conditions. Raises `DeclarationRefused` with one line per fault in the files of the defs folder, and for
    a name in `only` that no `defs.yaml` declares.
    """
    single: SingleComponents | None = None
    if components is None:
        with in_one_line():
            tree = tree or PipelineTree.for_project(Path(__file__).parent)
            single = SingleComponents(tree) if only else None
            pipelines = _of(single, only) if single else tree.build_defs()
        require_consistent(pipelines)
    else:  # no component uses its load context
        context: Any = None
        pipelines = dg.Definitions.merge(*(one.build_defs(context) for one in components))
    tables = declared_tables(pipelines)
    tables = tables.completed_by(single.table) if single else tables
    settings = settings or Settings()
    return dg.Definitions.merge(
        runnable(pipelines, platform or Platform(settings), tables),
        nightly_digest(pipelines),
        dg.Definitions(
            sensors=[
                build_missing_upstream,
                tell_failures,
                report_missing_materializations,
                request_leakage_tests,
                # Workers of this machine end with their launcher: nothing to prune.
                *([prune_trainings] if settings.launcher != "local" else []),
                *trace_sensors(settings),
                dg.AutomationConditionSensorDefinition(
                    "automation",
                    target=dg.AssetSelection.all(),
                    default_status=dg.DefaultSensorStatus.RUNNING,
                    minimum_interval_seconds=automation_seconds,
                ),
            ],
        ),
    )


def _of(single: SingleComponents, names: Sequence[str]) -> dg.Definitions:
    found = single.definitions_of(names)
    if found is None:
        raise DeclarationRefused(
            f"ML_ASSETS_ONLY is {', '.join(names)}: a name is not declared, or a Python file defines assets, which "
            "only all definitions have. Correct the name, or leave the setting out"
        )
    return found


def runnable(pipelines: dg.Definitions, platform: Platform, tables: DeclaredTables) -> dg.Definitions:
    """Return `pipelines` with all that a run of them needs. `tables` are all that are declared."""
    return dg.Definitions.merge(
        pipelines,
        dg.Definitions(
            resources={
                "platform": platform,
                "tables": tables,
                "io_manager": step_values,
            },
            # Steps only orchestrate: heavy work runs in the launcher's processes. A process per step would cost
            # seconds.
            executor=in_process_within(_of_dagster),
        ),
    )


@contextmanager
def _of_dagster(instance: dg.DagsterInstance, run_id: str) -> Generator[None]:
    """Watch over a run that Dagster launched, while the block executes it."""
    with watched(run_id), executed(instance, run_id):
        yield
