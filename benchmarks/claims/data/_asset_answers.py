"""Dagster's answers over GraphQL about assets: the questions of its pages. Not here: runs and their logs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.test_utils import in_process_test_workspace
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceRequestContext
from dagster_graphql.test.utils import execute_dagster_graphql

_EVENT = """
    runId timestamp stepKey partition description
    tags { key value }
    metadataEntries { __typename label ... on IntMetadataEntry { intValue } ... on TextMetadataEntry { text } }
    stepStats { stepKey status startTime endTime }
    runOrError { __typename ... on Run { runId status startTime endTime } }
"""
_ASSETS = f"""{{ assetNodes {{
    assetKey {{ path }}
    isPartitioned
    dependencyKeys {{ path }}
    dependedByKeys {{ path }}
    dataVersion
    staleStatus
    staleCauses {{ key {{ path }} partitionKey category reason dependency {{ path }} dependencyPartitionKey }}
    assetMaterializations(limit: 1) {{ {_EVENT} }}
    assetObservations(limit: 1) {{ runId timestamp partition description }}
    partitionStats {{ numMaterialized numPartitions numFailed numMaterializing }}
    assetPartitionStatuses {{
      __typename
      ... on TimePartitionStatuses {{ ranges {{ startKey endKey status }} }}
      ... on DefaultPartitionStatuses {{ materializedPartitions failedPartitions materializingPartitions }}
    }}
    assetChecksOrError {{ ... on AssetChecks {{ checks {{
      name
      executionForLatestMaterialization {{ id runId status timestamp partition
        evaluation {{ success severity description timestamp targetMaterialization {{ storageId runId timestamp }} }} }}
      executions: name
    }} }} }}
}} }}"""
_LIGHT = """query Light($key: AssetKeyInput!, $keys: [String!]!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
    latestMaterializationByPartition(partitions: $keys) { runId timestamp partition tags { key value } }
} } }"""
_PARTITIONS = f"""query Partitions($key: AssetKeyInput!, $keys: [String!]!) {{
  assetNodeOrError(assetKey: $key) {{ ... on AssetNode {{
    latestMaterializationByPartition(partitions: $keys) {{ {_EVENT} }}
    dataVersionByPartition(partitions: $keys)
    staleStatusByPartition(partitions: $keys)
    staleCausesByPartition(partitions: $keys) {{
      key {{ path }} partitionKey category reason dependency {{ path }} dependencyPartitionKey
    }}
  }} }}
}}"""
_OF_PARTITION = """query Partition($key: AssetKeyInput!, $partition: String!) { assetNodeOrError(assetKey: $key) {
  ... on AssetNode { latestRunForPartition(partition: $partition) { runId status } } } }"""
_USED = """query Used($key: AssetKeyInput!, $at: String!) { assetNodeOrError(assetKey: $key) {
  ... on AssetNode { assetMaterializationUsedData(timestampMillis: $at) { assetKey { path } timestamp } } } }"""
_LATEST = """query Latest($keys: [AssetKeyInput!]!) { assetsLatestInfo(assetKeys: $keys) {
  assetKey { path } unstartedRunIds inProgressRunIds
  latestRun { runId status } latestMaterialization { runId timestamp }
} }"""
_EXECUTIONS = """query Checks($key: AssetKeyInput!, $name: String!) {
  assetCheckExecutions(assetKey: $key, checkName: $name, limit: 1) {
    id runId status timestamp evaluation { success }
} }"""
_KEYS = """query Keys($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
  ... on AssetNode { partitionKeyConnection(limit: 100000, ascending: true) { results } } } }"""


@contextmanager
def asked(instance: dg.DagsterInstance, module: str, attribute: str) -> Iterator["Asked"]:
    """Yield Dagster's GraphQL over `instance` and the definitions `attribute` of `module`."""
    origin = LoadableTargetOrigin(module_name=module, attribute=attribute)
    with in_process_test_workspace(instance, origin) as context:
        yield Asked(context)


class Asked:
    """Dagster's GraphQL without a server."""

    def __init__(self, context: WorkspaceRequestContext) -> None:
        self._context = context

    def __call__(self, question: str, **variables: Any) -> Any:
        """Return the data of an answer. Errors of a question are raised."""
        return execute_dagster_graphql(self._context, question, variables).data

    def everything(self, closely: int = 1000) -> str:
        """Return all answers about all assets as text.

        Of each asset all partitions are listed, and the newest `closely` looked at one by one.
        """
        nodes = self(_ASSETS)["assetNodes"]
        said: list[Any] = [nodes, self(_LATEST, keys=[one["assetKey"] for one in nodes])]
        for node in nodes:
            key = node["assetKey"]
            for check in (node["assetChecksOrError"] or {}).get("checks", ()):
                said.append(self(_EXECUTIONS, key=key, name=check["name"]))
            events = [*node["assetMaterializations"]]
            if node["isPartitioned"]:
                keys = self(_KEYS, key=key)["assetNodeOrError"]["partitionKeyConnection"]["results"]
                said.append(self(_LIGHT, key=key, keys=keys))
                some = keys[-closely:]
                found = self(_PARTITIONS, key=key, keys=some)
                said.append(found)
                events += [
                    one for one in found["assetNodeOrError"]["latestMaterializationByPartition"] if one
                ]
                said += [self(_OF_PARTITION, key=key, partition=one) for one in some]
            said += [self(_USED, key=key, at=one["timestamp"]) for one in events]
        return json.dumps(said, indent=1, sort_keys=True)
