"""The world outside the platform, as a replay plays it: a source that gains a day, and a person who promotes.

Both look at what the platform made of a day before they do the next thing. They write files of the source and promote
blessed versions, and touch nothing else: sensors, schedule and runs are the platform's own. Not here: the events
(`happened`), processes and lines (`cli.replay`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta

import dagster as dg
import polars as pl

from ml_assets.context.decisions import promote
from ml_assets.context.errors import NotFound
from ml_assets.context.launch import materialize
from ml_assets.context.project import Project
from ml_assets.data.tables.user_code import resolve_function
from ml_assets.extras.replay import pipeline
from ml_assets.extras.replay.happened import Event, Happened
from ml_assets.extras.replay.pipeline import FEATURES, FLIGHTS, MODEL, WEATHER, WITHOUT_DATES
from ml_assets.extras.replay.source_days import (
    FIRST_DAY,
    HISTORY_DAYS,
    HOLDOUT_DAYS,
    Replay,
    damages,
    deliver,
)
from ml_assets.model.release.promotion import NotPromotable
from ml_assets.model.steps.spec import PipelineSpec
from resources.ledger import Person
from resources.settings import Settings

PACE_SECONDS = 5.0
"""Least time between two days, so that a person can follow."""
STALL_SECONDS = 1200.0
"""Seconds without any event after which a replay gives up. The first training on a busy machine takes minutes."""


class ReplayStalled(RuntimeError):
    """The platform made nothing of a day for a long time."""


def project_of(settings: Settings) -> Project:
    """Return the project of a replay's home, with the definitions of the replay."""
    project = Project(settings)
    vars(project)["defs"] = pipeline.definitions(settings, project.platform)
    return project


def build_history(project: Project, replay: Replay, on_progress: Callable[[str], None]) -> None:
    """Deliver and build the days before the replay in this process; and the weather of all days."""
    home = project.settings.home
    on_progress("files of the source")
    for n in range(HISTORY_DAYS + replay.days):
        day = FIRST_DAY + timedelta(days=n)
        deliver(home, WEATHER, day, _of_source("read_weather", day))
        if day < replay.first:
            deliver(home, FLIGHTS, day, _of_source("read_flights", day))
    first, last = str(FIRST_DAY), str(replay.first - timedelta(days=1))
    ranges: Mapping[tuple[str, ...], tuple[str, str] | tuple[None, None]] = {
        WITHOUT_DATES: (None, None),
        (WEATHER,): (first, str(replay.last)),
        (FLIGHTS,): (first, last),
        (FEATURES,): (first, last),
    }
    for tables, (begin, end) in ranges.items():
        on_progress(", ".join(tables))
        materialize(project, [dg.AssetKey(one.split("/")) for one in tables], partition=begin, last=end)


def _of_source(function: str, day: date) -> pl.DataFrame:
    """Return the rows that the example's own source has for a day."""
    return resolve_function(f"ml_assets.defs.flights.source.{function}")(day)


@dataclass(kw_only=True)
class World:
    """Source and person. `tell` gets each event of the platform, `act` each thing that they do, in two parts."""

    project: Project
    replay: Replay
    happened: Happened
    tell: Callable[[Event], None]
    act: Callable[[str, str], None]
    delivered: date | None = None
    """Newest day of the source; None before the first."""
    is_over: bool = False
    """True once each day is handled and no run is in progress."""
    _spec: PipelineSpec = field(init=False)
    _corrected: set[date] = field(default_factory=set[date])
    _promoted: set[str] = field(default_factory=set[str])
    """Partitions whose blessed model the person promoted."""
    _delivered_at: float = field(default_factory=time.monotonic)
    _moved_at: float = field(default_factory=time.monotonic)
    """Moment of the newest event."""

    def __post_init__(self) -> None:
        """Find the declared model."""
        parts = pipeline.components(self.project.settings.home, self.replay)
        self._spec = next(one.spec for one in parts if one.spec.name == MODEL)

    def turn(self) -> None:
        """Tell what happened; then do the next thing, if its time has come. Raises `ReplayStalled`."""
        for event in self.happened.look():
            self._moved_at = time.monotonic()
            self.tell(event)
        if time.monotonic() - self._moved_at > STALL_SECONDS:
            raise ReplayStalled(
                f"nothing happened for {STALL_SECONDS / 60:.0f} minutes after {self.delivered}: "
                f"{self.project.settings.dagster_home}/ui-daemon.log has the reason; try again on an idle machine"
            )
        self._promote()
        if time.monotonic() - self._delivered_at < PACE_SECONDS:
            return
        day = self.delivered
        if day is None:
            self._deliver(self.replay.first)
        elif self.happened.is_rejected(FLIGHTS, str(day)):
            self._correct(day)
        elif self._is_handled(day):
            if day < self.replay.last:
                self._deliver(day + timedelta(days=1))
            else:
                self.is_over = self.happened.is_idle() and not self._promotable()

    def _deliver(self, day: date) -> None:
        damage = damages(self.replay).get(day)
        rows = _of_source("read_flights", day)
        said = "" if damage is None else f", damaged on purpose: {damage.said}"
        self.act("the source has", f"{day}{said}")
        deliver(self.project.settings.home, FLIGHTS, day, rows if damage is None else damage.of(rows))
        self.delivered, self._delivered_at = day, time.monotonic()

    def _correct(self, day: date) -> None:
        """Send a rejected day again, whole."""
        if day in self._corrected:
            return
        self._corrected.add(day)
        self.act("the source has", f"{day} again, corrected")
        deliver(self.project.settings.home, FLIGHTS, day, _of_source("read_flights", day))
        self._delivered_at = time.monotonic()

    def _is_handled(self, day: date) -> bool:
        """Return True if the day landed, with features up to the day before; on some days, if its model is decided.

        Features of a day that are built before those of earlier days are compared with older ones, and seem to drift.
        """
        key, before = str(day), day - timedelta(days=1)
        if day in self._model_days:
            return self.happened.is_usable(FEATURES, key) and key in self.happened.evaluations
        is_next = before < self.replay.first or self.happened.is_usable(FEATURES, str(before))
        return is_next and self.happened.is_usable(FLIGHTS, key)

    @property
    def _model_days(self) -> tuple[date, ...]:
        """Days whose model the source waits for: the first, the one whose holdout is damaged, and the last. The
        schedule trains others as their minute comes."""
        mirrored = self.replay.first + timedelta(days=2 + HOLDOUT_DAYS)
        return (self.replay.first, mirrored, self.replay.last)

    def _promotable(self) -> list[str]:
        """Return the partitions whose blessed model the person has not looked at."""
        found = self.happened.evaluations
        return [key for key, row in found.items() if row.status == "blessed" and key not in self._promoted]

    def _promote(self) -> None:
        """Promote a blessed version once its run is over. The platform may refuse: another one came first."""
        for key in self._promotable():
            if not self.happened.has_ended(self.happened.evaluations[key].run_id):
                continue
            self._promoted.add(key)
            reason = f"blessed on {key}"
            self.act("you promote", f"ml-assets promote {MODEL} --reason '{reason}'")
            try:
                promote(
                    self.project.platform,
                    self._spec,
                    None,
                    by=Person.unchecked(self.project.settings.author),
                    reason=reason,
                    despite_inputs=False,
                    on_missing=lambda why: self.act("not compared", why),
                )
            except (NotFound, NotPromotable) as refused:
                self.act("not promoted", f"{refused}")
