"""Tables of the proxy: who may do what in Dagster's pages. Everything that they do not name is refused.

`docs/how-to/sign-in.md` has the same table for people, compared by a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from resources.ledger import Role

ROLES: tuple[Role, ...] = get_args(Role)

Touches = Literal["nothing", "assets", "run", "backfill", "everything"]
"""Target of a mutation. A role that is limited to groups may only touch assets of them, or nothing.

`assets`: its arguments name them. `run`, `backfill`: those of the run or backfill that its arguments name.
`everything`: more than the assets of a group, such as a sensor or the workspace.
"""


@dataclass(frozen=True)
class MutationRule:
    """Lowest role that may call a mutation of Dagster's GraphQL, and what it touches."""

    role: Role
    touches: Touches


_RUN = "... on LaunchRunSuccess { {mark}: run { id } }"
_BACKFILL = "... on LaunchBackfillSuccess { {mark}: backfillId {mark}_runs: launchedRunIds }"
MARK = "_mlAssetsLaunched"
"""Name under which the proxy asks a launch for the ids of what it launched, beside what the client asks."""
LAUNCHES: Mapping[str, str] = {
    name: selection.replace("{mark}", MARK)
    for name, selection in {
        "launchPipelineExecution": _RUN,
        "launchRun": _RUN,
        "launchPipelineReexecution": _RUN,
        "launchRunReexecution": _RUN,
        "launchMultipleRuns": "... on LaunchMultipleRunsResult { {mark}: launchMultipleRunsResult "
        "{ ... on LaunchRunSuccess { run { id } } } }",
        "launchPartitionBackfill": _BACKFILL,
        "reexecutePartitionBackfill": _BACKFILL,
    }.items()
}
"""Mutation that launches runs → the selection that asks for their ids."""
PLAIN_FIELDS = frozenset(
    {
        "__typename", "backfillId", "cause", "causes", "className", "error", "errorChain", "errors", "id",
        "invalidOutputName", "invalidStepKey", "isExplicitLink", "jobName", "key", "launchMultipleRunsResult",
        "launchedRunIds", "message", "mode", "name", "parentRunId", "partitionKeys", "partitionSetName", "path",
        "pipeline", "pipelineName", "preset", "reason", "repositoryLocationName", "repositoryName",
        "resolvedOpSelection", "rootRunId", "run", "runConfigYaml", "runId", "stack", "status", "stepKey", "tags",
        "value",
    }
)  # fmt: skip
"""Fields that a launch may be asked for: what Dagster's pages and its client ask. None of them fails by an argument."""

