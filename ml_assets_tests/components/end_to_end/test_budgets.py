"""A monthly budget ends a study after the trial that spends it, and refuses the next training."""

from pathlib import Path
from typing import Any

import dagster as dg

from ml_assets_tests.components.installation import (
    Installation,
    failure_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.readings_pipeline import MODEL, WINDOW, days
from resources.settings import Settings

STUDY = f"{MODEL}/hyperparameters"
TUNING: dict[str, Any] = {
    "space": {"hyperparameters": {"start": {"kind": "categorical", "choices": [0.0, 18.0, 40.0]}}},
    "sampler": "grid",
    "trials": 3,
    "parallel_trials": 1,
}


def test_a_budget_of_a_moment_lets_one_trial_begin(tmp_path: Path) -> None:
    home, prices = tmp_path / "home", tmp_path / "prices.yaml"
    prices.write_text(f"currency: EUR\ncore_hour: 1000\nmonthly_budget: {{{MODEL}: 0.001}}\n")
    settings = Settings.model_validate({"home": home, "author": "ada", "prices": prices})
    components = readings_components(pipeline={"tuning": TUNING})
    ready = Installation(home, components, settings).with_tables(2)
    study = ready.run(STUDY)
    assert study.success, failure_of(study)
    found = materialized(study, STUDY)[None].metadata
    trials = found["trials"]
    assert isinstance(trials, dg.TableMetadataValue)
    assert [record.data["trial"] for record in trials.records] == [0]
    said = str(found["stopped"].value)
    assert said.startswith(f"trainings of {MODEL} cost ")
    assert said.endswith("their budget, so 2 of 3 trials did not begin")
    earlier, _ = days(2, start=WINDOW)  # the study used the newest window
    refused = failure_of(ready.train(earlier))
    assert refused.startswith(f"BudgetSpent: trainings of {MODEL} cost ")
    assert f"raise monthly_budget in {prices}" in refused
    prices.write_text(f"core_hour: 1000\nmonthly_budget: {{{MODEL}: 100000}}\n")
    assert ready.train(earlier).success
    prices.write_text(f"core_hour: 1000\nmonthly_budget: {{{MODEL}: 0.001}}\n")
    again = ready.train(earlier)  # finds the finished training
    assert again.success, failure_of(again)
