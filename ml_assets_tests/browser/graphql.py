"""GraphQL queries that the browser tests send to a running Dagster.

The tests read results on the pages. These queries only say when a page is ready to be read.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

PATIENCE_SECONDS = 900.0
"""Longest wait for a run, ten times what a busy machine needs."""
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}

_READY = """{
  workspaceOrError { ... on Workspace { locationEntries {
    name loadStatus locationOrLoadError { __typename ... on PythonError { message } } } } }
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
}"""

_RUN_FIELDS = """
  runId status assetSelection { path } tags { key value }
  stepStats { stepKey status }
"""
_RUN = "query($id: ID!) { runOrError(runId: $id) { ... on Run {" + _RUN_FIELDS + "} } }"
_RUNS = "{ runsOrError(limit: 100) { ... on Runs { results {" + _RUN_FIELDS + "} } } }"
_LAUNCH = """mutation($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename
  ... on LaunchRunSuccess { run { runId } }
  ... on PythonError { message }
  ... on InvalidSubsetError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_STEP_LOGS = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
  ... on LogsCapturedEvent { fileKey } } } } }"""
_STEP_LOG = "query($key: [String!]!) { capturedLogs(logKey: $key) { stdout stderr } }"
_TICKS = """query($selector: ScheduleSelector!) { scheduleOrError(scheduleSelector: $selector) {
  ... on Schedule { scheduleState { ticks(limit: 50) { timestamp status runIds skipReason error { message } } } } } }"""
_MESSAGES = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
  ... on MessageEvent { message }
  ... on ExecutionStepFailureEvent { error { message } } } } } }"""


class NotAnswering(Exception):
    """No server answers at this address, or the server is still starting."""


@dataclass(frozen=True, slots=True)
class DagsterRun:
    """Run, as Dagster describes it."""

    id: str
    status: str
    """Status in Dagster's words: QUEUED, STARTING, STARTED, SUCCESS, FAILURE, …"""
    assets: frozenset[str]
    """Selected assets, `a/b`."""
    tags: dict[str, str]
    steps: dict[str, str]
    """Step key → status, for the steps that started."""


@dataclass(frozen=True, slots=True)
class ScheduleTick:
    """One evaluation of a schedule."""

    due: datetime
    """Moment (UTC) for which it was planned, which may be long before it was evaluated."""
    status: str
    """SUCCESS, SKIPPED, FAILURE or STARTED."""
    run_ids: list[str]
    why: str
    """Reason of a skipped tick, or error of a failed one."""


