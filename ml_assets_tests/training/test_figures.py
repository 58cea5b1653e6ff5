"""The figures of a training: what the meter makes of its steps, and the page that Prometheus reads."""

import re
import socket
import time
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch

from ml_assets.training import events
from ml_assets.training.events import emit
from ml_assets.training.gpu import gpu_figures
from ml_assets.training.meter import Meter
from ml_assets.training.prometheus import serve_figures
from resources.launcher.job import TrainingJob
from resources.launcher.training_settings import TrainingSettings


def test_figures_name_speed_waiting_and_the_slowest_rank() -> None:
    meter = Meter()
    for step in range(20):
        with meter.waiting_for_data():
            time.sleep(0.002)
        time.sleep(0.03 if step == 19 else 0.002)
        meter.add(loss_sum=50.0, rows=100, gradient_norm=0.5, alone_seconds=0.002)
    figures = meter.read(lambda mine: [mine, 4 * mine, mine], lambda mine: [3 * value for value in mine])
    assert figures["loss"] == 1.5  # of three ranks
    assert 2 <= figures["data_loading_latency_ms"] < 10
    assert 0.1 < figures["data_wait_share"] < 0.9
    assert figures["training_throughput_samples_per_sec"] == pytest.approx(
        100 * figures["data_wait_share"] / figures["data_loading_latency_ms"] * 1000
    )
    assert 4 <= figures["step_ms_p50"] < figures["step_ms_p95"] < figures["step_ms_p99"]
    assert figures["step_ms_p99"] > 25  # the one slow step
    assert (figures["slowest_rank"], figures["slowest_rank_factor"]) == (1, 4)


def test_a_machine_without_a_gpu_has_no_figures_of_one() -> None:
    assert gpu_figures(torch.device("cpu")) == {}


def _job(port: int | None) -> TrainingJob:
    return TrainingJob(
        model='a"b',
        partition="2024-01-01",
        model_function="m.f",
        objective="binary",
        hyperparameters={},
        snapshot="/s",
        snapshot_digest="0",
        code_version="c",
        seed=1,
        settings=TrainingSettings(metrics_port=port),
    )


@pytest.fixture
def _no_listener_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_listener", None)


@pytest.mark.usefixtures("_no_listener_left")
def test_prometheus_reads_the_newest_figures_under_the_agreed_names() -> None:
    port = serve_figures(_job(0), all_addresses=False)
    emit("started", 0, world_size=2, attempt=1, steps=80, pids=[1, 2])
    figures = {"training_throughput_samples_per_sec": 9.5, "gpu_utilization_pct": 93.0, "loss": 0.25}
    emit("metrics", 20, data_loading_latency_ms=0.1, **figures)
    emit("checkpoint", 20, checkpoint_duration_ms=41.0)
    emit("recovered", 21, attempt=2, cause="killed", seconds=4.5, from_step=20, steps_lost=3)
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    series = dict(
        re.findall(r'^(\w+)\{model="a\\"b",partition="2024-01-01",fingerprint="\w{16}"\} (\S+)$', text, re.M)
    )
    assert {name: float(value) for name, value in series.items() if "timestamp" not in name} == {
        "checkpoint_duration_ms": 41.0,
        "data_loading_latency_ms": 0.1,
        "gpu_utilization_pct": 93.0,
        "training_attempt": 1.0,
        "training_loss": 0.25,
        "training_recovery_seconds": 4.5,
        "training_recovery_steps_lost": 3.0,
        "training_step": 20.0,
        "training_steps_planned": 80.0,
        "training_throughput_samples_per_sec": 9.5,
        "training_world_size": 2.0,
    }
    assert text.count("# TYPE ") == len(series)
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{port}/")


@pytest.mark.usefixtures("_no_listener_left")
def test_a_training_without_a_port_or_with_a_taken_one_goes_on_without_a_page() -> None:
    assert serve_figures(_job(None), all_addresses=False) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve_figures(_job(taken.getsockname()[1]), all_addresses=False) is None


def test_asking_for_a_page_or_for_a_patience_is_no_other_job() -> None:
    job = _job(None)
    asking = replace(job, settings=replace(job.settings, metrics_port=9000, hang_seconds=60.0))
    assert asking.fingerprint == job.fingerprint
