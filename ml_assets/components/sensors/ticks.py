"""Ticks of sensors: the only place that decides that nothing moved, so that a tick costs nothing.

A tick first looks up what its answer depends on, cheaply: the commit of main, the newest change of the ledger, the
source's answer. If all are those of its last answer, and no moment came at which time alone changes that answer, the
sensor skips. After the clock was set back, it looks again: those moments were told by another clock. Definitions that
are loaded anew look at everything again, because code, declarations and settings count, too. Not here: what a sensor
requests.
"""

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from typing import Self

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from resources.artifacts import ArtifactsError
from resources.lake import LakeError
from resources.ledger import LedgerError

_SAID_CHARACTERS = 1000


class TickIncomplete(TypeError):
    """A sensor answered without `Tick.saw`, so nothing tells when its answer changes: call it first."""


class _Cursor(BaseModel):
    """Last answer of a sensor, as Dagster keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seen: str
    """Digest of the facts on which it was given."""
    again_at: float | None
    """`TickAnswer.again_at` in Unix seconds."""
    at: float | None = None
    """Moment of the answer in Unix seconds; None if an earlier version wrote it."""
    said: str
    own: str

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """Return the cursor in `text`; None for any other text, which somebody wrote by hand or an earlier version."""
        try:
            return cls.model_validate_json(text or "")
        except ValidationError:
            return None


@dataclass(frozen=True, kw_only=True)
class TickAnswer:
    """Answer of a sensor to what it saw."""

    again_at: datetime | None
    """Moment (UTC) at which time alone changes the answer: a retry is due, a partition closes. None: never.
    `Tick.now`: the answer depends on more than `Tick.saw` was told, so each tick looks again."""
    said: str
    """Reason for people, if nothing is requested."""
    run_requests: Sequence[dg.RunRequest] = ()
    asset_events: Sequence[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = ()
    own: str = ""
    """Text that the next answer gets as `Tick.own`."""


class _NothingMoved(Exception):
    """The last answer still holds."""


@dataclass(kw_only=True)
class Tick:
    """One evaluation of a sensor."""

    context: dg.SensorEvaluationContext
    now: datetime
    """Moment (UTC) of the evaluation."""
    loaded: str
    """Identity of the loaded sensor."""
    last: _Cursor | None
    """Last answer; None at first."""
    seen: str | None = field(default=None, init=False)
    """Digest of the facts that `saw` was told."""

    @property
    def own(self) -> str:
        """`TickAnswer.own` of the last answer; empty at first."""
        return "" if self.last is None else self.last.own

    def saw(self, **facts: str | int | Sequence[str] | None) -> None:
        """End the tick if its last answer was given on the same facts, before now, and no moment came that changes it.

        `facts` are all that the answer depends on, but for time, and were looked up before anything else: what changes
        meanwhile is noticed by the next tick.
        """
        text = json.dumps([self.loaded, facts], sort_keys=True)
        self.seen = hashlib.sha256(text.encode()).hexdigest()[:32]
        last = self.last
        if last is None or last.seen != self.seen:
            return
        is_due = last.again_at is not None and self.now.timestamp() >= last.again_at
        if not is_due and self.seconds_since(last.at) < math.inf:
            raise _NothingMoved

    def seconds_since(self, moment: float | None) -> float:
        """Return the seconds since a kept moment (Unix seconds); infinity for None, and for a moment that is still to
        come: the clock was ahead when it was kept, so nothing waits for it."""
        now = self.now.timestamp()
        return math.inf if moment is None or moment > now else now - moment


def moment() -> datetime:
    """Return the current moment (UTC)."""
    return datetime.now(UTC)


def ticking_sensor(
    evaluate: Callable[..., TickAnswer],
    *,
    name: str,
    every_seconds: int,
    description: str,
    asset_selection: Sequence[dg.AssetKey] | dg.AssetSelection | None = None,
    is_running: bool = True,
    otherwise: str | None = None,
) -> dg.SensorDefinition:
    """Return the sensor that calls `evaluate` with a `Tick`, in its parameter `tick`, and the resources that its
    signature names.

    With `otherwise`, a tick without artifacts, lake or ledger is skipped with the reason, after `otherwise`; it keeps
    its cursor, and the next tick looks again. Without, it fails. The daemon reads `every_seconds`.
    """
    loaded = uuid.uuid4().hex

    @dg.sensor(
        name=name,
        asset_selection=asset_selection,
        minimum_interval_seconds=every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if is_running else dg.DefaultSensorStatus.STOPPED,
        description=description,
    )
    @wraps(evaluate)
    def evaluated(tick: dg.SensorEvaluationContext, **resources: object) -> dg.SensorResult:
        this = Tick(context=tick, now=moment(), loaded=loaded, last=_Cursor.read(tick.cursor))
        try:
            answer = evaluate(this, **resources)
        except _NothingMoved:
            said = this.last.said if this.last else ""
            return dg.SensorResult(skip_reason=f"nothing moved since: {said}", cursor=tick.cursor)
        except (ArtifactsError, LakeError, LedgerError) as error:
            if otherwise is None:
                raise
            return dg.SensorResult(skip_reason=f"{otherwise}: {error}", cursor=tick.cursor)
        if this.seen is None:
            raise TickIncomplete(
                f"the sensor {name} answered without Tick.saw: tell it the facts of the answer"
            )
        cursor = _Cursor(
            seen=this.seen,
            again_at=None if answer.again_at is None else answer.again_at.timestamp(),
            at=this.now.timestamp(),
            said=answer.said[:_SAID_CHARACTERS],
            own=answer.own,
        )
        return dg.SensorResult(
            run_requests=[*answer.run_requests],
            skip_reason=None if answer.run_requests else answer.said,
            asset_events=[*answer.asset_events],
            cursor=cursor.model_dump_json(),
        )

    return evaluated
