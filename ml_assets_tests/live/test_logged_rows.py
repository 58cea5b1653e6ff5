"""Days of the log that belong to a partition, in any time zone."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.use.live.logged_rows import days_at, partitions_at
from ml_assets_tests.components.readings_pipeline import PIPELINE

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati", "Asia/Kathmandu"]


def spec_in(zone: str, cadence: str) -> TrainingPipelineSpec:
    return TrainingPipelineSpec.model_validate(
        PIPELINE
        | {
            "features": PIPELINE["features"] | {"time_zone": zone},
            "partitions": {"cadence": cadence, "start": "2024-01-01", "end": "2025-06-30"},
        }
    )


@pytest.mark.parametrize("cadence", ["daily", "weekly"])
@given(
    zone=st.sampled_from(ZONES),
    day=st.integers(-5, 400).map(lambda n: date(2024, 1, 1) + timedelta(days=n)),
)
def test_a_day_is_read_by_the_partitions_that_ask_for_it(cadence: str, zone: str, day: date) -> None:
    """So no day is deleted that a partition has not read, and no day waits for a partition that never reads it."""
    spec = spec_in(zone, cadence)
    near = spec.partitions.as_cadence.keys(day - timedelta(days=9), day + timedelta(days=9))
    assert partitions_at(spec, day) == [key for key in near if day in days_at(spec, key)]
