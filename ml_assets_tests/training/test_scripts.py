"""Scripts with their own loop: their inputs, their ends, and the few lines they have to change.

The scripts run in this process. Real ranks, kills and whole pipelines are in `ml_assets_tests/layouts`.
"""

import dataclasses
import difflib
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from deployment.testbed.processes import free_port
from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.attempt.exit_code import exit_code_of
from ml_assets.model.training.process.heartbeat import HangTimeouts, Heartbeat
from ml_assets.model.training.script.api import FOLDER, JOB, PROCESS, Training, attach
from ml_assets.model.training.script.graph import read_model
from ml_assets.model.training.script.script_rank import arguments_of, run_script
from ml_assets.model.training.telemetry import event_log
from ml_assets_tests.training.small_jobs import (
    classes_snapshot,
    feature_table,
    small_job,
    small_snapshot,
    with_weights,
)
from resources.job.errors import BadConfiguration, InputChanged
from resources.job.events import read_events
from resources.job.job import ExitCode, TrainingJob, TrainingResult

SCRIPTS = Path(__file__).parents[1] / "scripts"
DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "bring-your-own-script.md"


def job_of(snapshot: Snapshot, **hyperparameters: object) -> TrainingJob:
    """A job whose script is `misbehaving.py`."""
    return dataclasses.replace(
        small_job(snapshot),
        model_function="",
        script="ml_assets_tests.scripts.misbehaving",
        hyperparameters=hyperparameters,
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a job in whose environment this process is, as its only rank."""
    monkeypatch.setenv(JOB, str(tmp_path / "job.json"))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(PROCESS, str(os.getpid()))
    monkeypatch.setattr(event_log, "_file", None)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    attach.cache_clear()
    yield tmp_path
    attach.cache_clear()


def run(place: Path, job: TrainingJob) -> int:
    """Run the script of `job` as a rank and return its exit code."""
    (place / "job.json").write_text(job.to_json())
    heartbeat = Heartbeat(0)
    return exit_code_of(lambda: run_script(heartbeat), place, lambda: heartbeat.newest_step)


def test_a_script_that_never_reads_the_weights_of_its_rows_is_refused(place: Path, tmp_path: Path) -> None:
    """It would train as if no row had a weight, and only its metrics would have one."""
    snapshot = small_snapshot(tmp_path, with_weights(feature_table()), weight="weight")
    assert run(place, job_of(snapshot, how="well")) == ExitCode.BAD_CONFIGURATION
    (reason,) = [event.values["message"] for event in read_events(place) if event.kind == "failed"]
    assert "never asked for them" in reason


def test_a_script_reads_weights_that_are_one_on_average(place: Path, tmp_path: Path) -> None:
    snapshot = small_snapshot(tmp_path, with_weights(feature_table()), weight="weight")
    assert run(place, job_of(snapshot, how="weighted")) == ExitCode.DONE
    result = TrainingResult.read(place / "result.json")
    assert result.steps == snapshot.rows("train")
    assert result.best_validation_loss == pytest.approx(1, abs=1e-6)


# Its data


def test_a_script_reads_the_rows_of_the_snapshot_in_the_shape_it_likes(
    place: Path, snapshot: Snapshot
) -> None:
    (place / "job.json").write_text(job_of(snapshot).to_json())
    training, rows = attach(), snapshot.read("train")
    matrix, label = training.matrix("train")
    assert matrix.shape == (len(rows), len(snapshot.inputs.numeric) + len(snapshot.inputs.categorical))
    assert np.array_equal(matrix[:, : rows.numeric.shape[1]], rows.numeric, equal_nan=True)
    category = matrix[:, rows.numeric.shape[1] :]
    assert np.array_equal(np.where(category == 0, rows.category, category), rows.category)
    assert 0.02 < np.mean(category == 0) < 0.1  # category_dropout
    assert np.array_equal(label, rows.label)
    numeric, category, label = training.tensors("validation")
    assert not numeric.isnan().any()
    assert numeric.abs().mean() < 2  # scaled
    assert np.array_equal(category.numpy(), snapshot.read("validation").category)
    assert len(label) == snapshot.rows("validation")


def test_each_epoch_that_a_script_names_draws_other_categories(place: Path, snapshot: Snapshot) -> None:
    """A category that was unknown was unknown in all epochs."""
    (place / "job.json").write_text(job_of(snapshot).to_json())
    training = attach()
    dropped = [(training.tensors("train", epoch=epoch)[1] == 0).numpy() for epoch in (0, 1, 2)]
    assert all(0.02 < np.mean(one) < 0.1 for one in dropped)
    assert np.mean(dropped[1] & dropped[2]) < 0.01
    assert np.array_equal(dropped[0], training.tensors("train")[1].numpy() == 0)
    columns = len(training.inputs.numeric)
    assert np.array_equal(training.matrix("train", epoch=2)[0][:, columns:] == 0, dropped[2])
    validation = [training.tensors("validation", epoch=epoch)[1] for epoch in (0, 1)]
    assert torch.equal(*validation)


def test_labels_of_classes_are_integers(place: Path, tmp_path: Path) -> None:
    """Numbers of classes were float32, which `cross_entropy` refuses."""
    snapshot = classes_snapshot(tmp_path)
    (place / "job.json").write_text(job_of(snapshot).to_json())
    training, expected = attach(), snapshot.read("train").label.astype(np.int64)
    assert training.tensors("train")[2].dtype == torch.int64
    for label in (
        training.tensors("train")[2].numpy(),
        training.matrix("train")[1],
        training.rows("train").label,
    ):
        assert label.dtype == np.int64
        assert np.array_equal(label, expected)
    assert set(expected) == set(range(len(training.inputs.classes)))


def test_the_script_of_classes_on_the_page_trains(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = [
        one
        for one in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
        if "class Net" in one
    ]
    (tmp_path / "script_of_classes.py").write_text(script)
    monkeypatch.syspath_prepend(tmp_path)
    job = job_of(classes_snapshot(tmp_path))
    assert (
        run(place, dataclasses.replace(job, objective="multiclass", script="script_of_classes"))
        == ExitCode.DONE
    )
    result = TrainingResult.read(place / "result.json")
    assert result.best_validation_loss < 0.9 * math.log(3)


def test_a_script_does_not_see_the_holdout(place: Path, snapshot: Snapshot) -> None:
    (place / "job.json").write_text(job_of(snapshot).to_json())
    with pytest.raises(BadConfiguration, match="holdout evaluates its model"):
        attach().rows("holdout")  # type: ignore[arg-type]


def test_a_changed_shard_ends_a_script_for_good(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    snapshot = small_snapshot(tmp_path_factory.mktemp("snapshots"))
    shard = snapshot.folder / snapshot.shards_of("train")[0].path
    content = bytearray(shard.read_bytes())
    content[-500] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(bytes(content))
    (place / "job.json").write_text(job_of(snapshot).to_json())
    with pytest.raises(InputChanged, match="changed"):
        attach().matrix("train")


def test_a_script_that_no_launcher_started_is_told_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOB, raising=False)
    attach.cache_clear()
    with pytest.raises(BadConfiguration, match=r"TRAINING_JOB .*`model\.script` sets it"):
        attach()


def test_a_process_that_loads_data_attaches_without_beginning_an_attempt(
    place: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "job.json").write_text(job_of(snapshot).to_json())
    attach()
    attach.cache_clear()
    monkeypatch.setenv(PROCESS, str(os.getppid()))
    attach()  # would wait for the end of the rank, if it took itself for one
    assert [event.kind for event in read_events(place)] == ["started"]


@pytest.mark.nightly
def test_a_destroyed_process_group_never_hangs_the_model_that_used_it() -> None:
    """100 groups in each of two ranks: without the reference that is kept, 3 of 3 trainings hung."""
    command = (sys.executable, "-m", "ml_assets_tests.training.destroy_groups")
    port = str(free_port())
    ranks = [
        subprocess.Popen([*command, rank, port, "100"], stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    try:
        assert [rank.communicate(timeout=200)[0] for rank in ranks] == ["done\n", "done\n"]
    finally:
        for rank in ranks:
            rank.kill()


# Its command line and its end


def test_hyperparameters_are_its_command_line() -> None:
    given = {
        "epochs": 3,
        "lr": -0.5,
        "fast": True,
        "slow": False,
        "layers": [64, 32],
        "name": "a b",
        "seed": None,
    }
    assert arguments_of(given) == ["--epochs=3", "--lr=-0.5", "--fast", "--layers", "64", "32", "--name=a b"]
    with pytest.raises(BadConfiguration, match=r"optimizer is a mapping"):
        arguments_of({"optimizer": {"lr": 1}})


def test_what_a_script_hands_in_and_tells_is_kept(place: Path, snapshot: Snapshot) -> None:
    job = job_of(snapshot, how="well")
    assert run(place, job) == ExitCode.DONE
    result = TrainingResult.read(place / "result.json")
    assert (result.fingerprint, result.steps, result.epochs) == (job.fingerprint, 2, 1)
    assert result.best_validation_loss == 1.0
    assert result.rows_per_second > 0
    graph = read_model(Path(result.weights))
    assert isinstance(graph, bytes)
    told = [(event.kind, event.step, event.values) for event in read_events(place)]
    assert [kind for kind, _, _ in told] == ["started", "metrics", "epoch", "finished", "system"]
    assert told[1][1:] == (1, {"loss": 2.0})  # an infinite figure is no figure
    assert told[2][1:] == (2, {"validation_loss": 1.0})


def test_a_finished_script_is_not_run_again(place: Path, snapshot: Snapshot) -> None:
    (place / "result.json").write_text("of the attempt before, which died on its way out")
    assert run(place, job_of(snapshot, how="error")) == ExitCode.DONE


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("silent", 64, "ended without handing in a model"),
        ("nowise", 64, "refused its arguments, --how=nowise"),
        ("import", 64, "cannot be run: ModuleNotFoundError: No module named 'no_such_module'"),
        ("holdout", 64, "the holdout evaluates its model"),
        ("list", 64, "a list cannot be handed in"),
        ("pickled", 64, "the model handed in is not a valid ONNX graph"),
        ("twice", 64, "called training.finish twice"),
        ("unfit", 64, "input 'x' of the ONNX graph is [rows, 99] float: it must be the matrix [rows, 4]"),
        ("nan", 65, "loss was nan after step 3"),
        ("memory", 67, "rank 0 of 1 ran out of memory of this machine: Unable to allocate"),
        ("code", 75, ""),
        ("words", 1, ""),
        ("error", 1, ""),
    ],
)
def test_the_end_of_a_script_becomes_an_exit_code(
    place: Path, snapshot: Snapshot, how: str, code: int, said: str
) -> None:
    assert run(place, job_of(snapshot, how=how)) == code
    reasons = [event.values["message"] for event in read_events(place) if event.kind == "failed"]
    assert [said in reason for reason in reasons] == [True] * bool(said)
    assert not (place / "result.json").exists()


# Its checkpoints


@pytest.fixture
def training(place: Path, snapshot: Snapshot) -> Training:
    (place / "job.json").write_text(job_of(snapshot).to_json())
    return attach()


def test_a_checkpoint_counts_when_it_is_whole_and_the_newest_are_kept(training: Training) -> None:
    for step in (5, 10, 15, 20):
        with training.checkpoint(step) as folder:
            (folder / "below").mkdir()
            (folder / "below" / "state").write_text(f"after {step}")
    kept = training.job.settings.keep_checkpoints
    assert training.checkpoints.steps() == [20, 15, 10][:kept]
    assert training.checkpoints.newest_good() == 20
    (training.folder / "checkpoints/step-00000020/below/state").write_text("scribbled over")
    assert training.checkpoints.newest_good() == 15


def test_a_checkpoint_that_fails_half_way_leaves_the_one_before(training: Training) -> None:
    with training.checkpoint(5) as folder:
        (folder / "state").write_text("whole")
    with pytest.raises(FileNotFoundError), training.checkpoint(6) as folder:
        (folder / "nowhere" / "state").write_text("half")
    assert training.checkpoints.steps() == [5]
    assert not training.checkpoints.writing.exists()


@pytest.mark.parametrize("step", [5, 6])
def test_a_checkpoint_that_is_not_above_the_newest_is_refused(training: Training, step: int) -> None:
    """It deleted the newer ones as damaged."""
    for saved in (5, 6):
        with training.checkpoint(saved) as folder:
            (folder / "state").write_text(f"after {saved}")
    with pytest.raises(BadConfiguration) as refused, training.checkpoint(step):
        pass
    assert re.search(r"not above .*step 6", str(refused.value))
    assert "count the steps upwards" in str(refused.value)
    assert training.checkpoints.steps() == [6, 5]
    assert training.checkpoints.newest_good() == 6


def resume(training: Training, monkeypatch: pytest.MonkeyPatch) -> Training:
    """Return the training as another process sees it, which begins no attempt."""
    monkeypatch.setenv(PROCESS, str(os.getppid()))
    return Training.begin(training.job, training.snapshot, training.folder, None)


def test_a_resumed_script_that_counts_its_checkpoints_anew_is_refused(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training.checkpoint(7) as folder:
        (folder / "state").write_text("after 7")
    resumed = resume(training, monkeypatch)
    with (
        pytest.raises(BadConfiguration, match=r"step 7:.*training\.resumed_step \+ 1"),
        resumed.checkpoint(1),
    ):
        pass
    assert resumed.checkpoints.newest_good() == 7


def test_a_damaged_checkpoint_is_replaced_by_the_resumed_script(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (5, 6):
        with training.checkpoint(step) as folder:
            (folder / "state").write_text(f"after {step}")
    (training.folder / "checkpoints/step-00000006/state").write_text("scribbled over")
    resumed = resume(training, monkeypatch)
    assert resumed.resumed_step == 5
    with resumed.checkpoint(6) as folder:
        (folder / "state").write_text("after 6, again")
    assert resumed.checkpoints.newest_good() == 6


@pytest.mark.parametrize("saves_best", [True, False])
def test_a_booster_has_the_loss_of_the_round_that_is_handed_in(training: Training, saves_best: bool) -> None:
    """Early stopping trains some rounds more than it returns."""
    import xgboost

    from ml_assets.model.training.script.adapters.boosting import BoostingCallback

    rows, validation = (xgboost.DMatrix(*training.matrix(split)) for split in ("train", "validation"))
    callback = BoostingCallback(training, every=10)
    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 8, "eta": 1.0},
        rows,
        callback.rounds_left(60),
        evals=[(validation, "validation")],
        callbacks=[callback, xgboost.callback.EarlyStopping(5, save_best=saves_best)],
        verbose_eval=False,
    )
    callback.finish(booster)
    handed_in = TrainingResult.read(training.folder / "result.json")
    measured = float(booster.eval(validation).rpartition(":")[2])
    assert handed_in.best_validation_loss == pytest.approx(measured, rel=1e-6)
    assert handed_in.steps == booster.num_boosted_rounds()
    assert (booster.num_boosted_rounds() == booster.best_iteration + 1) == saves_best


@pytest.mark.parametrize(
    ("objective", "metric"),
    [("binary:logistic", "auc"), ("rank:ndcg", "ndcg-"), ("rank:ndcg", "map@5-")],
)
def test_a_metric_of_which_more_is_better_is_no_validation_loss(
    training: Training, objective: str, metric: str
) -> None:
    import xgboost

    from ml_assets.model.training.script.adapters.boosting import BoostingCallback

    matrix, label = training.matrix("train")
    rows = xgboost.DMatrix(matrix, (label > np.median(label)).astype(np.float32))
    parameters = {"objective": objective, "eval_metric": ["logloss", metric]}
    with pytest.raises(BadConfiguration, match=f"{metric} is no loss"):
        xgboost.train(
            parameters,
            rows,
            2,
            evals=[(rows, "rows")],
            callbacks=[BoostingCallback(training)],
            verbose_eval=False,
        )


def test_only_rank_0_saves_by_itself(training: Training) -> None:
    other = dataclasses.replace(training, rank=1)
    with (
        pytest.raises(BadConfiguration, match=r"checkpoint\(step, all_ranks=True\) .*each rank"),
        other.checkpoint(1),
    ):
        pass
    other.log(1, loss=1.0)  # and says nothing
    assert [event.kind for event in read_events(training.folder)] == ["started"]


def test_whatever_a_script_calls_shows_that_it_goes_on(training: Training) -> None:
    heartbeat = training.heartbeat
    seen = [heartbeat.done]

    def shows() -> bool:
        seen.append(heartbeat.done)
        return heartbeat.done > 0 and heartbeat.done not in seen[:-1]

    training.log(1, loss=1.0)
    assert shows()
    training.moved()
    assert shows()
    with training.checkpoint(1):
        assert heartbeat.done < 0  # a store has a patience of its own
    assert shows()
    with pytest.raises(BadConfiguration):
        training.finish(object(), steps=1, validation_loss=1.0)
    assert heartbeat.done < 0  # nothing more is expected of it


def test_a_script_may_stall_longer_than_our_loop(snapshot: Snapshot) -> None:
    """A job may set the limit."""
    script = job_of(snapshot)
    assert HangTimeouts.of(small_job(snapshot)).stall_timeout_seconds == 120
    assert HangTimeouts.of(script).stall_timeout_seconds == 600
    told = dataclasses.replace(script, settings=dataclasses.replace(script.settings, stall_timeout_seconds=5))
    assert HangTimeouts.of(told).stall_timeout_seconds == 5
    assert told.fingerprint == script.fingerprint


# How little changes


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("ddp", 20),
        ("accelerate_style", 20),
        ("trees", 20),
        ("hugging_face", 12),
        ("plain_loop", 15),
        ("lightning", 15),
        ("boosting", 12),
    ],
)
def test_an_existing_script_needs_few_lines_of_adaptation(name: str, most: int) -> None:
    before, after = _code(SCRIPTS / f"{name}.py"), _code(SCRIPTS / f"{name}_adapted.py")
    changed = [line for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    assert 5 < len(changed) <= most, "\n".join(changed)
    kept = sum(line in after for line in before)
    assert kept > 0.6 * len(before)  # it is the same script
    if name in ("ddp", "trees"):
        assert [line for line in changed if f"\n+{line[2:]}\n" not in DOCUMENT.read_text()] == []


def _code(path: Path) -> list[str]:
    """Lines of code, without the docstring of the module, imports of what is no longer used, and blank lines."""
    text = path.read_text().split('"""', 2)[2]
    return [line for line in text.splitlines() if line.strip()]