@dataclass(frozen=True, slots=True)
class Dagster:
    """GraphQL client of the webserver at `url`."""

    url: str
    token: str = ""
    """Token of an account, for the proxy in front of a webserver."""

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the `data` of the answer. Raise `NotAnswering` if no server answers."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(f"{self.url}/graphql", data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                answer = json.load(response)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            raise NotAnswering(f"{self.url}: {error}") from error
        if answer.get("errors"):
            raise AssertionError(f"Dagster refused {query[:80]}: {answer['errors']}")
        return answer["data"]

    def why_not_ready(self) -> str:
        """Return what Dagster still waits for; empty once all definitions are loaded and the daemons are healthy."""
        answer = self.ask(_READY)
        entries = answer["workspaceOrError"]["locationEntries"]
        for entry in entries:
            if (entry["locationOrLoadError"] or {}).get("__typename") == "PythonError":
                said = f"{entry['name']}: {entry['locationOrLoadError']['message']}"
                if "DagsterUserCodeUnreachableError" in said:  # an upgrade is replacing it
                    return said
                raise AssertionError(said)
        waiting = [entry["name"] for entry in entries if entry["loadStatus"] != "LOADED"]
        daemons = answer["instance"]["daemonHealth"]["allDaemonStatuses"]
        waiting += [each["daemonType"] for each in daemons if each["required"] and not each["healthy"]]
        return f"waiting for {', '.join(waiting)}" if waiting or not entries else ""

    def runs(self) -> list[DagsterRun]:
        """Return the last 100 runs, newest first."""
        return [_run(one) for one in self.ask(_RUNS)["runsOrError"]["results"]]

    def run(self, run_id: str) -> DagsterRun:
        """Return the run with this id."""
        return _run(self.ask(_RUN, id=run_id)["runOrError"])

    def messages(self, run_id: str) -> str:
        """Return the run's log, one event a line."""
        events = self.ask(_MESSAGES, id=run_id)["logsForRun"]["events"]
        return "\n".join(
            text
            for event in events
            for text in (event.get("message"), (event.get("error") or {}).get("message"))
            if text
        )

    def launch(self, location: str, assets: list[str], tags: Mapping[str, str]) -> str:
        """Materialize `assets` (`a/b`) in one run, as the page's button does; return the run's id. `tags` name the
        partition.
        """
        selection = [{"path": name.split("/")} for name in assets]
        params = {
            "selector": {**_repository(location), "pipelineName": "__ASSET_JOB", "assetSelection": selection},
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
            "runConfigData": {},
        }
        answer = self.ask(_LAUNCH, params=params)["launchPipelineExecution"]
        assert "run" in answer, answer
        return answer["run"]["runId"]

    def step_logs(self, run_id: str) -> str:
        """Return what the steps of a run wrote to stdout and stderr, as the webserver serves it."""
        events = self.ask(_STEP_LOGS, id=run_id)["logsForRun"]["events"]
        keys = [event["fileKey"] for event in events if "fileKey" in event]
        logs = [self.ask(_STEP_LOG, key=[run_id, "compute_logs", key])["capturedLogs"] for key in keys]
        return "\n".join(log[stream] or "" for log in logs for stream in ("stdout", "stderr"))

    def ticks(self, location: str, schedule: str) -> list[ScheduleTick]:
        """Return the last 50 ticks of a schedule, newest first."""
        selector = {**_repository(location), "scheduleName": schedule}
        state = self.ask(_TICKS, selector=selector)["scheduleOrError"]["scheduleState"]
        return [
            ScheduleTick(
                due=datetime.fromtimestamp(tick["timestamp"], UTC),
                status=tick["status"],
                run_ids=tick["runIds"],
                why=tick["skipReason"] or (tick["error"] or {}).get("message", ""),
            )
            for tick in state["ticks"]
        ]

    def wait_for_run(self, run_id: str) -> DagsterRun:
        """Wait for the end of a run and return it. If the wait takes too long, fail with the run's log."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (run := self.run(run_id)).status not in ENDED:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{run} has not ended in {PATIENCE_SECONDS:.0f} s:\n{self.messages(run_id)[-3000:]}"
                )
            time.sleep(1.0)
        return run

    def wait_for_runs_of(self, tag: str, value: str, asset: str) -> list[DagsterRun]:
        """Wait until a run with this tag that selected `asset` has ended; return all runs with the tag."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = [run for run in self.runs() if run.tags.get(tag) == value]
            if any(asset in run.assets and run.status in ENDED for run in found):
                return found
            if any(run.status in ("FAILURE", "CANCELED") for run in found) or time.monotonic() > deadline:
                logs = "\n".join(f"{run}\n{self.messages(run.id)[-2000:]}" for run in found)
                raise AssertionError(
                    f"no run tagged {tag}={value} of {asset} ended well in {PATIENCE_SECONDS:.0f} s:\n{logs}"
                )
            time.sleep(1.0)


def _repository(location: str) -> dict[str, str]:
    return {"repositoryLocationName": location, "repositoryName": "__repository__"}


def _run(facts: dict[str, Any]) -> DagsterRun:
    return DagsterRun(
        id=facts["runId"],
        status=facts["status"],
        assets=frozenset("/".join(key["path"]) for key in facts["assetSelection"] or ()),
        tags={tag["key"]: tag["value"] for tag in facts["tags"]},
        steps={step["stepKey"]: step["status"] for step in facts["stepStats"]},
    )
