"""Section `retain` of a table: how many of its newest partitions stay on main. No lake.

The age of a partition is counted from the newest partition of its table, not from today: a table whose source stopped
loses nothing.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Annotated, Self

from pydantic import Field, model_validator

from ml_assets.data.tables.cadence import Cadence
from ml_assets.foundation.sections import Section

Count = Annotated[int, Field(ge=1)]


class Retain(Section):
    """Newest partitions that stay on main: a number of them, or those of a number of days."""

    days: Count | None = None
    """Days back from the last day of the newest partition, that day included."""
    partitions: Count | None = None
    """Number of partitions."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.days is None) == (self.partitions is None):
            raise ValueError("name either days or partitions, such as {days: 400}")
        return self

    def oldest(self, cadence: Cadence, present: Collection[str]) -> str:
        """Return the key before which partitions are not retained, given those `present`; empty if there are none.

        Only keys of the `cadence` count.
        """
        newest = cadence.newest_of(present, self.partitions or 1)
        if not newest or self.partitions is not None:
            return newest[0] if newest else ""
        _, last = cadence.bounds(newest[0])
        day = last.date() if isinstance(last, datetime) else last
        return cadence.key_of(day - timedelta(days=(self.days or 1) - 1))
