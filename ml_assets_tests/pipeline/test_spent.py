"""The cost of a training is shown where it is known, and only there."""

import itertools
import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.steps.live_report import Attempts, Reports, spent
from resources.job.events import TrainingEvent
from resources.job.job import TrainingResult
from resources.job.reserved import Reserved

RESULT = TrainingResult(
    fingerprint="f" * 64,
    weights="model.safetensors",
    weights_sha256="e" * 64,
    best_step=10,
    best_validation_loss=0.5,
    steps=20,
    epochs=2,
    world_size=8,
    rows_per_second=1000.0,
    seconds=1800.0,
    worker_seconds=8 * 1800.0,
    attempts=2,
)


def test_gpu_hours_and_cost_of_workers_on_gpus() -> None:
    taken = spent(RESULT, Attempts(), {"device": "cuda", "gpu": "H100"}, 2.5)
    assert (taken["worker_hours"], taken["gpu_hours"], taken["cost"]) == (4.0, 4.0, 10.0)
    assert (taken["training_seconds"], taken["attempts"]) == (1800.0, 2.0)


def test_workers_on_cpus_take_no_gpu_hours() -> None:
    taken = spent(RESULT, Attempts(), {"device": "cpu"}, 2.5)
    assert (taken["worker_hours"], taken["gpu_hours"], taken["cost"]) == (4.0, 0.0, 0.0)


def test_a_training_that_changed_its_size_takes_what_each_attempt_took() -> None:
    taken = spent(replace(RESULT, worker_seconds=9000.0), Attempts(), {"device": "cuda"}, 2.0)
    assert (taken["worker_hours"], taken["gpu_hours"], taken["cost"]) == (2.5, 2.5, 5.0)
    assert taken["training_seconds"] == 1800.0


def test_nothing_is_said_about_what_is_not_known() -> None:
    assert {"gpu_hours", "cost"} & spent(RESULT, Attempts(), {}, 2.5).keys() == set()
    assert "cost" not in spent(RESULT, Attempts(), {"device": "cuda"}, None)
    speed = "training_throughput_samples_per_sec"
    assert spent(RESULT, Attempts(), {}, None)[speed] == 1000.0
    # A script need not tell.
    assert speed not in spent(replace(RESULT, epochs=0, rows_per_second=0.0), Attempts(), {}, None)


def _started(attempt: int, at: float, workers: int) -> TrainingEvent:
    values = {"attempt": attempt, "world_size": workers, "device": "cuda", "gpu": "H100", "pids": [1]}
    return TrainingEvent(kind="started", step=10 * (attempt - 1), time=at, values=values)


def test_hours_of_unfinished_attempts_count_with_their_workers() -> None:
    """Two workers for 1800 s, nothing for 3600 s, four for 900 s."""
    attempts = Attempts()
    assert attempts.spent(2.0) == {}
    events = [
        _started(1, 0.0, 2),
        TrainingEvent(kind="metrics", step=15, time=1800.0, values={"loss": 0.5}),
        TrainingEvent(kind="ended", step=0, time=5400.0, values={"code": 75, "cause": "preempted"}),
        _started(2, 5400.0, 4),
        TrainingEvent(kind="failed", step=0, time=6300.0, values={"error": "Diverged", "message": "inf"}),
    ]
    for event in [*events, *events]:  # told again by a later run
        attempts.hear(event)
    taken = {"attempts": 2.0, "worker_hours": 2.0, "gpu_hours": 2.0, "cost": 4.0}
    assert attempts.spent(2.0) == taken
    assert (attempts.step, attempts.last_sign) == (15, 6300.0)
    second = json.loads(attempts.facts()["attempt/2"])
    assert second == {
        "from_step": 10, "started": "1970-01-01T01:30:00+00:00", "world_size": 4, "device": "cuda", "gpu": "H100",
    }  # fmt: skip


def _reserved(job: str, at: float, pods: int, pod_seconds: float, gpus: int | None = 8) -> TrainingEvent:
    began = at - pod_seconds
    return Reserved(
        job=job,
        at=at,
        began=began,
        places=pods,
        place_seconds=pod_seconds,
        cores=4,
        memory_bytes=2**30,
        gpus=gpus,
    ).event()


def test_reserved_gpus_cost_from_the_placement_of_their_pods() -> None:
    """Eight GPUs are held for 600 s before the workers are ready, and the launcher of the first attempt dies."""
    attempts = Attempts()
    events = [
        _reserved("first", 600.0, 1, 600.0),
        _started(1, 600.0, 8),
        TrainingEvent(kind="metrics", step=15, time=1500.0, values={"loss": 0.5}),
        _reserved("second", 7200.0, 1, 0.0),
        _started(2, 7300.0, 8),
        _reserved("second", 8100.0, 0, 900.0),
    ]
    for event in [*events, *events]:
        attempts.hear(event)
    assert attempts.spent(2.0)["gpu_hours"] == (8 * 1500 + 7200) / 3600
    taken = spent(RESULT, attempts, {"device": "cuda"}, 2.0)
    assert (taken["worker_hours"], taken["gpu_hours"]) == (4.0, (8 * 1500 + 7200) / 3600)
    assert taken["cost"] == 2.0 * taken["gpu_hours"]


def test_gpus_held_by_workers_that_never_started_are_billed() -> None:
    attempts = Attempts.of([_reserved("first", 3600.0, 0, 900.0)])
    assert attempts.spent(1.0) == {"attempts": 0.0, "worker_hours": 0.0, "gpu_hours": 2.0, "cost": 2.0}


def test_a_machine_bills_gpus_from_the_start_of_its_processes() -> None:
    """The processes of two workers lived 1900 s, and trained 1800 s of these."""
    attempts = Attempts.of([_reserved("local", 1900.0, 0, 3800.0, gpus=None)])
    assert attempts.spent(None) == {"attempts": 0.0, "worker_hours": 0.0}
    assert spent(RESULT, attempts, {"device": "cpu"}, None)["gpu_hours"] == 0.0
    assert spent(RESULT, attempts, {"device": "cuda"}, None)["gpu_hours"] == 3800 / 3600


def test_readings_of_an_earlier_release_are_left_out() -> None:
    old = TrainingEvent(kind="reserved", step=0, time=1.0, values={"job": "a", "gpus": 8, "gpu_seconds": 9.0})
    assert Attempts.of([old]).spent(1.0) == {}


KINDS = st.sampled_from(["started", "metrics", "system", "epoch", "checkpoint", "ended", "failed"])


@given(st.lists(st.tuples(KINDS, st.integers(0, 50)), max_size=40))
def test_a_few_kept_reports_cost_as_much_as_all(drawn: list[tuple[str, int]]) -> None:
    attempt, now = itertools.count(1), 0.0
    every: list[TrainingEvent] = []
    for kind, later in drawn:
        now += later
        event = TrainingEvent(kind=kind, step=0, time=now, values={})
        every.append(_started(next(attempt), now, 1 + later) if kind == "started" else event)
    reports = Reports()
    for event in every:
        reports.hear(event)
    assert Attempts.of(reports.kept).worker_seconds == Attempts.of(every).worker_seconds
    assert Attempts.of(reports.kept).seconds == Attempts.of(every).seconds


def test_metrics_of_a_long_training_are_not_kept() -> None:
    reports = Reports()
    for at in range(1000):
        reports.hear(TrainingEvent(kind="metrics", step=at, time=float(at), values={}))
    assert [event.step for event in reports.kept] == [999]
