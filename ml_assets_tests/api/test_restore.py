"""Restore over HTTP: a queued run that begins with a checkpoint, and refusals that change nothing."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, StepMaterializationData

from ml_assets.model.steps.identity import training_job
from ml_assets.model.training.attempt.attempts import record_attempt
from ml_assets.model.training.checkpoint.checkpoints import Checkpoints, folder_of
from ml_assets_tests.api.conftest import ServedApi
from ml_assets_tests.api.test_frame import NOBODY, problem
from ml_assets_tests.api.test_launches import run_of, state
from resources.job.events import JOB, TRAININGS, training_folder_name
from resources.job.job import TrainingJob

PARTITION = "2024-02-05"
STEPS = (10, 20)
CONTENT = b"the weights after a step"


@dataclass(frozen=True)
class MadeTraining:
    """Training with two checkpoints, and the run that waited for it."""

    api: ServedApi
    run_id: str
    job: TrainingJob

    @property
    def folder(self) -> Path:
        return self.api.platform.artifacts.folder(training_folder_name(self.job))

    def restore(self, step: int, name: str = "operator", **headers: str) -> Any:
        return self.api.ask(
            name, "POST", f"/training-runs/{self.run_id}/checkpoints/{step}/restore", **headers
        )

    def trainings(self) -> set[str]:
        """Return the folders of all trainings."""
        names = self.api.platform.artifacts.files(TRAININGS)
        return {name.rpartition("/checkpoints/")[0] or name.rpartition("/")[0] for name in names}


@pytest.fixture
def made(api: ServedApi, request: pytest.FixtureRequest) -> Iterator[MadeTraining]:
    """A training with the declared settings; `request.param` changes the job."""
    spec = api.context.project.declared.pipeline("store_demand")
    job = training_job(spec, PARTITION, Path("/nowhere"), "5" * 64)
    job = dataclasses.replace(job, **getattr(request, "param", {}))
    folder = api.platform.artifacts.folder(training_folder_name(job))
    (folder / JOB).write_text(job.to_json())
    checkpoints = Checkpoints(folder, 3, job.fingerprint)
    checkpoints.begin(record_attempt(folder, 0, 1))
    for step in STEPS:
        checkpoints.claim(step)
        names = (".metadata", "__0_0.distcp")
        for name in names:
            with checkpoints.create(step, name) as file:
                file.write(CONTENT)
        digest = hashlib.sha256(CONTENT).hexdigest()
        checkpoints.count(step, dict.fromkeys(names, digest), best_step=0)

    @dg.op
    def freeze() -> None:
        """Step of a run that this test does not execute."""

    @dg.job(name="train_store_demand")
    def whole() -> None:
        freeze()

    instance = api.context.project.instance
    run = instance.create_run_for_job(whole, tags={"dagster/partition": PARTITION})
    frozen = dg.AssetMaterialization(
        dg.AssetKey(["store_demand", "training_set"]),
        partition=PARTITION,
        metadata={"fingerprint": job.fingerprint},
    )
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_MATERIALIZATION.value,
        job_name=whole.name,
        event_specific_data=StepMaterializationData(frozen),
    )
    instance.report_dagster_event(event, run.run_id)
    yield MadeTraining(api, run.run_id, job)
    api.platform.artifacts.remove(f"{TRAININGS}/store_demand")  # with the copies that restores made
    instance.delete_run(run.run_id)


def test_a_restore_is_a_run_that_says_where_it_comes_from(made: MadeTraining) -> None:
    api = made.api
    before = made.trainings()
    answer = made.restore(20)
    told = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/api/v1/training-runs/{told['id']}"), (
        told
    )
    assert (told["state"], told["model"], told["partitions"]) == ("queued", "store_demand", PARTITION)
    assert (told["restored_from"], told["launched_by"]) == (f"{made.run_id}/20", "operator")
    assert api.ask("viewer", "GET", f"/training-runs/{told['id']}").json() == told
    assert api.ask("viewer", "GET", f"/training-runs/{made.run_id}").json()["restored_from"] == ""
    asked = json.loads(run_of(api, told["id"]).tags["ml_assets/restores"])
    assert (asked["run"], asked["state"]["training"]) == (made.run_id, made.job.fingerprint)
    row = api.platform.ledger.launches.of(told["id"])
    assert row is not None
    assert row.by.name == "operator"
    (new,) = made.trainings() - before
    copied = api.platform.artifacts.folder(f"{TRAININGS}/{new}")
    job = TrainingJob.from_json((copied / JOB).read_text())
    assert job.restored is not None
    assert dataclasses.replace(job, restored=None) == made.job
    assert (job.restored.step, job.restored.training) == (20, made.job.fingerprint)
    assert Checkpoints(copied, 3, job.fingerprint).newest_good() == 20
    assert Checkpoints(made.folder, 3, made.job.fingerprint).newest_good() == 20


def test_restores_with_one_key_are_one_run(made: MadeTraining) -> None:
    """Also after the checkpoint is gone."""
    first = made.restore(10, **{"idempotency-key": "restore"}).json()
    before = state(made.api)
    made.api.platform.artifacts.remove(training_folder_name(made.job), [folder_of(10)])
    assert made.restore(10, **{"idempotency-key": "restore"}).json()["id"] == first["id"]
    assert problem(made.restore(20, **{"idempotency-key": "restore"})) == (409, "idempotency_key_reused")
    assert state(made.api) == before


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        ("15", 404, "checkpoint_gone"),
        ("0", 422, "invalid_request"),
        ("-1", 422, "invalid_request"),
        ("99999999999999999999", 422, "invalid_request"),
        ("..%2F..", 404, "not_found"),
        ("10'--", 422, "invalid_request"),
    ],
)
def test_a_step_without_a_checkpoint_is_refused(
    made: MadeTraining, step: Any, status: int, code: str
) -> None:
    before, trainings = state(made.api), made.trainings()
    assert problem(made.restore(step)) == (status, code)
    assert (state(made.api), made.trainings()) == (before, trainings)


@pytest.mark.parametrize(
    "damage",
    ["part", "content", "marker", "digests of the marker", "step of the marker", "job", "job of other facts"],
)
def test_a_checkpoint_that_is_damaged_or_being_deleted_is_refused(made: MadeTraining, damage: str) -> None:
    folder = made.folder / folder_of(20)
    before = state(made.api)
    if damage == "part":
        (folder / "__0_0.distcp").unlink()
    elif damage == "content":
        (folder / "__0_0.distcp").write_bytes(CONTENT[:-1])
    elif damage == "marker":
        (folder / "commit.json").write_text('{"fingerprint": ')
    elif damage.endswith("marker"):
        altered = {"sha256": "abc"} if damage.startswith("digests") else {"best_step": "20"}
        facts = json.loads((folder / "commit.json").read_text())
        (folder / "commit.json").write_text(json.dumps({**facts, **altered}))
    else:
        (made.folder / JOB).write_text('{"model": ' if damage == "job" else '{"model": "store_demand"}')
    trainings = made.trainings()
    assert problem(made.restore(20)) == (409, "checkpoint_unusable")
    shown = made.api.ask("viewer", "GET", f"/training-runs/{made.run_id}/checkpoints")
    assert shown.status_code == (409 if damage.startswith("job") else 200)
    assert (state(made.api), made.trainings()) == (before, trainings)


@pytest.mark.parametrize(
    "made",
    [
        {"seed": 77},
        {"code_version": "0" * 16},
        {"hyperparameters": {"hidden": 9}},
        {"initial_weights": "1" * 64},
    ],
    indirect=True,
)
def test_another_configuration_is_refused_with_the_parts_that_changed(made: MadeTraining) -> None:
    before, trainings = state(made.api), made.trainings()
    answer = made.restore(20)
    assert problem(answer) == (409, "restore_refused")
    assert (state(made.api), made.trainings()) == (before, trainings)


def test_a_restore_needs_a_role_and_a_training(made: MadeTraining) -> None:
    before, trainings = state(made.api), made.trainings()
    assert problem(made.restore(20, "viewer")) == (403, "role_needed")
    assert problem(made.restore(20, "florist")) == (403, "role_needed")
    assert problem(made.restore(20, "leaver")) == (401, "identity_refused")
    unknown = f"/training-runs/{NOBODY}/checkpoints/20/restore"
    assert problem(made.api.ask("operator", "POST", unknown)) == (404, "not_found")
    assert (state(made.api), made.trainings()) == (before, trainings)


def test_no_person_sets_the_tag_of_a_restore(api: ServedApi) -> None:
    """The tag names a state; who could write it could claim any lineage."""
    from ml_assets.extras.governance.proxy.rules import is_reserved

    assert is_reserved("ml_assets/restores")
