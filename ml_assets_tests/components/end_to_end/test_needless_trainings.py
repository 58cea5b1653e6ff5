"""A mended typo in a column that the training does not read: no training, and everything else reads the mended rows.

One installation and its runs, in the order of this file; a fixture asks for the run before it.
"""

import json
from typing import Any

import polars as pl
import pytest

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.extras.reproduction.reproduce import reproduce
from ml_assets.model.release.promotion import promote
from ml_assets.model.release.releases import registry_of, releases_of
from ml_assets.model.steps.champion import champion_columns
from ml_assets.model.steps.record import recorded_report
from ml_assets.model.steps.window import rejected_behind
from ml_assets.pages.version_difference import compare_versions
from ml_assets_tests.components import noted_pipeline, readings_pipeline
from ml_assets_tests.components.installation import Installation, failure_of, readings_components, versions
from ml_assets_tests.components.model_run import (
    CHECKPOINT,
    EVALUATION,
    REGISTERED,
    TRAINING_SET,
    ModelRun,
    mlflow_run,
    train,
)
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL, READINGS, WINDOW, days
from resources.ledger import EvaluationRow, Person

(DAY,) = days(1, start=WINDOW)
MENDED = days(WINDOW)[-1]
"""A day of the holdout."""
STRICT = readings_components(
    noted_pipeline.dataset(isin=["a typo"]), noted_pipeline.FEATURES, noted_pipeline.PIPELINE
)
"""The declarations after somebody forbade the typo."""


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    noted_pipeline.CHANGED.clear()
    components = readings_components(
        noted_pipeline.dataset(), noted_pipeline.FEATURES, noted_pipeline.PIPELINE
    )
    return Installation(tmp_path_factory.mktemp("noted"), components).with_tables(1)


def change(installation: Installation, **columns: pl.Expr) -> None:
    """Give columns of the day other values, and build its partitions anew."""
    noted_pipeline.CHANGED[MENDED] = {**noted_pipeline.CHANGED.get(MENDED, {}), **columns}
    for table in (READINGS, FEATURES):
        result = installation.run(table, partition=MENDED)
        assert result.success, failure_of(result)


@pytest.fixture(scope="module")
def first(installation: Installation) -> ModelRun:
    """The first version."""
    return train(installation, DAY)


@pytest.fixture(scope="module")
def mended(installation: Installation, first: ModelRun) -> ModelRun:
    """Run after the notes of a day were mended."""
    change(installation, note=pl.lit("a typo"))
    return train(installation, DAY)


@pytest.fixture(scope="module")
def other_crew(installation: Installation, mended: ModelRun) -> ModelRun:
    """Run after another crew had worked on that day."""
    change(installation, crew=pl.lit("night"))
    return train(installation, DAY)


@pytest.fixture(scope="module")
def healed(installation: Installation, other_crew: ModelRun) -> ModelRun:
    """Run after new rules rejected the old note, and what had been made from it was made again."""
    releases = releases_of(installation.platform)
    promote(releases, MODEL, 1, by=Person.unchecked("ada"), reason="the first")
    now, strict = noted_pipeline.CHANGED.pop(MENDED), installation.declared_as(STRICT)
    assert not strict.run(READINGS, partition=MENDED).success
    noted_pipeline.CHANGED[MENDED] = now
    assert strict.run(READINGS, partition=MENDED).success
    assert list(releases.rejected_in_production(MODEL)) == [f"{READINGS} {MENDED}"]
    assert strict.run(FEATURES, partition=DAY).success
    return train(strict, DAY)


@pytest.fixture(scope="module")
def other_load(installation: Installation, healed: ModelRun) -> ModelRun:
    """Run after a number changed that the model reads."""
    change(installation, load=pl.col("load") / 2)
    return train(installation, DAY)


@pytest.fixture(scope="module")
def hopeless(installation: Installation, other_load: ModelRun) -> ModelRun:
    """Run with a gate that nothing passes, after another note."""
    change(installation, note=pl.lit("a typo, mended twice"))
    perfect = {"name": "perfect", "metric": "rmse", "at_most": 1e-9}
    asked = {"evaluation": {**noted_pipeline.PIPELINE["evaluation"], "gates": [perfect]}}
    return train(
        installation.declared_as(
            readings_components(noted_pipeline.dataset(), noted_pipeline.FEATURES, asked)
        ),
        DAY,
    )


@pytest.fixture(scope="module")
def other_code(installation: Installation, hopeless: ModelRun) -> ModelRun:
    """Run after the feature function was written in another way, which gives the same values."""
    again = {**noted_pipeline.FEATURES, "function": f"{noted_pipeline.HERE}.shifts_again"}
    rewritten = installation.declared_as(
        readings_components(noted_pipeline.dataset(), again, noted_pipeline.PIPELINE)
    )
    assert rewritten.run(FEATURES, partition=days(1, start=1)[0], last=DAY).success
    return train(rewritten, DAY)


def rows(installation: Installation) -> list[EvaluationRow]:
    return installation.platform.ledger.models.evaluations(MODEL)


def assert_found_again(first: ModelRun, again: ModelRun) -> None:
    """Nothing was trained, and there is no other version."""
    for asset, fact in (
        (TRAINING_SET, "fingerprint"),
        (TRAINING_SET, "snapshot"),
        (CHECKPOINT, "mlflow/run"),
        (CHECKPOINT, "weights"),
        (EVALUATION, "bundle"),
        (REGISTERED, "version"),
    ):
        assert again.facts[asset][fact] == first.facts[asset][fact]
    assert again.facts[CHECKPOINT]["reused"] is True


