"""The section `tuning` of a `defs.yaml`: what a study cannot do is refused in one line with file, line and remedy."""

import re
from typing import Any

import dagster as dg
import pytest
import yaml

from ml_assets.assembly import build_defs
from ml_assets.components import TrainingPipeline
from ml_assets.components.base import condition_named
from ml_assets.components.declarations import DeclarationRefused
from ml_assets.components.documents import attribute_faults
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.model.steps.identity import settings_digest, training_job
from ml_assets.model.steps.search_space import Choice
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.defs_sandbox import DECLARED, load
from ml_assets_tests.components.installation import STAGES, component, key_of, readings_components

HIDDEN = "{kind: categorical, choices: [16, 32]}"
RATE = "{kind: float, low: 1e-4, high: 0.1, log: true}"


def _declared(
    hidden: str = HIDDEN, rate: str = RATE, *, sampler: str = "tpe", trials: int = 4, more: str = ""
) -> str:
    """Return the store chain's file with a study."""
    section = f"""  tuning:
    space:
      hyperparameters:
        hidden: {hidden}
      training:
        learning_rate: {rate}
    {more}
    sampler: {sampler}
    trials: {trials}
  seed: 11
"""
    return DECLARED.replace("  seed: 11\n", section)


def validation_loss(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Return a number that is not the loss of a training."""
    return 1.0


def test_faults_of_a_study_are_lines_with_file_line_and_key() -> None:
    text = _declared(rate="{kind: flaot, low: 0.001, high: 0.01}", trials=0, more="prunner: median")
    lines = {one.strip(): number for number, one in enumerate(text.splitlines(), start=1)}
    with pytest.raises(DeclarationRefused) as refused:
        load(text)
    found = str(refused.value).splitlines()
    for said, line in zip(found, ("learning_rate: {kind", "prunner:", "trials: 0"), strict=True):
        (number,) = [number for one, number in lines.items() if one.startswith(line)]
        assert re.search(rf"defs\.yaml:{number} attributes\.tuning\.", said), said
    load(_declared())


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        pytest.param(
            _declared().replace("        hidden: {kind", "        hiden: {kind"),
            "space.hyperparameters.hiden",
            "ml_assets.defs.store_demand.model.build has no argument 'hiden': did you mean 'hidden'?",
            id="argument",
        ),
        pytest.param(
            _declared().replace("        learning_rate:", "        workers:"),
            "space.training.workers",
            "a study cannot vary training.workers",
            id="setting of the machines",
        ),
        pytest.param(
            _declared(rate="{kind: categorical, choices: [0.1, 0]}"),
            "space.training.learning_rate",
            "a trial with learning_rate 0 could not start: Input should be greater than 0",
            id="value of a setting",
        ),
        pytest.param(
            DECLARED.replace("  seed: 11\n", "  tuning: {space: {}, trials: 3}\n  seed: 11\n"),
            "space",
            "the space is empty: name a key of hyperparameters or training with its values, or remove tuning",
            id="empty",
        ),
        pytest.param(
            _declared(rate="{kind: float, low: 0.1, high: 0.01}"),
            "space.training.learning_rate",
            "low 0.1 is above high 0.01: swap them",
            id="order",
        ),
        pytest.param(
            _declared(rate="{kind: float, low: 0, high: 0.01, log: true}"),
            "space.training.learning_rate",
            "log needs a low above 0, not 0",
            id="logarithm",
        ),
        pytest.param(
            _declared(rate="{kind: float, low: .nan, high: 0.01}"),
            "space.training.learning_rate",
            "should be a finite number",
            id="not a number",
        ),
        pytest.param(
            _declared(rate="{low: 0.001, high: 0.01}"),
            "space.training.learning_rate",
            "the key 'kind' is required",
            id="no kind",
        ),
        pytest.param(
            _declared(rate="{kind: flaot, low: 0.001, high: 0.01}"),
            "space.training.learning_rate",
            "'kind' 'flaot' should be 'float', 'int', 'categorical'",
            id="wrong kind",
        ),
        pytest.param(
            _declared(hidden="{kind: categorical, choices: [16, 32, 16]}"),
            "space.hyperparameters.hidden",
            "16 is listed twice",
            id="twice",
        ),
        pytest.param(_declared(trials=0), "trials", "Input should be greater", id="no trial"),
        pytest.param(
            _declared(sampler="tpee"),
            "sampler",
            "'tpee' should be 'grid', 'random', 'tpe'",
            id="sampler",
        ),
        pytest.param(
            _declared(sampler="grid"),
            "space.training.learning_rate",
            "sampler grid tries every value, and a range of real numbers has no",
            id="grid over a range",
        ),
        pytest.param(
            _declared(rate="{kind: categorical, choices: [0.1, 0.2, 0.3]}", sampler="grid"),
            "trials",
            "the grid has 6 combinations, more than trials 4",
            id="large grid",
        ),
        pytest.param(
            _declared(more="budget: {}"), "budget", "the budget is empty: give hours", id="no budget"
        ),
        pytest.param(
            _declared(more="budget: {hours: 0}"), "budget.hours", "Input should be greater", id="nothing"
        ),
        pytest.param(
            _declared(rate="{kind: categorical, choices: [0.1], when: {hyperparameters.hiden: [16]}}"),
            "space.training.learning_rate.when",
            "its `when` names hyperparameters.hiden, not in the space: did you mean 'hyperparameters.hidden'?",
            id="condition",
        ),
        pytest.param(
            _declared(more="pruner_warmup: {epochs: 2}"),
            "pruner_warmup",
            "pruner none pauses no trial, so nothing has a warm-up",
            id="warm-up of no pruner",
        ),
        pytest.param(
            _declared(more="pruner_warmup: {epochs: 2, steps: 9}"),
            "pruner_warmup",
            "give either epochs or steps",
            id="two warm-ups",
        ),
        pytest.param(
            _declared(more="metric: auc"),
            "metric",
            "no metric 'auc' for objective 'regression': use one of validation_loss, rmse, mae, r2",
            id="metric of another objective",
        ),
        pytest.param(
            _declared(more="metric: row_p99_ms"),
            "metric",
            "row_p99_ms is for gates on a holdout, and a trial is measured on its validation rows: use one of "
            "validation_loss, ",
            id="metric of no rows",
        ),
        pytest.param(
            _declared(more="metric: validation_loss").replace(
                "  evaluation:\n",
                "  evaluation:\n    metrics: [{function: "
                + f"{__name__}.validation_loss, better: higher}}]\n",
            ),
            "metric",
            "validation_loss is the loss by which each training chooses its best epoch: rename the function",
            id="function with the name of the loss",
        ),
        pytest.param(_declared(more="prunner: median"), "prunner", "unknown key 'prunner'", id="key"),
    ],
)
def test_a_study_that_cannot_run_is_refused_at_its_key(text: str, key: str, said: str) -> None:
    *_, attributes = [one["attributes"] for one in yaml.safe_load_all(text)]
    ((path, words),) = attribute_faults(TrainingPipelineSpec, attributes)
    assert ".".join(str(one) for one in path).startswith(f"tuning.{key}")
    assert said in words


def _spec(**changes: Any) -> TrainingPipelineSpec:
    return component(TrainingPipeline, readings_pipeline.PIPELINE, **changes).spec


TUNING: dict[str, Any] = {
    "space": {
        "hyperparameters": {"start": {"kind": "float", "low": 0, "high": 40}},
        "training": {"epochs": {"kind": "int", "low": 1, "high": 4}},
    },
    "trials": 3,
}


def test_a_study_changes_no_fingerprint_until_it_has_a_result(tmp_path: Any) -> None:
    plain, tuned = _spec(), _spec(tuning=TUNING)
    jobs = [training_job(spec, "2024-01-20", tmp_path, "0" * 64) for spec in (plain, tuned)]
    assert jobs[0] == jobs[1]
    assert settings_digest(plain) == settings_digest(tuned)
    parameters = {"hyperparameters.start": 12.5, "training.epochs": 4}
    choices = [Choice(source=digit * 64, parameters=parameters) for digit in "ab"]
    chosen = training_job(tuned.with_choice(choices[0]), "2024-01-20", tmp_path, "0" * 64)
    assert (chosen.hyperparameters, chosen.settings.epochs) == ({"start": 12.5}, 4)
    # Equal values give equal weights, so the training is found again; its origin is another one.
    assert chosen == training_job(tuned.with_choice(choices[1]), "2024-01-20", tmp_path, "0" * 64)
    digests = {settings_digest(tuned, choice=choice) for choice in (None, *choices)}
    assert len(digests) == 3


def test_other_lists_are_another_training() -> None:
    def ordered(group: str) -> TrainingPipelineSpec:
        gate = {"name": "good", "metric": "ndcg", "at_least": 0.1}
        rules = {"objective": "ranking", "group": group, "bootstrap_unit": "partition_date", "gates": [gate]}
        return _spec(evaluation=rules)

    assert settings_digest(ordered("at")) != settings_digest(ordered("machine"))


def test_the_study_is_upstream_of_the_checkpoint_and_no_job_runs_it() -> None:
    declared = readings_components(
        pipeline={"tuning": TUNING, "automation_condition": "on_valid_inputs", "schedule": SCHEDULE}
    )
    defs = build_defs(components=declared)
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    study = key_of(f"{readings_pipeline.MODEL}/hyperparameters")
    assert study in graph.get(key_of(STAGES[1])).parent_keys
    assert graph.get(study).partitions_def is None
    assert (
        graph.get(study).group_name != graph.get(key_of(STAGES[1])).group_name
    )  # whose "Materialize all" trains once
    assert graph.get(study).automation_condition is None
    job = defs.resolve_job_def(f"train_{readings_pipeline.MODEL}")
    assert study not in job.asset_layer.executable_asset_keys
    assert key_of(readings_pipeline.READINGS) in job.asset_layer.executable_asset_keys
    waits = graph.get(key_of(STAGES[1])).automation_condition
    assert waits is not None
    assert waits != condition_named("on_valid_inputs")
    without = build_defs(components=readings_components()).resolve_asset_graph()
    assert study not in without.get_all_asset_keys()


SCHEDULE = {"cron": "0 3 * * *", "latest": f"{readings_pipeline.HERE}.latest"}
