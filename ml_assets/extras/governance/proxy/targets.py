"""Groups of the assets that a mutation touches, by the webserver's own answer.

A role may be limited to groups of assets. Assets that a mutation names belong to groups; those of a job, a run or a
backfill are looked up. Not here: which roles are limited (`resources.ledger`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ml_assets.extras.governance.proxy.documents import AskedMutation
from ml_assets.extras.governance.sessions import PageRefused

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""`(query, variables) → data`: a question to the webserver."""
AssetPath = tuple[str, ...]

_GROUPS = "query($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) { assetKey { path } groupName } }"
_OF_JOB = "query($job: PipelineSelector!) { assetNodes(pipeline: $job) { assetKey { path } } }"
_OF_RUN = """query($id: ID!) { runOrError(runId: $id) { ... on Run {
  jobName assetSelection { path } assetCheckSelection { assetKey { path } }
  repositoryOrigin { repositoryName repositoryLocationName } } } }"""
_OF_BACKFILL = """query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
  assetSelection { path } assetCheckSelection { assetKey { path } } } } }"""


class _CannotTell(Exception):
    """Nobody can tell which assets a mutation touches: the name of what is unclear."""


def require_groups(asked: AskedMutation, touches: str, groups: Iterable[str], ask: Ask) -> None:
    """Raise `PageRefused` unless `asked` touches only assets of `groups`."""
    own = set(groups)
    yours = f"your role is limited to the group{'s' * (len(own) > 1)} {', '.join(sorted(own))}"
    if touches == "nothing":
        return
    if touches == "everything":
        raise PageRefused(403, f"{asked.name} touches more than one group of assets, and {yours}")
    try:
        assets = sorted(_assets(asked, ask))
        if not assets:
            raise _CannotTell("the launch")
        found = {
            tuple(one["assetKey"]["path"]): one["groupName"]
            for one in ask(_GROUPS, {"keys": [{"path": list(one)} for one in assets]})["assetNodes"]
        }
    except _CannotTell as unclear:
        raise PageRefused(
            403, f"{asked.name} is refused, because nobody can tell the assets of {unclear}, and {yours}"
        ) from None
    for one in assets:
        if found.get(one) not in own:
            of = f"of the group {found[one]}" if found.get(one) else "of no known group"
            raise PageRefused(403, f"{'/'.join(one)} is {of}, and {yours}")


def _assets(asked: AskedMutation, ask: Ask) -> set[AssetPath]:
    """Return all assets that a mutation touches. Raise `_CannotTell`."""
    found: set[AssetPath] = set()
    for name, value in asked.arguments.items():
        found |= _of_argument(asked, name, value, ask) if value is not None else set()
    return found


def _of_argument(asked: AskedMutation, name: str, value: Any, ask: Ask) -> set[AssetPath]:
    """Return the assets of one argument. An argument that a later Dagster adds may name others: it is refused."""
    match name:
        case "executionParams":
            return _of_execution(value, ask)
        case "executionParamsList":
            return {path for one in value for path in _of_execution(one, ask)}
        case "reexecutionParams":
            return (_of_backfill if "Backfill" in asked.name else _of_run)(value["parentRunId"], ask)
        case "backfillParams":
            return _of_backfill_params(value)
        case "runId":
            return _of_run(value, ask)
        case "runIds":
            return {path for one in value for path in _of_run(one, ask)}
        case "backfillId":
            return _of_backfill(value, ask)
        case "eventParams":
            return {_path(value["assetKey"])}
        case "terminatePolicy" | "stepKey":
            return set()
        case _:
            raise _CannotTell(f"its argument {name}")


def _of_execution(params: Mapping[str, Any], ask: Ask) -> set[AssetPath]:
    selector: Mapping[str, Any] = params["selector"]
    found = _selected(selector)
    if parent := (params.get("executionMetadata") or {}).get("parentRunId"):
        found |= _of_run(parent, ask)
    if found:
        return found
    name = selector.get("jobName") or selector.get("pipelineName")
    return _of_job(name, selector, ask)


def _of_backfill_params(params: Mapping[str, Any]) -> set[AssetPath]:
    if params.get("selector") is not None:
        raise _CannotTell(f"the job of {params['selector']['partitionSetName']}")
    ranges: Iterable[Any] = params.get("partitionsByAssets") or ()
    return _selected(params) | {_path(one["assetKey"]) for one in ranges if one is not None}


def _of_run(run: str, ask: Ask) -> set[AssetPath]:
    found = ask(_OF_RUN, {"id": run})["runOrError"]
    if "jobName" not in found:
        raise _CannotTell(f"the run {run}")
    return _selected(found) or _of_job(found["jobName"], found.get("repositoryOrigin") or {}, ask)


def _of_backfill(backfill: str, ask: Ask) -> set[AssetPath]:
    found = _selected(ask(_OF_BACKFILL, {"id": backfill})["partitionBackfillOrError"])
    if not found:
        raise _CannotTell(f"the backfill {backfill}")
    return found


def _of_job(name: str | None, where: Mapping[str, Any], ask: Ask) -> set[AssetPath]:
    """Return all assets of a job: a launch without a selection touches each of them."""
    if not name or not where.get("repositoryName") or not where.get("repositoryLocationName"):
        raise _CannotTell("its job")
    job = {"pipelineName": name} | {one: where[one] for one in ("repositoryName", "repositoryLocationName")}
    found = {tuple(one["assetKey"]["path"]) for one in ask(_OF_JOB, {"job": job})["assetNodes"]}
    if not found:
        raise _CannotTell(f"the job {name}")
    return found


def _selected(of: Mapping[str, Any]) -> set[AssetPath]:
    """Return the assets of a selection of assets and checks."""
    assets: Iterable[Any] = of.get("assetSelection") or ()
    checks: Iterable[Any] = of.get("assetCheckSelection") or ()
    return {_path(one) for one in assets} | {_path(one["assetKey"]) for one in checks}


def _path(key: Mapping[str, Any]) -> AssetPath:
    return tuple(key["path"])