def data_versions(run: ModelRun) -> dict[str, str]:
    """Stage → data version, which Dagster compares."""
    assets = (TRAINING_SET, CHECKPOINT, EVALUATION, REGISTERED)
    return {asset: versions(run.result, asset)[DAY] for asset in assets}


def test_a_mended_note_trains_nothing(first: ModelRun, mended: ModelRun) -> None:
    assert_found_again(first, mended)
    assert data_versions(mended) == data_versions(first)


def test_each_run_records_the_commit_that_it_read(
    installation: Installation, first: ModelRun, mended: ModelRun
) -> None:
    """Ledger, MLflow, the lake's branches: the newer run adds to them and overwrites nothing."""
    before, after = rows(installation)[:2]
    lake = installation.platform.lake
    commits = [run.facts[TRAINING_SET]["lake/commit"] for run in (first, mended)]
    read = [one.trained_on.commit for one in (before, after)]
    assert read == [lake.read_commit(commit).parents[0] for commit in commits]
    assert read[0] != read[1]
    assert before.launches == after.launches
    assert len(before.launches) == 1
    assert set(commits) <= set(mended.branches.values())
    tags = mlflow_run(installation, first.facts[CHECKPOINT]["mlflow/run"]).data.tags
    starts = [json.loads(tag) for name, tag in tags.items() if name.startswith("start/")]
    assert tags["lake_commit"] == commits[0]
    assert {one["lake_commit"] for one in starts} >= set(commits)


def test_another_crew_is_evaluated_without_a_training(
    installation: Installation, first: ModelRun, mended: ModelRun, other_crew: ModelRun
) -> None:
    """Only the evaluation reads the crew. It reads that of the newest commit."""
    assert_found_again(first, other_crew)
    before, after = data_versions(mended), data_versions(other_crew)
    assert {asset for asset in before if before[asset] != after[asset]} == {EVALUATION}
    sliced = [
        {one.value for one in recorded_report(installation.platform, row).evaluation.slices}
        for row in rows(installation)[1:3]
    ]
    assert "night" not in sliced[0]
    assert "night" in sliced[1]


def test_a_version_whose_rows_were_rejected_heals_without_a_training(
    installation: Installation, first: ModelRun, healed: ModelRun
) -> None:
    """The next day's features had been made from the rejected note. Its newest run reads rows that pass."""
    assert_found_again(first, healed)
    *earlier, newest = rows(installation)
    for row in earlier:
        assert list(rejected_behind(installation.platform, row.trained_on)) == [f"{READINGS} {MENDED}"]
    assert rejected_behind(installation.platform, newest.trained_on) == {}
    assert releases_of(installation.platform).rejected_in_production(MODEL) == {}


def test_the_inputs_of_the_version_in_production_are_read_by_evaluations(
    installation: Installation, healed: ModelRun
) -> None:
    """Also if the declared model no longer reads them. `ml-assets plan` said that nothing does."""
    seen = spec_of(installation).features
    assert set(champion_columns(spec_of(installation), installation.platform)) == {
        *seen.numeric,
        *seen.categorical,
    }


def test_a_version_that_was_evaluated_at_two_commits_is_reproduced(
    installation: Installation, first: ModelRun, healed: ModelRun
) -> None:
    version = registry_of(installation.platform).version(MODEL, 1)
    found = reproduce(
        spec_of(installation), installation.platform, version, with_this_code=True, on_log=lambda _: None
    )
    assert {
        one.what: one.is_same for one in found.compared if one.what in ("snapshot", "weights", "bundle")
    } == {
        "snapshot": True,
        "weights": True,
        "bundle": True,
    }


def test_a_changed_number_trains_again(
    installation: Installation, first: ModelRun, other_load: ModelRun
) -> None:
    assert other_load.facts[CHECKPOINT]["reused"] is False
    for fact in ("fingerprint", "snapshot"):
        assert other_load.facts[TRAINING_SET][fact] != first.facts[TRAINING_SET][fact]
    number = other_load.facts[REGISTERED]["version"]
    assert number != first.facts[REGISTERED]["version"]
    pair = [registry_of(installation.platform).version(MODEL, one) for one in (1, number)]
    found = compare_versions(spec_of(installation), installation.platform, *pair)
    assert found.measured is not None, found.cannot_score


def test_the_input_of_a_rejecting_evaluation_of_a_version_is_kept(
    installation: Installation, other_load: ModelRun, hopeless: ModelRun
) -> None:
    """Commands about the version read its newest evaluation, which rejects it."""
    assert hopeless.facts[EVALUATION]["decision"] == "rejected"
    assert hopeless.facts[CHECKPOINT]["reused"] is True
    kept = hopeless.branches.items()
    (branch,) = [name for name, commit in kept if commit == hopeless.facts[TRAINING_SET]["lake/commit"]]
    newest = rows(installation)[-1]
    assert branch.startswith(f"keep-{MODEL}-v")
    assert branch.endswith(f"{newest.bundle_digest[:12]}-{newest.trained_on.commit[:12]}")


def test_other_code_with_the_same_values_is_a_version_without_a_training(
    other_load: ModelRun, other_code: ModelRun
) -> None:
    """A version names the code that makes its features."""
    assert other_code.facts[CHECKPOINT]["reused"] is True
    assert other_code.facts[TRAINING_SET]["fingerprint"] == other_load.facts[TRAINING_SET]["fingerprint"]
    assert other_code.facts[REGISTERED]["version"] != other_load.facts[REGISTERED]["version"]


def spec_of(installation: Installation) -> TrainingPipelineSpec:
    attributes: dict[str, Any] = {**readings_pipeline.PIPELINE, **noted_pipeline.PIPELINE}
    return TrainingPipelineSpec.model_validate(attributes)
