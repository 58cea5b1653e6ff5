"""`ml-assets launch --restore RUN/STEP`: a version of its own from a checkpoint, and refusals that train nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ml_assets
from ml_assets.context import Context
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.steps.record import card_of
from ml_assets_tests.cli.conftest import TRAINED_WEEK
from ml_assets_tests.cli.terminal import Terminal
from resources.job.events import TRAININGS

MODEL = "store_demand"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, _empty_tracker: Path) -> Terminal:
    """A terminal in a home of this module with one trained version."""
    home = tmp_path_factory.mktemp("restored")
    shutil.copy(_empty_tracker, home / "mlflow.db")
    terminal = Terminal(home)
    for target, partitions in (
        ("datasets/sales", f"2023-01-09..{TRAINED_WEEK}"),
        ("features/sales_features", f"2023-02-06..{TRAINED_WEEK}"),
        (MODEL, TRAINED_WEEK),
    ):
        said = terminal("launch", target, partitions)
        assert said.status == 0, said.err
    return terminal


@pytest.fixture
def context(trained: Terminal) -> Context:
    return ml_assets.open(trained.home, writes=True)


def run_and_steps(context: Context) -> tuple[str, list[int]]:
    """Return the run of the first version, and the steps of its checkpoints, oldest first."""
    run_id = context.show(MODEL, 1).evaluation.run_id
    found = context.runs.checkpoints(context.runs.training(run_id))
    return run_id, sorted(one.step for one in found)


def bundle(context: Context, number: int) -> Bundle:
    return context.project.bundles.open(context.show(MODEL, number).registered.bundle_digest)


def trainings(context: Context) -> set[str]:
    return {name.rsplit("/", 1)[0] for name in context.project.platform.artifacts.files(TRAININGS)}


def test_a_checkpoint_of_another_configuration_is_refused(
    trained: Terminal, context: Context, redeclared: Callable[..., None]
) -> None:
    run_id, steps = run_and_steps(context)
    before = trainings(context), context.project.instance.get_runs_count()
    redeclared(seed=12)
    said = trained("launch", "--restore", f"{run_id}/{steps[0]}")
    assert said.status == 1
    assert "the settings changed since" in said.err.replace("\n", " ")
    again = ml_assets.open(trained.home)
    assert (trainings(again), again.project.instance.get_runs_count()) == before


@pytest.mark.parametrize(
    ("restore", "status", "says"),
    [
        ("{run}/3", 1, "has no checkpoint of step 3: choose one of the steps"),
        ("0d3c5d9e-4f7e-4c0e-9d0a-3f1f5a1c2b3d/3", 1, "knows no run"),
        ("{run}", 2, "give the id of a run and a step"),
        ("{run}/x", 2, "give the id of a run and a step"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused(
    trained: Terminal, context: Context, restore: str, status: int, says: str
) -> None:
    run_id, _ = run_and_steps(context)
    before = trainings(context), context.project.instance.get_runs_count()
    said = trained("launch", "--restore", restore.format(run=run_id))
    assert (said.status, says in said.err.replace("\n", " ")) == (status, True), said.err
    assert (trainings(context), context.project.instance.get_runs_count()) == before


def test_a_restored_training_is_a_version_with_its_own_lineage(trained: Terminal, context: Context) -> None:
    run_id, steps = run_and_steps(context)
    said = trained("launch", "--restore", f"{run_id}/{steps[0]}")
    assert said.status == 0, said.err
    assert f"{MODEL} from step {steps[0]}" in said.out
    first, second = bundle(context, 1).facts.lineage, bundle(context, 2).facts.lineage
    assert first.weights_sha256 == second.weights_sha256  # `determinism: bitwise`
    assert first.fingerprint != second.fingerprint
    told = f"step {steps[0]} of training {first.fingerprint[:16]}"
    assert second.configuration["restored_from"] == told
    assert "restored_from" not in first.configuration
    restored = context.show(MODEL, 2)
    run = context.runs.training(restored.evaluation.run_id)
    assert run.restored_from == f"{run_id}/{steps[0]}"
    assert context.runs.training_set(run)["restored from"] == told
    tracked = context.project.platform.tracker.stored(MODEL, restored.registered.run_id)
    assert tracked.tags["restored_from"] == told
    assert tracked.run_id != context.show(MODEL, 1).registered.run_id
    assert told in card_of(context.project.platform, restored.registered).to_markdown()
    assert run_and_steps(context) == (run_id, steps)
    assert context.plan(MODEL, TRAINED_WEEK).is_as_trained  # the declared training, not the restored one
    assert min(one.step for one in context.runs.checkpoints(run)) >= steps[0]
    differs = context.compare(MODEL, 1, 2).settings
    assert differs["restored_from"] == (None, told)


def test_a_restored_version_is_reproduced_from_its_first_step(context: Context) -> None:
    made = context.reproduce(f"{MODEL}/2", with_this_code=True)
    assert made.level == "weights"
    assert {one.what for one in made.compared if not one.is_same} <= {"bundle"}, json.dumps(
        [vars(one) for one in made.compared]
    )
