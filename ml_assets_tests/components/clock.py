"""Clock of the sensors: what a test does not wait for."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from ml_assets.components.sensors import ticks


@contextmanager
def clock_ahead(by: timedelta) -> Iterator[datetime]:
    """Let ticks of the block see a clock that is ahead of the machine's; yield its first moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ticks, "moment", lambda: datetime.now(UTC) + by)
        yield ticks.moment()
