"""GraphQL queries that the browser tests send to a running Dagster.

The tests read results on the pages. These queries only say when a page is ready to be read.
"""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
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
class Dagster:
    """GraphQL client of the webserver at `url`."""

    url: str

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the `data` of the answer. Raise `NotAnswering` if no server answers."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.url}/graphql", data=body, headers={"Content-Type": "application/json"}
        )
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
                raise AssertionError(f"{entry['name']}: {entry['locationOrLoadError']['message']}")
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


def _run(facts: dict[str, Any]) -> DagsterRun:
    return DagsterRun(
        id=facts["runId"],
        status=facts["status"],
        assets=frozenset("/".join(key["path"]) for key in facts["assetSelection"] or ()),
        tags={tag["key"]: tag["value"] for tag in facts["tags"]},
        steps={step["stepKey"]: step["status"] for step in facts["stepStats"]},
    )
