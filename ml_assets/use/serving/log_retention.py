"""Deletion of old requests from the log: days above the age or the size that a person allows.

Here: which days may go, the thread that deletes them, and the marks of live performance, one JSON file among the
artifacts for each partition: the files that its measurement has read. Not here: writing and reading (`request_log`).
Only whole days before today go, and only while nobody needs them:

* While a model has a canary, its watch counts the files of the newest `LATE_DAYS` days since both promotions.
* If live performance reads the log, it has measured the partitions of the day after their end, from all files.
* While the ledger cannot be read, nobody knows if there is a canary, so nothing goes.

Several servers may delete the same day at once. A killed server leaves the rest of a day to the next look.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from logging import getLogger
from typing import TYPE_CHECKING, TypeAlias

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ml_assets.use.serving.request_log import LATE_DAYS, day_folder, days_of, newest_of, writer_of
from resources.artifacts import Artifacts
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.use.serving.watch import StageWatch

_ROOT = "log_marks"


class DayRead(BaseModel):
    """Files of a day that were read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    newest: Mapping[str, int] = {}
    """Server → number of its newest file."""
    count: int = 0
    """All files."""

    @classmethod
    def of(cls, files: Sequence[str]) -> "DayRead":
        return cls(newest=newest_of(files), count=len(files))

    def has(self, file: str) -> bool:
        """Return True if `file` is among them. A server writes no file after one with a larger number."""
        server, number = writer_of(file)
        return number <= self.newest.get(server, 0)


FilesRead: TypeAlias = dict[str, DayRead]
"""Day → files of that day that were read."""
_JSON = TypeAdapter[FilesRead](FilesRead)


def log_marks(artifacts: Artifacts, model: str, partition: str) -> FilesRead:
    """Return the files that the measurement of a partition has read; none before it. Raises `ArtifactsError`."""
    name, file = f"{_ROOT}/{model}", f"{partition}.json"
    if not artifacts.exists(name, file):
        return {}
    return _JSON.validate_json((artifacts.pull(name, [file]) / file).read_bytes())


def mark_read(artifacts: Artifacts, model: str, partition: str, files: FilesRead) -> None:
    """Record that a partition's figures are stored and rest on `files`. Raises `ArtifactsError`."""
    with artifacts.create(f"{_ROOT}/{model}", f"{partition}.json") as stream:
        stream.write(_JSON.dump_json(files))


EVERY_SECONDS = 3600.0
"""Time between two looks at the stored log."""
_LOGGER = getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LogBounds:
    """Bounds of the stored log of each model."""

    keep_days: int | None = 90
    """Days before today that stay; None: all."""
    most_bytes: int | None = None
    """Size above which the oldest days go; None: any size."""


@dataclass(frozen=True, kw_only=True)
class OldDays:
    """Days of a model's log that may go, and the reason why others stay above a bound."""

    gone: tuple[date, ...]
    kept: str
    """Empty if the bounds hold afterwards."""


def choose(
    sizes: Mapping[date, int], bounds: LogBounds, today: date, needed: Callable[[date], str]
) -> OldDays:
    """Return the days that may go. `sizes` is day → bytes; `needed` returns the reason why a day stays, or an empty
    text. It is asked only about days above a bound."""
    room = sum(sizes.values())
    gone: list[date] = []
    kept: dict[str, list[date]] = {}
    for day in sorted(sizes):
        is_old = bounds.keep_days is not None and day < today - timedelta(bounds.keep_days)
        is_beyond = bounds.most_bytes is not None and room > bounds.most_bytes
        if not is_old and not is_beyond:
            continue
        if why := "today's log is never deleted" if day >= today else needed(day):
            kept.setdefault(why, []).append(day)
            continue
        gone.append(day)
        room -= sizes[day]
    said = "; ".join(f"{counted(len(days), 'day')} from {min(days)} on: {why}" for why, days in kept.items())
    return OldDays(gone=tuple(gone), kept=said)


class LogRetention:
    """Thread that keeps the stored log of a server's models within its bounds."""

    def __init__(
        self,
        artifacts: Artifacts,
        watch: "StageWatch",
        bounds: LogBounds,
        *,
        seconds: float = EVERY_SECONDS,
    ) -> None:
        self._artifacts, self._watch, self._bounds = artifacts, watch, bounds
        self._seconds = seconds
        self._looking = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log-retention", daemon=True)
        self.deleted_files: Counter[str] = Counter()
        """Model → files that this server deleted."""
        self.deleted_bytes: Counter[str] = Counter()
        self.kept: dict[str, str] = {}
        """Model → reason why days above a bound stay; models within their bounds are not in it."""

    def start(self) -> None:
        """Look at once, in a thread, and then each hour."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the model at which it is."""
        self._over.set()
        self._thread.join()

    def look(self, now: datetime | None = None) -> None:
        """Delete what may go. Problems are kept in `kept`, never raised."""
        if self._bounds.keep_days is None and self._bounds.most_bytes is None:
            return
        with self._looking:
            self._look((now or datetime.now(UTC)).date())

    def _look(self, today: date) -> None:
        for model in self._watch.declarations:
            try:
                kept = self._of_model(model, today)
            except Exception as error:  # such as a store that is away: the next look tries again
                kept = f"{type(error).__name__}: {error}"
            if kept and kept != self.kept.get(model):
                _LOGGER.warning("days of the request log of %s stay above their bounds: %s", model, kept)
            self.kept[model] = kept
            if self._over.is_set():
                return

    def _work(self) -> None:
        while True:
            self.look()
            if self._over.wait(self._seconds):
                return

    def _of_model(self, model: str, today: date) -> str:
        days = days_of(self._artifacts, model)
        sizes = {day: sum(files.values()) for day, files in days.items()}
        chosen = choose(sizes, self._bounds, today, lambda day: self._need(model, day, days[day], today))
        if not chosen.gone:
            return chosen.kept
        for day in chosen.gone:
            # The files that were listed, not the folder: another server may write a late file just now.
            self._artifacts.remove(day_folder(model, day), list(days[day]))
            self.deleted_files[model] += len(days[day])
            self.deleted_bytes[model] += sizes[day]
        _LOGGER.info(
            "deleted %s of the request log of %s, %s to %s, %.1f MiB",
            counted(len(chosen.gone), "day"),
            model,
            chosen.gone[0],
            chosen.gone[-1],
            sum(sizes[day] for day in chosen.gone) / 2**20,
        )
        return chosen.kept

    def _need(self, model: str, day: date, files: Iterable[str], today: date) -> str:
        """Return the reason why somebody still needs a day; empty if nobody does."""
        stages = self._watch.stages(model)
        if stages is None or self._watch.ledger_problem:
            return "the ledger cannot be read, and says if a canary's watch needs them"
        if stages.canary is not None:
            began = max(one.since for one in (stages.canary, stages.production) if one is not None).date()
            if day >= max(began, today - timedelta(LATE_DAYS)):
                return f"the watch of canary version {stages.canary.number} may not have counted them"
        logs = [file for file in files if file.endswith(".parquet")]
        for partition in self._watch.declarations[model].live_partitions(day):
            read = log_marks(self._artifacts, model, partition).get(day.isoformat(), DayRead())
            if not all(map(read.has, logs)):
                return (
                    f"live performance has not read them since their partition ended: ml-assets launch {model}/live "
                    "PARTITION"
                )
        return ""
