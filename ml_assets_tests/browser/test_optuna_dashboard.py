"""`optuna-dashboard` on the storage of studies: it opens a study with paused, continued, failed and repeated trials."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from playwright.sync_api import Browser, Error, Page

from deployment.testbed.processes import free_port
from ml_assets.extras.tuning.study import BegunTrial, Study, StudyFacts
from ml_assets.model.steps.search_space import TuningSection
from ml_assets.model.steps.study_result import TrialOutcome
from resources.settings import Settings
from resources.tracking.studies import open_storage

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

NAME = "shop-0123456789ab"
EPOCHS = 27
SECTION = TuningSection.model_validate(
    {
        "space": {
            "hyperparameters": {
                "hidden": {"kind": "int", "low": 8, "high": 128, "log": True},
                "activation": {"kind": "categorical", "choices": ["relu", "gelu", None]},
            },
            "training": {
                "warmup_fraction": {
                    "kind": "float",
                    "low": 0,
                    "high": 0.5,
                    "when": {"hyperparameters.activation": ["gelu"]},
                }
            },
        },
        "sampler": "random",
        "pruner": "successive_halving",
        "trials": 8,
    }
)
FACTS = StudyFacts(model="shop", partition="2024-01-20", snapshot="2" * 64, decided_by={"sampler": "random"})
BROKEN = 5
"""Number of the trial that fails at first."""
SECONDS = 300.0


def _end_of(study: Study, trial: BegunTrial) -> TrialOutcome:
    common: dict[str, Any] = {"number": trial.number, "parameters": trial.parameters, "most_epochs": EPOCHS}
    if trial.number == BROKEN and not trial.failed_before:
        return TrialOutcome(**common, state="failed", why="OutOfMemory: 2 GB", may_pass=True)
    for epoch in range(1, EPOCHS + 1):
        loss = float(trial.parameters["hyperparameters.hidden"] or 0) / 100 + 1 / epoch
        if study.should_pause(trial, epoch, loss) and epoch < EPOCHS:
            return TrialOutcome(**common, state="paused", validation_loss=loss, epochs=epoch)
    return TrialOutcome(**common, state="finished", validation_loss=loss, epochs=EPOCHS)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of the storage under a home, with a study after two launches."""
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    for _ in range(2):
        study = Study(open_storage(settings.studies_url), NAME, SECTION, 7, FACTS, EPOCHS)
        while (trial := study.next()) is not None:
            study.end(trial, _end_of(study, trial))
    return settings.studies_url.reveal()


@pytest.fixture(scope="module")
def dashboard(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running dashboard, started by the command of docs/concepts/tuning.md."""
    port, log = free_port(), tmp_path_factory.mktemp("dashboard") / "log"
    program = Path(sys.executable).with_name("optuna-dashboard")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "--port", str(port), address],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    yield f"http://127.0.0.1:{port}/dashboard"
    process.terminate()
    process.wait(60)


def test_the_dashboard_opens_a_study(
    browser: Browser, dashboard: str, address: str, screenshots: Path
) -> None:
    """Each record is a trial there: a repeated trial is shown once for each attempt."""
    records = optuna.load_study(study_name=NAME, storage=address).trials
    assert {one.state.name for one in records} == {"COMPLETE", "PRUNED", "FAIL"}
    assert len(records) > SECTION.trials  # one was lost with its machine, and repeated
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(SECONDS * 1000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{error}"))
    _open(page, dashboard)
    page.get_by_text(NAME).first.click()
    page.get_by_text("Intermediate values").wait_for()
    best = min(one.value for one in records if one.value is not None)
    page.get_by_text(f"{best}", exact=True).first.wait_for()
    screenshots.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=screenshots / "optuna-dashboard.png", full_page=True)
    page.goto(f"{page.url.rstrip('/')}/trials")
    page.get_by_text(f"{len(records)} Trials").wait_for()
    assert wrong == []


def _open(page: Page, address: str) -> None:
    """Open the first page as soon as the dashboard listens."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            page.goto(address)
            return
        except Error:
            assert time.monotonic() < deadline
            time.sleep(0.2)
