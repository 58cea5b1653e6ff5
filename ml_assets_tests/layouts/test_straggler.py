"""The slow one of real workers is named by the figures, and in words on the run page."""

from dataclasses import replace
from pathlib import Path

import pytest

from ml_assets.model.steps.live_report import Stragglers
from ml_assets_tests.layouts.slow_rank_model import SLOW_RANK
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.events import TrainingEvent
from resources.launcher.local import LocalLauncher

_PACE = 0.05


@pytest.mark.parametrize(("determinism", "passes"), [("tolerance", 1), ("bitwise", 2)])
def test_a_slow_worker_is_named_with_its_delay(tmp_path: Path, determinism: str, passes: int) -> None:
    snapshot = small_snapshot(tmp_path / "snapshots")
    settings = {
        "epochs": 1,
        "log_every_steps": 10,
        "lanes": 2 * passes,
        "global_batch": 28,
        "peak_tflops": 1e-6,
    }
    job = small_job(snapshot, determinism=determinism, workers=2, pace=_PACE, **settings)
    job = replace(job, model_function="ml_assets_tests.layouts.slow_rank_model.slow_rank_model")
    told: list[TrainingEvent] = []
    LocalLauncher().run(job, tmp_path / "job", told.append, lambda _: None)
    figures = [event.values for event in told if event.kind == "metrics"]
    assert len(figures) == 3
    for one in figures:
        assert one["slowest_rank"] == SLOW_RANK
        assert one["slowest_rank_factor"] > 1.5
        assert one["slowest_rank_lag_ms"] > 0.5 * 1000 * _PACE * passes
        assert one["mfu"] == pytest.approx(500 * one["training_throughput_samples_per_sec"] / 2e6)
    stragglers = Stragglers()
    said = [words for event in told if (words := stragglers.hear(event)) is not None]
    assert len(said) == 1
    assert said[0].startswith(f"straggler: rank {SLOW_RANK} works ")
