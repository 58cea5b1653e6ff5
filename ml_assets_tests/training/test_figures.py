"""The figures of a training: what the meter makes of its steps, and the page that Prometheus reads."""

import re
import socket
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch

from ml_assets.model.training.process.group import Group
from ml_assets.model.training.telemetry import event_log
from ml_assets.model.training.telemetry.event_log import emit
from ml_assets.model.training.telemetry.machine import gpu_figures
from ml_assets.model.training.telemetry.meter import Meter, mfu_of_a_row, peak_of
from ml_assets.model.training.telemetry.prometheus import serve_figures
from resources.job.errors import BadConfiguration
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings


def test_figures_name_speed_waiting_and_the_slowest_rank() -> None:
    passed = [0.0]
    meter = Meter(clock=lambda: passed[0])
    for step in range(20):
        with meter.waiting_for_data():
            passed[0] += 0.002 + step / 1e5
        passed[0] += 0.03 if step == 19 else 0.002
        meter.add(loss_sum=50.0, units=100, gradient_norm=0.5, alone_seconds=0.002)
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
    assert figures["slowest_rank_lag_ms"] == pytest.approx(
        3 * (figures["data_loading_latency_ms"] + 2), abs=0.01
    )
    assert "mfu" not in figures


def _read_after_one_step(meter: Meter, alone: list[int]) -> dict[str, float]:
    meter.add(loss_sum=1.0, units=10, gradient_norm=0.5)
    return meter.read(lambda _: alone, list)


def test_of_two_ranks_the_slow_one_is_compared_with_the_other() -> None:
    figures = _read_after_one_step(Meter(), [1_000, 9_000])
    assert (figures["slowest_rank"], figures["slowest_rank_factor"]) == (1, 9)
    assert figures["slowest_rank_lag_ms"] == 8


def test_a_rank_that_is_alone_is_no_straggler() -> None:
    figures = _read_after_one_step(Meter(), [9_000])
    assert (figures["slowest_rank_factor"], figures["slowest_rank_lag_ms"]) == (1, 0)


class _Declaring(torch.nn.Linear):
    """One matrix of 3 × 4, at each row once."""

    def __init__(self, flops_per_row: object = 6 * 12) -> None:
        super().__init__(3, 4)
        self.flops_per_row = flops_per_row


def _group(world_size: int = 2) -> Group:
    return Group(
        rank=0, world_size=world_size, local_rank=0, local_ranks=world_size, device=torch.device("cpu")
    )


@pytest.mark.parametrize("declared", [72, 72.0, lambda: 72])
def test_mfu_is_the_share_of_the_devices_peak_that_the_rows_needed(declared: object) -> None:
    share = mfu_of_a_row(_Declaring(declared), TrainingSettings(peak_tflops=1e-9), _group())
    assert share == 72 / (2 * 1000)
    figures = _read_after_one_step(Meter(share), [1, 1])
    assert figures["mfu"] == pytest.approx(figures["training_throughput_samples_per_sec"] * 0.036)


def test_without_declared_operations_or_a_known_device_there_is_no_mfu() -> None:
    assert mfu_of_a_row(torch.nn.Linear(3, 4), TrainingSettings(peak_tflops=1.0), _group()) is None
    assert mfu_of_a_row(_Declaring(), TrainingSettings(), _group()) is None


@pytest.mark.parametrize("declared", [0, -1, "72", True, float("nan")])
def test_what_is_no_number_of_operations_is_refused(declared: object) -> None:
    with pytest.raises(BadConfiguration, match="flops_per_row of _Declaring is"):
        mfu_of_a_row(_Declaring(declared), TrainingSettings(peak_tflops=1.0), _group())


@pytest.mark.parametrize(
    ("card", "single", "half"),
    [
        ("NVIDIA H100 80GB HBM3", 67, 989),
        ("NVIDIA H100 PCIe", 51, 756),
        ("NVIDIA H200", 67, 989),
        ("NVIDIA A100-SXM4-80GB", 19.5, 312),
        ("NVIDIA A10", 31.2, 125),
        ("NVIDIA L40S", 91.6, 362),
        ("Tesla V100-SXM2-16GB", 15.7, 125),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None),
        ("NVIDIA A10G", None, None),
    ],
)
def test_cards_are_known_by_whole_words_of_their_names(
    card: str, single: float | None, half: float | None
) -> None:
    assert (peak_of(card, "fp32"), peak_of(card, "bf16"), peak_of(card, "fp16")) == (single, half, half)


def test_a_peak_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"peak_tflops\n .*greater than 0"):
        TrainingSettings(peak_tflops=-1)


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
        code_version="",
        seed=1,
        settings=TrainingSettings(metrics_port=port),
    )


@pytest.fixture
def _no_listener_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_listener", None)


@pytest.mark.usefixtures("_no_listener_left")
def test_prometheus_reads_the_newest_figures_under_the_agreed_names() -> None:
    port = serve_figures(_job(0), all_addresses=False)
    emit("started", 0, world_size=2, attempt=1, steps=80, pids=[1, 2])
    figures = {"training_throughput_samples_per_sec": 9.5, "gpu_utilization_pct": 93.0, "loss": 0.25}
    emit("metrics", 20, data_loading_latency_ms=0.1, **figures)
    emit("checkpoint", 20, checkpoint_duration_ms=41.0)
    emit("recovered", 21, attempt=2, cause="killed", seconds=4.5, from_step=20, steps_lost=3)
    emit("system", 24, **{"system/cpu_utilization_percentage": 50.0})
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    series = dict(
        re.findall(r'^(\w+)\{fingerprint="\w{16}",model="a\\"b",partition="2024-01-01"\} (\S+)$', text, re.M)
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
        "training_system_cpu_utilization_percentage": 50.0,
        "training_throughput_samples_per_sec": 9.5,
        "training_world_size": 2.0,
    }
    assert text.count("# TYPE ") == len(series)
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{port}/")


@pytest.mark.usefixtures("_no_listener_left")
def test_a_training_whose_port_is_taken_goes_on_without_a_page() -> None:
    """A training without a port goes on as well."""
    assert serve_figures(_job(None), all_addresses=False) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve_figures(_job(taken.getsockname()[1]), all_addresses=False) is None


def test_asking_for_a_page_a_patience_or_a_figure_is_no_other_job() -> None:
    job = _job(None)
    asking = replace(
        job,
        settings=replace(job.settings, metrics_port=9000, heartbeat_timeout_seconds=60.0, peak_tflops=80.0),
    )
    assert asking.fingerprint == job.fingerprint