MUTATIONS: Mapping[str, MutationRule] = {
    # Of the browser, not of the platform.
    "logTelemetry": MutationRule("viewer", "nothing"),
    "setNuxSeen": MutationRule("viewer", "nothing"),
    # Runs and backfills.
    "launchPipelineExecution": MutationRule("operator", "assets"),
    "launchRun": MutationRule("operator", "assets"),
    "launchMultipleRuns": MutationRule("operator", "assets"),
    "launchPipelineReexecution": MutationRule("operator", "assets"),
    "launchRunReexecution": MutationRule("operator", "assets"),
    "launchPartitionBackfill": MutationRule("operator", "assets"),
    "reexecutePartitionBackfill": MutationRule("operator", "backfill"),
    "resumePartitionBackfill": MutationRule("operator", "backfill"),
    "cancelPartitionBackfill": MutationRule("operator", "backfill"),
    "terminatePipelineExecution": MutationRule("operator", "run"),
    "terminateRun": MutationRule("operator", "run"),
    "terminateRuns": MutationRule("operator", "run"),
    "freeConcurrencySlots": MutationRule("operator", "run"),
    "freeConcurrencySlotsForRun": MutationRule("operator", "run"),
    # Schedules and sensors. A dry run executes their code.
    "startSchedule": MutationRule("operator", "everything"),
    "stopRunningSchedule": MutationRule("operator", "everything"),
    "resetSchedule": MutationRule("operator", "everything"),
    "scheduleDryRun": MutationRule("operator", "everything"),
    "startSensor": MutationRule("operator", "everything"),
    "stopSensor": MutationRule("operator", "everything"),
    "resetSensor": MutationRule("operator", "everything"),
    "sensorDryRun": MutationRule("operator", "everything"),
    "reloadRepositoryLocation": MutationRule("operator", "everything"),
    "reloadWorkspace": MutationRule("operator", "everything"),
    "addDynamicPartition": MutationRule("operator", "everything"),
    # Words of a person in place of a run.
    "reportRunlessAssetEvents": MutationRule("approver", "assets"),
    "reportAssetCheckEvaluations": MutationRule("approver", "assets"),
    # The record of the past, and how the platform works.
    "deletePipelineRun": MutationRule("admin", "everything"),
    "deleteRun": MutationRule("admin", "everything"),
    "wipeAssets": MutationRule("admin", "everything"),
    "deleteDynamicPartitions": MutationRule("admin", "everything"),
    "setSensorCursor": MutationRule("admin", "everything"),
    "setAutoMaterializePaused": MutationRule("admin", "everything"),
    "setConcurrencyLimit": MutationRule("admin", "everything"),
    "deleteConcurrencyLimit": MutationRule("admin", "everything"),
    "shutdownRepositoryLocation": MutationRule("admin", "everything"),
    "setAppManagedComponent": MutationRule("admin", "everything"),
    "deleteAppManagedComponent": MutationRule("admin", "everything"),
    "refreshComponentState": MutationRule("admin", "everything"),
}
"""Mutation of Dagster's GraphQL → its rule. A mutation that a later Dagster adds is refused until it has a row."""


@dataclass(frozen=True)
class PathRule:
    """Lowest role that may request paths below a first part, beside GraphQL, and how."""

    role: Role
    method: Literal["GET", "POST"] = "GET"


PATHS: Mapping[str, PathRule] = {
    # Words of a person in place of a run, like the mutations of that name. The asset may stand in path, query or body.
    "report_asset_materialization": PathRule("approver", "POST"),
    "report_asset_check": PathRule("approver", "POST"),
    "report_asset_observation": PathRule("approver", "POST"),
    # All events of a run, with what they recorded.
    "download_debug": PathRule("operator"),
    # A file of the code location by its path.
    "notebook": PathRule("admin"),
    "dagit": PathRule("admin"),
}
"""First part of a path of Dagster's webserver → its rule. A role that is limited to groups may use none of them. Other
paths are pages and files, which everybody may read."""

FREE_TAGS = frozenset(
    {
        "dagster/partition",
        "dagster/asset_partition_range_start",
        "dagster/asset_partition_range_end",
        "dagster/partition_set",
        "dagster/is_resume_retry",
        "dagster/is_asset_resume_retry",
        "dagster/step_selection",
        "dagster/solid_selection",
        "dagster/op_selection",
        "dagster/preset_name",
        "dagster/from_ui",
        "dagster/priority",
        "dagster/max_retries",
        "dagster/max_runtime",
        "dagster/retry_strategy",
        "dagster/retry_on_asset_or_op_failure",
        "ml_assets/resources",
    }
)
"""Tags among the reserved ones that a person may give a run."""
_RESERVED = ("dagster/", ".dagster/", "dagster-", "ml_assets/", "ml-assets/")
_NAMES_A_PERSON = "user"


def is_reserved(tag: str) -> bool:
    """Return True for a tag by which Dagster or the platform decides, such as the image of a pod or a backfill's id."""
    plain = tag.strip().casefold()
    if plain in FREE_TAGS or plain.startswith("dagster/partition/"):
        return False
    return plain == _NAMES_A_PERSON or plain.startswith(_RESERVED)


def may(role: Role, lowest: Role) -> bool:
    """Return True if `role` is at least `lowest`."""
    return ROLES.index(role) >= ROLES.index(lowest)
