"""A model that no bundle could hold is refused before it is trained."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ml_assets.training.step.load import build_model
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.errors import BadConfiguration


def huge(inputs: Any) -> nn.Module:
    """Return 2.25 GiB of weights, of which none is in memory."""
    return nn.Linear(24_576, 24_576, bias=False, device="meta")


def test_a_model_beyond_what_a_bundle_holds_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    snapshot = small_snapshot(tmp_path)
    with pytest.raises(
        BadConfiguration, match=r"603,979,776 numbers × 4 bytes = 2\.2 GiB, and a bundle holds 2 GiB"
    ):
        build_model(small_job(snapshot, model=f"{__name__}.huge"), snapshot.inputs)
