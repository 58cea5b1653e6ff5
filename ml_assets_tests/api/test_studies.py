"""Studies over HTTP: a queued run under its person, its trials, and refusals that change nothing."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import AssetObservationData, DagsterEvent, StepMaterializationData

from ml_assets.extras.tuning.chosen import store_result
from ml_assets.foundation.days import Days
from ml_assets.model.steps.study_metric import TRIAL_VALUE
from ml_assets.model.steps.study_result import StudyResult, TrialOutcome
from ml_assets_tests.api.conftest import ServedApi, serving_api, serving_definitions
from ml_assets_tests.api.test_frame import NOBODY, problem
from ml_assets_tests.api.test_launches import TABLE, run_of, state
from resources.ledger import TrainedOn

MODEL = "flight_delay"
KEY = dg.AssetKey([MODEL, "hyperparameters"])
RESULT = StudyResult(
    study="5" * 64,
    name=f"{MODEL}-555555555555",
    model=MODEL,
    partition="2013-12-31",
    snapshot="6" * 64,
    window=TrainedOn(
        commit="7" * 64,
        table="features/flight_departures",
        first="2013-01-01",
        last="2013-12-31",
        partitions=365,
        begins_with="",
    ),
    seen=Days(),
    sampler="random",
    pruner="none",
    trials=(
        TrialOutcome(
            number=0, parameters={"training.epochs": 4}, state="finished", validation_loss=0.5, steps=80
        ),
        TrialOutcome(
            number=1, parameters={"training.epochs": 2}, state="finished", validation_loss=0.4, steps=40
        ),
        TrialOutcome(number=2, parameters={"training.epochs": 1}, state="failed", why="out of memory"),
    ),
)


@pytest.fixture(scope="module")
def searching(api: ServedApi) -> Iterator[ServedApi]:
    """The API beside a webserver that has loaded a model with a study."""
    with (
        serving_definitions(api.context.project.settings, MODEL) as webserver,
        serving_api(api.context, webserver) as address,
    ):
        yield dataclasses.replace(api, address=address, webserver=webserver)


def tell(api: ServedApi, run_id: str, kind: str, facts: Any) -> None:
    """Let a run tell a fact about the asset of the study."""
    event = DagsterEvent(event_type_value=kind, job_name="__ASSET_JOB", event_specific_data=facts)
    api.context.project.instance.report_dagster_event(event, run_id)


def test_a_study_is_a_run_of_the_search_that_the_model_declares(searching: ServedApi) -> None:
    answer = searching.ask("operator", "POST", "/hpo/studies", {"model": MODEL, "config": {"memory": "3Gi"}})
    told = answer.json()
    assert answer.status_code == 202, told
    assert answer.headers["location"] == f"/api/v1/hpo/studies/{told['run']['id']}"
    assert (told["model"], told["metric"], told["direction"]) == (MODEL, "validation_loss", "minimize")
    assert (told["run"]["state"], told["run"]["assets"]) == ("queued", [KEY.to_user_string()])
    assert (told["trials"], told["chosen"], told["run"]["launched_by"]) == ([], None, "operator")
    assert run_of(searching, told["run"]["id"]).tags["ml_assets/resources"] == '{"memory": "3Gi"}'
    assert searching.ask("viewer", "GET", f"/hpo/studies/{told['run']['id']}").json() == told


def test_requests_for_a_study_with_one_key_are_one_run(searching: ServedApi) -> None:
    before = state(searching)
    asks = [
        searching.ask("operator", "POST", "/hpo/studies", {"model": MODEL}, **{"idempotency-key": "search"})
        for _ in range(2)
    ]
    assert len({one.json()["run"]["id"] for one in asks}) == 1
    assert state(searching) == (before[0] + 1, before[1] + 1)


def test_a_study_shows_its_trials_and_then_its_result(searching: ServedApi) -> None:
    run_id = searching.ask("operator", "POST", "/hpo/studies", {"model": MODEL}).json()["run"]["id"]
    for trial, step, loss in ((0, 10, 0.9), (1, 10, 0.8), (0, 20, 0.6)):
        facts = {"trial": trial, "step": step, "best_validation_loss": loss}
        observed = AssetObservationData(dg.AssetObservation(KEY, metadata=facts))
        tell(searching, run_id, dg.DagsterEventType.ASSET_OBSERVATION.value, observed)
    told = searching.ask("viewer", "GET", f"/hpo/studies/{run_id}").json()
    assert [(one["number"], one["state"], one["step"], one["loss"]) for one in told["trials"]] == [
        (0, "running", 20, 0.6),
        (1, "running", 10, 0.8),
    ]
    store_result(searching.platform, RESULT, "")
    made = dg.AssetMaterialization(KEY, metadata={"study_result": RESULT.digest})
    tell(searching, run_id, dg.DagsterEventType.ASSET_MATERIALIZATION.value, StepMaterializationData(made))
    told = searching.ask("viewer", "GET", f"/hpo/studies/{run_id}").json()
    assert [(one["state"], one["loss"], one["why"]) for one in told["trials"]] == [
        ("finished", 0.5, ""),
        ("finished", 0.4, ""),
        ("failed", None, "out of memory"),
    ]
    assert (told["chosen"], told["trials"][1]["parameters"]) == (1, {"training.epochs": 2})
    assert "trial 1 has the lowest validation loss" in told["because"]
    assert [one["value"] for one in told["trials"]] == [0.5, 0.4, None]


def test_a_trial_that_finished_has_its_value_before_the_study_ends(searching: ServedApi) -> None:
    run_id = searching.ask("operator", "POST", "/hpo/studies", {"model": MODEL}).json()["run"]["id"]
    learned = {"step": 20, "best_validation_loss": 0.6}
    for facts in (
        {"trial": 0, **learned},
        {"trial": 1, **learned},
        {"trial": 0, "step": 20, TRIAL_VALUE: 0.9},
    ):
        observed = AssetObservationData(dg.AssetObservation(KEY, metadata=facts))
        tell(searching, run_id, dg.DagsterEventType.ASSET_OBSERVATION.value, observed)
    told = searching.ask("viewer", "GET", f"/hpo/studies/{run_id}").json()
    assert [(one["state"], one["loss"], one["value"]) for one in told["trials"]] == [
        ("finished", 0.6, 0.9),
        ("running", 0.6, 0.6),
    ]


def test_a_study_by_a_metric_shows_values_and_direction(searching: ServedApi) -> None:
    trials = [
        dataclasses.replace(one, value=value)
        for one, value in zip(RESULT.trials, (0.9, 0.8, None), strict=True)
    ]
    result = dataclasses.replace(
        RESULT, trials=tuple(trials), metric="auc", direction="maximize", measured_by="it"
    )
    run_id = searching.ask("operator", "POST", "/hpo/studies", {"model": MODEL}).json()["run"]["id"]
    store_result(searching.platform, result, "")
    made = dg.AssetMaterialization(KEY, metadata={"study_result": result.digest})
    tell(searching, run_id, dg.DagsterEventType.ASSET_MATERIALIZATION.value, StepMaterializationData(made))
    told = searching.ask("viewer", "GET", f"/hpo/studies/{run_id}").json()
    assert (told["metric"], told["direction"], told["chosen"]) == ("auc", "maximize", 0)
    assert [(one["value"], one["loss"]) for one in told["trials"]] == [(0.9, 0.5), (0.8, 0.4), (None, None)]
    assert "trial 0 has the highest auc of the validation rows, 0.9" in told["because"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "store_demand"}, 422, "launch_refused"),
        ({"model": "flight_dela"}, 404, "not_found"),
        ({"model": "../flight_delay"}, 422, "invalid_request"),
        ({"model": f"{MODEL}/hyperparameters"}, 422, "invalid_request"),
        ({"model": MODEL, "objective": {"metric": "auc"}}, 422, "invalid_request"),
        ({"model": MODEL, "config": {"memry": "1Gi"}}, 422, "profile_refused"),
        ({}, 422, "invalid_request"),
    ],
)
def test_a_wrong_study_is_refused_and_changes_nothing(
    searching: ServedApi, body: Any, status: int, code: str
) -> None:
    before = state(searching)
    assert problem(searching.ask("operator", "POST", "/hpo/studies", body)) == (status, code)
    assert state(searching) == before


def test_another_run_is_no_study(searching: ServedApi, api: ServedApi) -> None:
    other = api.ask("operator", "POST", "/pipelines/runs", TABLE).json()["id"]
    before = state(api)
    for run_id in (other, NOBODY):
        assert problem(searching.ask("viewer", "GET", f"/hpo/studies/{run_id}")) == (404, "not_found")
    assert problem(searching.ask("viewer", "POST", "/hpo/studies", {"model": MODEL})) == (403, "role_needed")
    assert state(api) == before
