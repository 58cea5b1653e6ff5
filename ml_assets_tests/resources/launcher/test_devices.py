"""GPUs that a training would leave idle are named, with what helps; no silent training on the CPU."""

import dataclasses
import json
from pathlib import Path

import pytest

from ml_assets.training.beginning import tell_beginning
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.launcher.devices import idle_gpus, idle_in_words


@pytest.mark.parametrize(("gpus", "ranks", "idle"), [(0, 2, 0), (1, 1, 0), (1, 2, 1), (2, 4, 2), (4, 2, 0)])
def test_gpus_are_idle_where_they_are_fewer_than_the_ranks(gpus: int, ranks: int, idle: int) -> None:
    assert idle_gpus(gpus, ranks) == idle
    words = idle_in_words(idle, ranks)
    assert bool(words) == bool(idle)
    assert not idle or f"Set training.workers to {idle} " in words


def test_an_attempt_that_leaves_gpus_idle_says_so_and_others_say_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = small_job(small_snapshot(tmp_path))
    job = dataclasses.replace(job, settings=dataclasses.replace(job.settings, workers=2))

    def told(idle: int) -> dict[str, object]:
        tell_beginning(
            job, 1, 0, world_size=2, pids=[1, 2], steps=6, device="cpu", is_stored=False, idle_gpus=idle
        )
        _, _, event = capfd.readouterr().out.partition("@event ")
        return json.loads(event)["values"]

    assert told(1)["gpus_idle"] == 1
    assert "gpus_idle" not in told(0)
