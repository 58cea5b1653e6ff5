"""Routes of runs: launch, state, stop. Dagster's webserver launches and stops, so its pages show the same runs.

A launch with an `Idempotency-Key` carries the digests of key and request as tags, which no person may set. A second
request with the key finds the run by them, also if this process died between the launch and its answer.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Response
from pydantic import BaseModel, Field

from ml_assets.components.metadata import REQUESTED, TRACE_PARENT
from ml_assets.context.launch import Launchable
from ml_assets.context.launch_document import LaunchRequest, StudyRequest, TrainingRequest
from ml_assets.context.runs import ENDED, ShownRun
from ml_assets.context.studies import ShownTrial, study_target
from ml_assets.extras.api.answers import Part
from ml_assets.extras.api.frame import ApiParts, Caller, Routes
from ml_assets.extras.api.problems import ApiRefused
from ml_assets.extras.api.shapes import (
    RunDocument,
    RunId,
    Step,
    StudyDocument,
    TrialDocument,
    number_or_none,
)
from ml_assets.extras.governance.proxy.documents import AskedDocument, read_document
from ml_assets.extras.governance.proxy.persons import PageVisitor
from ml_assets.extras.traces.span import is_parent
from ml_assets.foundation.links import run_url
from ml_assets.model.release.foreign_document import MOST_DOCUMENT_BYTES, ForeignModel

TURN_SECONDS = 30.0
"""Longest wait for another request with the same key."""
KEY_TAG, REQUEST_TAG = "ml_assets/idempotency_key", "ml_assets/request"
"""Tags of a run: SHA-256 of the account and its key, and of the request."""
PIPELINES, TRAININGS, STUDIES = "/pipelines/runs", "/training-runs", "/hpo/studies"
REGISTER = "/models/register"


class LaunchHeaders(BaseModel):
    """Headers of a launch, but for those of each request."""

    idempotency_key: str | None = Field(
        default=None,
        pattern=r"^[!-~]+$",
        max_length=200,
        description="Text of your choice: a second request with it launches nothing, and answers with the first run.",
    )
    traceparent: str | None = Field(
        default=None,
        description="Span of the caller, as W3C's Trace Context has it: the run's trace goes on from it. One that is "
        "not valid is ignored, as that standard says.",
    )

    @property
    def own_tags(self) -> Mapping[str, str]:
        """Tags of the run that do not tell a request from another one."""
        parent = self.traceparent
        return {TRACE_PARENT: parent} if parent is not None and is_parent(parent) else {}


Headers = Annotated[LaunchHeaders, Header()]
_WHERE = """query($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) {
  assetKey { path } jobNames repository { name location { name } } } }"""
_JOB = "__ASSET_JOB"
"""Dagster's job of all assets."""
_LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) { __typename
  ... on LaunchRunSuccess { run { id } }
  ... on PythonError { message } ... on InvalidSubsetError { message } ... on PipelineNotFoundError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_STOP = """mutation($id: String!) { terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) { __typename
  ... on TerminateRunFailure { message } ... on RunNotFoundError { message } ... on PythonError { message } } }"""


def add_launches(routes: Routes, parts: ApiParts) -> None:
    """Add the routes."""
    launcher = _Launcher(parts)
    launches: dict[str, Any] = {"role": "operator", "status": 202, "refuses": (404, 409, 502)}

    @routes.add("POST", PIPELINES, summary="Launch a model, a table, a study or predictions", **launches)
    def launch(asked: LaunchRequest, caller: Caller, response: Response, headers: Headers) -> RunDocument:
        run = launcher.launch_target(asked.target, asked.partitions, asked.resources, caller, headers)
        return _located(response, PIPELINES, run)

    @routes.add("POST", TRAININGS, summary="Train, evaluate and register a model", **launches)
    def train(asked: TrainingRequest, caller: Caller, response: Response, headers: Headers) -> RunDocument:
        run = launcher.launch_target(asked.model, asked.partition, asked.resources, caller, headers)
        return _located(response, TRAININGS, run)

    @routes.add(
        "POST",
        f"{TRAININGS}/{{id}}/checkpoints/{{step}}/restore",
        summary="Train on from a checkpoint, as a new training",
        **launches,
    )
    def restore(id: RunId, step: Step, caller: Caller, response: Response, headers: Headers) -> RunDocument:
        find = partial(parts.context.restorable, id, step)
        run = launcher.launch(find, (f"{TRAININGS}/{id}", step), caller, headers)
        return _located(response, TRAININGS, run)

    @routes.add(
        "POST",
        REGISTER,
        summary="Evaluate a model that was trained elsewhere, and register it if no gate rejects it",
        most_bytes=MOST_DOCUMENT_BYTES,
        **launches,
    )
    def register(asked: ForeignModel, caller: Caller, response: Response, headers: Headers) -> RunDocument:
        find = partial(parts.context.registrable, asked)
        run = launcher.launch(find, (REGISTER, asked.digest), caller, headers)
        return _located(response, TRAININGS, run)

    @routes.add("POST", STUDIES, summary="Search hyperparameters, as the model declares it", **launches)
    def search(asked: StudyRequest, caller: Caller, response: Response, headers: Headers) -> StudyDocument:
        find = partial(parts.context.launchable, study_target(asked.model), resources=asked.resources)
        run = launcher.launch(find, (STUDIES, asked.model, asked.resources), caller, headers)
        return launcher.study(_located(response, STUDIES, run).id)

    @routes.add(
        "GET", f"{STUDIES}/{{id}}", role="viewer", summary="A study, and its trials", refuses=(404, 409)
    )
    def study(id: RunId) -> StudyDocument:
        return launcher.study(id)

    kept_while = parts.read.run(), parts.read.decisions
    _add_run(routes, launcher, PIPELINES, parts.context.runs.show, kept_while)
    _add_run(routes, launcher, TRAININGS, parts.context.runs.training, kept_while)


def _add_run(
    routes: Routes,
    launcher: "_Launcher",
    path: str,
    find: Callable[[str], ShownRun],
    kept_while: Sequence[Part],
) -> None:
    """Add the routes of one run that `find` returns."""

    @routes.add("GET", f"{path}/{{id}}", role="viewer", summary="State of a run", kept_while=kept_while)
    def show(id: RunId) -> RunDocument:
        return launcher.shown(find(id))

    @routes.add(
        "DELETE", f"{path}/{{id}}", role="operator", status=202, summary="Stop a run", refuses=(404, 409, 502)
    )
    def stop(id: RunId, caller: Caller) -> RunDocument:
        return launcher.stop(find(id), caller)


class _Launcher:
    """Launches and stops runs at Dagster's webserver, under the person who asks."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._ledger = parts.context.project.platform.ledger

    def shown(self, run: ShownRun) -> RunDocument:
        """Return a run as an answer."""
        facts = {name: value for name, value in vars(run).items() if name in RunDocument.model_fields}
        return RunDocument(
            **facts
            | {
                "assets": list(run.assets),
                "launched_by": run.launched_by and run.launched_by.name,
                "stopped_by": run.stopped_by and run.stopped_by.name,
                "page": run_url(self._parts.context.project.settings.ui_url, run.id),
            }
        )

    def study(self, run_id: str) -> StudyDocument:
        """Return a study as an answer."""
        found = self._parts.context.study(run_id)
        return StudyDocument(
            run=self.shown(found.run),
            model=found.model,
            metric=found.metric,
            direction=found.direction,
            trials=[TrialDocument(**_trial(one)) for one in found.trials],
            chosen=found.chosen,
            because=found.because,
        )

    def launch_target(
        self,
        target: str,
        partitions: str | None,
        resources: str | None,
        caller: PageVisitor,
        headers: LaunchHeaders,
    ) -> RunDocument:
        """Launch a declared target; see `launch`."""
        find = partial(self._parts.context.launchable, target, partitions, resources=resources)
        return self.launch(find, (target, partitions, resources), caller, headers)

    def launch(
        self,
        find: Callable[[], Launchable],
        asks: Sequence[object],
        caller: PageVisitor,
        headers: LaunchHeaders,
    ) -> RunDocument:
        """Launch what `find` returns, or return the run that was launched with this key for the same request."""
        own_tags = {**headers.own_tags, REQUESTED: f"{time.time():.3f}"}
        if headers.idempotency_key is None:
            return self._launched(find, own_tags, caller)
        key = _digest(caller.person.account, headers.idempotency_key)
        tags = {**own_tags, KEY_TAG: key, REQUEST_TAG: _digest(*asks)}
        # Requests with one key come one after another, at all processes of the API.
        with self._ledger.turn(f"api/{tags[KEY_TAG][:2]}", TURN_SECONDS):
            known = self._parts.context.runs.tagged(KEY_TAG, tags[KEY_TAG])
            if known is not None and known.tags.get(REQUEST_TAG) != tags[REQUEST_TAG]:
                raise ApiRefused(
                    409,
                    "idempotency_key_reused",
                    f"this Idempotency-Key launched the run {known.run_id} with another request: choose a new key",
                )
            run = None if known is None else self._parts.context.runs.show(known.run_id)
            if run is not None and run.launched_by is None and run.state not in ENDED:
                # The process died between the launch and its record.
                self._ledger.launches.record([run.id], caller.person, "launchRun")
                run = self._parts.context.runs.show(run.id)
            # A run without a launcher has ended: it was stopped because the ledger could not record the launch.
            return (
                self._launched(find, tags, caller)
                if run is None or run.launched_by is None
                else self.shown(run)
            )

    def _launched(
        self, find: Callable[[], Launchable], own_tags: Mapping[str, str], caller: PageVisitor
    ) -> RunDocument:
        with self._parts.declared:
            what = find()
        webserver = self._parts.webserver
        document = read_document(_LAUNCH, {"params": self._params(what, own_tags)}, None)
        webserver.require_allowed(document.mutations[0], caller, ours={*own_tags, *what.own_tags})
        what.prepare()
        _, content = webserver.launch(document, caller)
        answer: dict[str, Any] = (content.get("data") or {}).get("launchRun") or {}
        if answer.get("__typename") != "LaunchRunSuccess":
            errors: list[Any] = answer.get("errors") or content.get("errors") or [answer]
            said = str(errors[0].get("message") or content)[:400]
            raise ApiRefused(409, "dagster_refused", f"Dagster launched nothing: {said}")
        return self.shown(self._parts.context.runs.show(answer["run"]["id"]))

    def _params(self, what: Launchable, own_tags: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of the launch. Raise `ApiRefused` if the webserver lacks one of the assets."""
        keys = [{"path": list(key.path)} for key in what.keys]
        nodes = self._parts.webserver.ask(_WHERE, {"keys": keys})["assetNodes"]
        places = {(one["repository"]["name"], one["repository"]["location"]["name"]) for one in nodes}
        if len(nodes) != len(keys) or len(places) != 1 or not all(_JOB in one["jobNames"] for one in nodes):
            raise ApiRefused(
                409,
                "not_loaded",
                f"Dagster's webserver has not loaded {what.keys[0].to_user_string()}: reload its code location",
            )
        ((repository, location),) = places
        tags = [{"key": name, "value": value} for name, value in {**what.run_tags, **own_tags}.items()]
        return {
            "selector": {
                "repositoryName": repository,
                "repositoryLocationName": location,
                "pipelineName": _JOB,
                "assetSelection": keys,
            },
            "executionMetadata": {"tags": tags},
            "runConfigData": {},
        }

    def stop(self, run: ShownRun, caller: PageVisitor) -> RunDocument:
        """Ask Dagster to end a run, after the ledger has who asked."""
        if run.state in ENDED:
            raise ApiRefused(
                409, "run_ended", f"the run {run.id} is {run.state} already: there is nothing to stop"
            )
        webserver = self._parts.webserver
        document: AskedDocument = read_document(_STOP, {"id": run.id}, None)
        webserver.require_allowed(document.mutations[0], caller)
        self._ledger.launches.record_stop(run.id, caller.person)
        _, content = webserver.send_graphql(document.as_json(), is_read=False)
        answer: dict[str, Any] = (content.get("data") or {}).get("terminateRun") or {}
        if answer.get("__typename") != "TerminateRunSuccess":
            said = str(answer.get("message") or content)[:400]
            raise ApiRefused(409, "dagster_refused", f"Dagster did not stop the run {run.id}: {said}")
        return self.shown(self._parts.context.runs.show(run.id))


def _located(response: Response, place: str, run: RunDocument) -> RunDocument:
    """Return a run, whose address below `place` the answer names."""
    response.headers["Location"] = f"/api/v1{place}/{run.id}"
    return run


def _trial(one: ShownTrial) -> dict[str, Any]:
    numbers = {
        name: None if number is None else number_or_none(number)
        for name, number in (("loss", one.loss), ("value", one.value))
    }
    return vars(one) | {"parameters": dict(one.parameters)} | numbers


def _digest(*facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
