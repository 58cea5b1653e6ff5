"""Source `python`: a function of the project returns the rows of a partition."""

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import wraps
from typing import Any, Literal, cast

import polars as pl
from pydantic import Field

from ml_assets.data.sources.protocol import SourceReader, SourceRows, SourceSection, SourceTable, Span
from ml_assets.data.tables.user_code import (
    FeatureFunctionError,
    FunctionPath,
    VersionedPath,
    answering,
    place_of,
    resolve_function,
    resolve_latest,
)
from ml_assets.foundation.code.code_version import code_version
from resources.platform import Platform
from resources.words import name_some


class PythonSource(SourceSection):
    """Source that is a Python function."""

    kind: Literal["python"] = "python"
    """A Python function."""
    function: VersionedPath
    """`package.module.function`: `(first_day: date) -> polars.DataFrame`, one partition a call; `(hour: datetime) ->
    polars.DataFrame` for hourly partitions, with the moment (UTC) at which the hour begins; without partitions
    `() -> polars.DataFrame`. It may also return a `polars.LazyFrame` or an iterator of frames."""
    latest: FunctionPath | None = None
    """`package.module.function`: `() -> date`, the latest complete day of the source; a sensor asks it. For hourly
    partitions `() -> datetime`, the begin of the latest complete hour."""
    at_once: int = Field(default=1, ge=1, examples=[8])
    """Partitions of a long range that workers may read at the same time. Each worker imports the function and calls it
    by itself, so a limit that the function keeps for a server holds in each of them alone."""

    @property
    def reads_at_once(self) -> int:
        """See `SourceSection`."""
        return self.at_once

    @property
    def code_version(self) -> str:
        """Version of the function's code."""
        return code_version(self.function)

    @property
    def lacks_for_latest(self) -> str | None:
        """See `SourceSection`."""
        return None if self.latest else "latest: the function that names the latest day"


class FramesDiffer(ValueError):
    """An iterator of frames returned frames with different columns."""


class PythonReader(SourceReader):
    """Rows of a function."""

    looks_at = "nothing: a function cannot tell which of its days changed"

    def __init__(self, section: PythonSource, table: SourceTable, platform: Platform) -> None:
        super().__init__(table, platform)
        self._function = resolve_function(section.function)
        self._answer = answering(_returning_one_frame(self._function))
        self._latest = resolve_latest(section.latest, is_hourly=table.is_hourly) if section.latest else None

    def read(self, span: Span | None) -> SourceRows:
        """See `SourceReader`. Raises `FeatureFunctionError`, which names the author's line."""
        frame = self._ask() if span is None else self._ask(span.first)
        return SourceRows(frame=frame, returned=frame.height)

    def latest(self) -> date | None:
        """See `SourceReader`. Raises `LatestMisdeclared`."""
        return None if self._latest is None else self._latest()

    def preview(self, rows: int) -> pl.DataFrame:
        """See `SourceReader`. Reads the latest day; the first day of the table if the section has no `latest`."""
        day = None if self._table.start is None else self.latest() or self._table.first
        return (self._ask() if day is None else self._ask(day)).head(rows)

    def check(self) -> Sequence[str]:
        """See `SourceReader`. Calls only `latest`, because the function may be costly."""
        self.latest()
        return ()

    def _ask(self, *days: date) -> pl.DataFrame:
        try:
            return self._answer(*days)
        except (ConnectionError, TimeoutError) as error:  # out of reach, but perhaps not at the next try
            raise FeatureFunctionError(
                f"{place_of(self._function, error)}: the source raised {type(error).__name__}: {error}"
            ) from error


def _returning_one_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, with an iterator of frames joined. Other results pass unchanged."""

    @wraps(function)
    def one_frame(*arguments: Any) -> Any:
        answer: object = function(*arguments)
        return _joined(cast(Iterator[object], answer)) if isinstance(answer, Iterator) else answer

    return one_frame


def _joined(answers: Iterator[object]) -> object:
    """Return the frames of an iterator as one; another object unchanged if the iterator returned one.

    Raises `FramesDiffer`.
    """
    frames: list[pl.DataFrame] = []
    for answer in answers:
        frame: object = answer.collect() if isinstance(answer, pl.LazyFrame) else answer
        if not isinstance(frame, pl.DataFrame):
            return frame
        if frames and frame.schema != frames[0].schema:
            differing = [
                f"{name} is {dtype}"
                for name, dtype in frame.schema.items()
                if frames[0].schema.get(name) != dtype
            ]
            missing = [f"{name} is missing" for name in frames[0].columns if name not in frame.columns]
            raise FramesDiffer(
                f"frame {len(frames) + 1} of the iterator has other columns than the first "
                f"({name_some([*differing, *missing]) or 'in another order'}): return frames with one schema"
            )
        frames.append(frame)
    return pl.concat(frames) if frames else pl.DataFrame()
