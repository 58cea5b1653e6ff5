"""The code location: the pipelines of the defs folder, the outside parts, and the policy common to all.

Nothing else belongs here. Tests and the CLI call `build_defs` with other settings.
"""

from pathlib import Path

import dagster as dg

from ml_assets.components.declarations import in_one_line, require_consistent
from ml_assets.components.declared import declared_tables
from ml_assets.components.sensors import build_missing_upstream
from ml_assets.components.sweeping import sweep_trainings
from resources.platform import Platform
from resources.settings import Settings


def build_defs(settings: Settings | None = None) -> dg.Definitions:
    """All definitions, with the outside parts that `settings` (by default the environment) select.

    `DeclarationRefused` says in a line each what is wrong with the files of the defs folder.
    """
    with in_one_line():
        pipelines = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    require_consistent(pipelines)
    settings = settings or Settings()
    return dg.Definitions.merge(
        pipelines,
        dg.Definitions(
            resources={"platform": Platform(settings), "tables": declared_tables(pipelines)},
            # Steps only orchestrate: heavy work runs in the launcher's processes. A process per step would
            # cost seconds each.
            executor=dg.in_process_executor,
            sensors=[
                build_missing_upstream,
                # Workers of this machine end with their launcher: nothing to sweep.
                *([sweep_trainings] if settings.launcher != "local" else []),
                dg.AutomationConditionSensorDefinition(
                    "automation",
                    target=dg.AssetSelection.all(),
                    default_status=dg.DefaultSensorStatus.RUNNING,
                ),
            ],
        ),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """What `workspace.yaml` loads."""
    return build_defs()
