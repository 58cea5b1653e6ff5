"""A model is chosen: a study whose process is killed continues, its values are trained, a rejected day blocks both."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from torch import nn

from ml_assets.components.metadata import DATA_VERSION
from ml_assets.data.tables.publish.rejected import accept_partition
from ml_assets.extras.tuning.chosen import chosen_for, prior_for
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import (
    STAGES,
    Installation,
    facts_of,
    failure_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.model_run import mlflow_run
from ml_assets_tests.components.readings_pipeline import (
    MODEL,
    READINGS,
    TRAIN,
    VALIDATION,
    WINDOW,
    Source,
    days,
)
from ml_assets_tests.components.without_holdout import WithoutHoldout
from resources.job.errors import OutOfDisk
from resources.job.events import JOB, RESULT, TrainingEvent, read_events, training_folder_name
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.local import LocalLauncher
from resources.ledger import Person

pytestmark = pytest.mark.timeout(
    1800
)  # seven trainings and a kill in one test; a machine at load 30 needs 900 s
STUDY = f"{MODEL}/hyperparameters"
STARTS = [0.0, 18.0, 40.0]
HELD = (18.0, 40.0)
"""Values whose trainings wait as long as the file of `HOLD` exists: the test ends their study meanwhile."""
WILD = 1000.0
"""Value whose first epoch is bad. The first start of its workers is slow from then on, so that a pruner stops it in
time."""
FINE = 1.0
"""Value whose training no pruner stops."""
BROKEN = 3.0
"""Value whose trainings find no room as long as the file of `HOLD` exists."""
HOLD = "TUNING_HOLD"
HELD_AT = 40
"""Steps after which it waits."""
PATIENCE = 600.0
"""Seconds."""
TUNING: dict[str, Any] = {
    "space": {"hyperparameters": {"start": {"kind": "categorical", "choices": STARTS}}},
    "sampler": "grid",
    "trials": 3,
    "parallel_trials": 2,
}


def build(inputs: Any, *, start: float = 18.0) -> nn.Module:
    """Return the readings' model, two trainings of which a file holds up."""
    if start == BROKEN and Path(os.environ[HOLD]).exists():
        raise OSError(errno.ENOSPC, "No space left on device")
    model = readings_pipeline.build(inputs, start=start)
    steps = 0
    begun = Path(f"{os.environ[HOLD]}.{os.environ.get('RANK')}")
    is_slow = start == WILD and not begun.exists()

    def wait(*_: object) -> None:
        nonlocal steps
        steps += model.training
        while start in HELD and steps >= HELD_AT and Path(os.environ[HOLD]).exists():
            time.sleep(0.05)
        if is_slow and steps >= HELD_AT:
            begun.touch()
            time.sleep(0.5)

    model.register_forward_pre_hook(wait)
    return model


def _components(**tuning: Any) -> Any:
    changes = {
        "model": {"function": f"{__name__}.build"},
        "training": readings_pipeline.PIPELINE["training"] | {"checkpoint_every_steps": 10, "workers": 1},
        "tuning": TUNING | tuning,
    }
    return readings_components(pipeline=changes)


def search(home: str) -> None:
    """Run the study in a process of its own, which the test kills."""
    result = Installation(Path(home), _components()).run(STUDY)
    assert result.success, failure_of(result)


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _empty_tracker: Path) -> Installation:
    """Readings and features for two windows, and a training that is held up."""
    hold = tmp_path / "hold"
    hold.touch()
    monkeypatch.setenv(HOLD, str(hold))
    home = tmp_path / "home"
    home.mkdir()
    (home / "mlflow.db").write_bytes(_empty_tracker.read_bytes())
    return Installation(home, _components()).with_tables(1)


def _kill_a_study_in_two_trials(installation: Installation) -> None:
    said = installation.settings.home / "said"
    command = f"from {__name__} import search; search({str(installation.settings.home)!r})"
    with said.open("wb") as output:
        study = subprocess.Popen(
            [sys.executable, "-c", command],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    deadline = time.monotonic() + PATIENCE
    while not {
        job.hyperparameters["start"]
        for folder, job in _trainings(installation).items()
        for event in read_events(folder)
        if event.kind == "checkpoint"
    }.issuperset(HELD):
        assert study.poll() is None, said.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    study.send_signal(signal.SIGKILL)
    study.wait()


def _trainings(installation: Installation) -> dict[Path, TrainingJob]:
    files = (installation.settings.artifacts_folder / "training" / MODEL).glob(f"*/{JOB}")
    return {file.parent: TrainingJob.from_json(file.read_text()) for file in files}


class _Elsewhere:
    """The real launcher in folders that the study does not see, as pods have them. Trials with `BROKEN` find no room
    there, once another one has reported its first metrics."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._trains = folder, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(LocalLauncher(), name)

    def run(
        self,
        job: TrainingJob,
        folder: Path,
        on_event: Callable[[TrainingEvent], None],
        *others: Any,
        **named: Any,
    ) -> TrainingResult:
        if job.hyperparameters["start"] == BROKEN:
            assert self._trains.wait(PATIENCE)
            Path(os.environ[HOLD]).unlink()
            raise OutOfDisk("no room")

        def hear(event: TrainingEvent) -> None:
            on_event(event)
            if event.kind == "metrics":
                self._trains.set()

        return LocalLauncher().run(job, self._folder / training_folder_name(job), hear, *others, **named)


def _spoil(source: Source, day: str, value: float) -> Callable[[], None]:
    def wrong(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(pl.lit(value).alias("load"))

    source.spoiled[day] = wrong
    return lambda: source.spoiled.clear()


@pytest.mark.nightly
def test_a_killed_study_continues_and_its_values_are_trained(ready: Installation, source: Source) -> None:
    """Neither lost nor repeated: the first trial is not trained again, the two that ran resume from checkpoints."""
    _kill_a_study_in_two_trials(ready)
    Path(os.environ[HOLD]).unlink()
    before = {
        folder: (folder / RESULT).stat().st_mtime_ns
        for folder in _trainings(ready)
        if (folder / RESULT).exists()
    }
    assert len(before) == 1
    launcher = ready.platform.launcher
    ready.platform.__dict__["launcher"] = WithoutHoldout(launcher)
    result = ready.run(STUDY)
    assert result.success, failure_of(result)
    ready.platform.__dict__["launcher"] = launcher
    found = materialized(result, STUDY)[None]
    assert found.tags is not None
    facts = {name: value.value for name, value in found.metadata.items()}
    rows = [record.data for record in found.metadata["trials"].records]
    assert [(row["trial"], row["hyperparameters.start"]) for row in rows] == list(enumerate(STARTS))
    assert "stopped" not in facts
    best = min(rows, key=lambda row: row["validation loss"])
    assert [row["result"] for row in rows] == ["chosen" if row is best else "finished" for row in rows]
    assert facts["chosen"] == {"hyperparameters.start": best["hyperparameters.start"]}
    assert facts["chosen because"].startswith(f"trial {best['trial']} has the lowest validation loss, ")
    assert facts["report"] == f"/studies/local/{MODEL}/{facts['study_result'][:12]}/report.html"
    page = Path(facts["report_file"].removeprefix("file://")).read_text()
    assert f"Trial {best['trial']} is chosen" in page
    assert facts["summary"].count("](data:image/png;base64,") == page.count("data:image/svg+xml;base64,") == 3
    document = json.loads(Path(facts["document"].removeprefix("file://")).read_text())
    for row, trial in zip(rows, document["trials"], strict=True):
        epochs, losses = zip(*trial["curve"], strict=True)
        assert epochs == tuple(range(1, row["epochs"] + 1))
        assert min(losses) == trial["validation_loss"]
    trained = {job.hyperparameters["start"]: folder for folder, job in _trainings(ready).items()}
    assert sorted(trained) == STARTS
    results = {start: TrainingResult.read(folder / RESULT) for start, folder in trained.items()}
    for start in HELD:
        assert results[start].attempts >= 2
        assert min(results[start].resumed_from_steps) > 0
    assert {folder: (folder / RESULT).stat().st_mtime_ns for folder in before} == before

    # The same study again has nothing to train, and the same result.
    again = materialized(ready.run(STUDY), STUDY)[None]
    assert again.tags is not None
    assert again.tags[DATA_VERSION] == found.tags[DATA_VERSION]
    assert _trainings(ready).keys() == set(trained.values())

    # The trial of the newest window is the training of the model with its values.
    day = facts["partition"]
    assert day == days(WINDOW + 1)[-1]
    chosen = best["hyperparameters.start"]
    trained_day = ready.train(day)
    model = facts_of(trained_day, day)
    assert model[STAGES[1]]["reused"] is True
    assert model[STAGES[1]]["study"] == facts["study_result"]
    assert model[STAGES[1]]["weights"] == results[chosen].weights_sha256
    # The next day's holdout begins later, and the one before has a day that the study saw.
    assert model[STAGES[0]]["values"].startswith(f"study {facts['study_result'][:12]} of {day}: trial ")
    window = days(WINDOW, start=1)
    assert model[STAGES[0]]["days seen"] == f"{window[0]} to {window[TRAIN + VALIDATION - 1]}"
    *_, pipeline = _components()
    before_it = chosen_for(pipeline.spec, ready.platform, days(WINDOW))
    assert before_it is not None
    assert before_it.choice is None
    run = mlflow_run(ready, model[STAGES[1]]["mlflow/run"])
    parent = mlflow_run(ready, run.data.tags["mlflow.parentRunId"])
    assert parent.info.run_name == f"{day} study"
    assert parent.info.status == "FINISHED"
    made = materialized(trained_day, STAGES[1])[day].tags or {}
    assert made[f"dagster/input_data_version/{STUDY}"] == found.tags[DATA_VERSION]

    # A rejected day blocks the study as it blocks training, also after the values were chosen.
    rejected = days(WINDOW + 1)[5]
    mend = _spoil(source, rejected, -1.0)
    assert not ready.run(READINGS, partition=rejected).success
    refused = f"{READINGS} {rejected} (is rejected: out_of_range in load"
    assert refused in failure_of(ready.run(STUDY))
    assert refused in failure_of(ready.train(day))
    # Nor does the next study learn from it.
    platform = ready.platform
    *_, searching = _components(sampler="random", prior={"best": 1})
    assert searching.spec.tuning is not None
    nothing = prior_for(searching.spec, searching.spec.tuning, platform, window)
    assert nothing.repeated == nothing.seen == ()
    assert nothing.left_out.startswith(
        f"3 points of earlier studies left out: {READINGS} {rejected} is rejected: out_of_range in load"
    )
    mend()
    accept_partition(
        platform.lake, platform.ledger, READINGS, rejected, Person.unchecked("ada"), "the sensor was turned"
    )

    again = prior_for(searching.spec, searching.spec.tuning, platform, window)
    assert (again.repeated[0].parameters, again.left_out) == ({"hyperparameters.start": chosen}, "")

    # Another space: the values that were chosen from the old one do not count.
    elsewhere = {"hyperparameters": {"start": {"kind": "float", "low": 60, "high": 80}}}
    *_, narrower = _components(space=elsewhere, sampler="tpe")
    declared = chosen_for(narrower.spec, platform, window)
    assert declared is not None
    assert declared.choice is None
    assert "is not in the declared space any more, so the declared values are used" in declared.says


@pytest.mark.nightly
def test_a_trial_that_still_runs_elsewhere_counts_against_the_budget(
    ready: Installation, tmp_path: Path
) -> None:
    """Its workers write no file that the study sees: their reports count. The failed trial cost nothing."""
    choices = {"hyperparameters": {"start": {"kind": "categorical", "choices": [HELD[0], BROKEN, 0.0]}}}
    study = ready.declared_as(_components(space=choices, budget={"worker_hours": 1e-6}))
    study.platform.__dict__["launcher"] = _Elsewhere(tmp_path / "elsewhere")
    found = materialized(study.run(STUDY), STUDY)[None].metadata
    rows = [record.data for record in found["trials"].records]
    assert [row["result"].partition(":")[0] for row in rows] == ["chosen", "OutOfDisk"]
    assert found["stopped"].value.endswith("so 1 of 3 trials did not begin")


@pytest.mark.nightly
def test_a_study_whose_trials_all_fail_names_the_first(ready: Installation) -> None:
    """And so do rows that are not there: both before anything is chosen. Once there is room again, the next launch
    trains the trials without room once more, and no other."""
    choices = {"hyperparameters": {"start": {"kind": "categorical", "choices": [1e30, BROKEN]}}}
    wild = ready.declared_as(_components(space=choices, trials=2))
    said = failure_of(wild.run(STUDY))
    assert said.startswith(
        f"none of 2 trials of {MODEL} finished. Trial 0 (hyperparameters.start=1e+30): Diverged: "
    )
    assert said.endswith(
        "Resources, room or a store may be the reason of 1 failure. Mend it, or give other --resources, and launch the "
        "study again: it trains this trial once more"
    )
    diverged = {folder: read_events(folder) for folder in _trainings(wild)}
    Path(os.environ[HOLD]).unlink()
    found = materialized(wild.run(STUDY), STUDY)[None].metadata
    assert found["chosen"].value == {"hyperparameters.start": BROKEN}
    rows = [record.data for record in found["trials"].records]
    assert [row["result"].partition(":")[0] for row in rows] == ["Diverged", "chosen"]
    assert [folder for folder in diverged if read_events(folder) != diverged[folder]] == [
        folder for folder, job in _trainings(wild).items() if job.hyperparameters["start"] == BROKEN
    ]

    empty = Installation(ready.settings.home / "empty", _components())
    assert "main holds no partition of features/shifts" in failure_of(empty.run(STUDY))


@pytest.mark.nightly
def test_a_paused_trial_can_continue_as_if_it_had_not_been_paused(
    ready: Installation, tmp_path: Path
) -> None:
    """Two ranks stop at the same step after a checkpoint of it. A training with its values trains on from there.

    The warm-up has a step more than an epoch, so the pruner first compares after the second one.
    """
    space = {"hyperparameters": {"start": {"kind": "categorical", "choices": [FINE, WILD]}}}
    training = readings_pipeline.PIPELINE["training"] | {"epochs": 9, "patience": 9, "workers": 2}
    tuning = TUNING | {
        "space": space,
        "pruner": "successive_halving",
        "pruner_warmup": {"steps": 31},
        "parallel_trials": 1,
    }

    def declared(**more: Any) -> Installation:
        parts = {"model": {"function": f"{__name__}.build"}, "training": training, "tuning": tuning | more}
        return ready.declared_as(readings_components(pipeline=parts))

    # A budget of a moment: the first trial runs to its end, and a larger budget goes on with the same study.
    stopped = materialized(declared(budget={"worker_hours": 1e-6}).run(STUDY), STUDY)[None].metadata
    assert [record.data["trial"] for record in stopped["trials"].records] == [0]
    said = stopped["stopped"].value
    assert re.fullmatch(
        r"the budget of 1e-06 worker hours is spent \(0\.\d+\), so 1 of 2 trials did not begin", said
    )
    assert said in stopped["chosen because"].value
    pruned = declared(budget={"worker_hours": 1000})
    result = pruned.run(STUDY)
    assert result.success, failure_of(result)
    found = materialized(result, STUDY)[None]
    facts = {name: value.value for name, value in found.metadata.items()}
    rows = [record.data for record in found.metadata["trials"].records]
    assert [row["result"].partition(" after")[0] for row in rows] == ["chosen", "paused"]
    assert [row["paused after"] for row in rows] == ["", "2"]
    assert facts["chosen because"].endswith(f"1 trial paused: hyperparameters.start={FINE:g}")
    epochs = rows[1]["epochs"]
    assert 2 <= epochs < 9
    assert rows[1]["seconds"] > 0
    assert (
        facts["epochs saved"] == f"{9 - epochs} of 18 ({(9 - epochs) / 18:.0%}) by pruner successive_halving"
    )
    folders = {job.hyperparameters["start"]: folder for folder, job in _trainings(pruned).items()}
    ended = [event.values for event in read_events(folders[WILD]) if event.kind == "failed"]
    assert {one["error"] for one in ended} == {"Preempted"}
    (saved,) = {one["message"].rpartition(" ")[2] for one in ended}
    assert 60 <= int(saved) < 270
    assert not (folders[WILD] / RESULT).exists()
    job = TrainingJob.from_json((folders[WILD] / JOB).read_text())
    continued = LocalLauncher().run(job, folders[WILD], lambda event: None, lambda line: None)
    uninterrupted = LocalLauncher().run(job, tmp_path / "again", lambda event: None, lambda line: None)
    assert continued.attempts == 2
    assert uninterrupted.attempts == 1
    assert continued.weights_sha256 == uninterrupted.weights_sha256
    assert continued.best_validation_loss == uninterrupted.best_validation_loss

    # A study that begins from this result repeats its best values, whose training is finished, and names what changed.
    trainings = _trainings(pruned).keys()
    nightly = declared(prior={"best": 1}, sampler="random", trials=1, pruner="none", pruner_warmup=None)
    began = materialized(nightly.run(STUDY), STUDY)[None].metadata
    assert began["began from"].value == facts["study_result"]
    assert began["chosen"].value == facts["chosen"]
    assert _trainings(pruned).keys() == trainings
    assert began["worker hours"].value == 0
    assert began["new study"].value == (
        f"it differs from study {facts['name in Optuna']}: sampler changed from grid to random; pruner changed from "
        "successive_halving to none; prior changed from none to {best: 1}; pruner_warmup was removed ({steps: 31})"
    )
