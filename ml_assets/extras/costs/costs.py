"""Costs of trainings: hours and money of what they reserved, by pipeline, partition, day, status, kind of GPU or group.

An attempt that spans several days, or the first moment that counts, has the share of its hours that lies there. Not
here: the records (`ml_assets.model.steps.usage`), prices (prices).
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Literal, get_args

from ml_assets.extras.costs.prices import PriceTable
from ml_assets.model.steps.goodput import Goodput
from ml_assets.model.steps.live_report import Attempts
from ml_assets.model.steps.usage import EVERY_SECONDS, UsageRecord, UsedAttempt, read_usage_file
from resources.artifacts import ArtifactMissing, Artifacts, read_artifact
from resources.job.events import EVENTS, USAGE, TrainingEvent, folder_of_training
from resources.threads import side_by_side

By = Literal["pipeline", "partition", "day", "status", "gpu", "group"]
WAYS: tuple[By, ...] = get_args(By)
_SILENT_SECONDS = 3 * EVERY_SECONDS
"""Seconds without a record after which the launcher of a running training counts as gone."""
_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Sums over reservations."""

    gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    """Part of `gpu_hours` in which nothing was computed that was kept: start, waits, saves, lost work. The attempts of
    a training share it evenly."""
    core_hours: float = 0.0
    gib_hours: float = 0.0
    money: float | None = None
    """Price of all that has one; None without a table of prices."""
    unpriced_gpu_hours: float = 0.0
    """GPU hours of kinds that the table does not price, and that `money` lacks; 0 without a table."""

    def __add__(self, other: "Spending") -> "Spending":
        sums = {
            one.name: getattr(self, one.name) + getattr(other, one.name)
            for one in fields(self)
            if one.name != "money"
        }
        priced = [one.money for one in (self, other) if one.money is not None]
        return Spending(**sums, money=sum(priced) if priced else None)


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """Costs of one group."""

    name: str
    trainings: int
    spent: Spending


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of many trainings."""

    by: By
    since: date | None
    """First UTC day that counts; None: from the first."""
    rows: Sequence[CostRow]
    total: CostRow
    currency: str
    unpriced: Sequence[str]
    """Kinds of GPU without a price, if there is a table."""


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Costs of one training over all its launches."""

    model: str
    partition: str
    fingerprint: str
    states: Sequence[str]
    """State of each attempt, oldest first."""
    spent: Spending
    goodput: Goodput
    currency: str


def read_records(
    artifacts: Artifacts, environment: str, env: str | None = None, model: str | None = None
) -> list[UsageRecord]:
    """Return the usage of all trainings of an environment, with what they held when they were last alive.

    `env`: only those of this environment of `ml-assets env`; `model`: only those of this pipeline; None: of all. Raises
    `ArtifactsError`, and `UsageDamaged`.
    """

    place = USAGE if model is None else f"{USAGE}/{model}"

    def read(file: str) -> UsageRecord | None:
        record = read_usage_file(artifacts, f"{place}/{file}")
        if record is None:  # removed meanwhile
            return None
        if record.environment != environment or env not in (None, record.env):
            return None
        return settled(artifacts, record)

    found = side_by_side(read, sorted(artifacts.files(place)))
    return [one for one in found if one is not None]


def settled(artifacts: Artifacts, record: UsageRecord) -> UsageRecord:
    """Return a record whose launcher is gone as it ended: its places count up to the workers' last sign of life."""
    if not record.is_open or time.time() - record.at < _SILENT_SECONDS:
        return record
    attempts = Attempts.of([*(one.reading.event() for one in record.attempts), *_events(artifacts, record)])
    held = {one.job: replace(one, places=0) for one in attempts.held()}
    return replace(
        record,
        attempts=tuple(
            replace(one, reading=held[one.reading.job], state="lost" if one.reading.places else one.state)
            for one in record.attempts
        ),
    )


def _events(artifacts: Artifacts, record: UsageRecord) -> list[TrainingEvent]:
    try:
        text = read_artifact(artifacts, folder_of_training(record.model, record.fingerprint), EVENTS).decode()
    except ArtifactMissing:
        return []
    return [event for line in text.splitlines() if (event := TrainingEvent.from_line(line)) is not None]


def costs_of(
    records: Iterable[UsageRecord],
    prices: PriceTable | None,
    by: By,
    since: date | None = None,
    groups: Mapping[str, str] | None = None,
) -> Costs:
    """Return the costs of trainings. `groups`: model → its group in the definitions, for `by="group"`."""
    names: dict[str, set[str]] = {}
    sums: dict[str, Spending] = {}
    every: set[str] = set()
    unpriced: set[str] = set()
    total = Spending(money=None if prices is None else 0.0)
    began = 0.0 if since is None else datetime(since.year, since.month, since.day, tzinfo=UTC).timestamp()
    for record in records:
        for attempt in record.attempts:
            for name, share in _shares(record, attempt, by, began, groups or {}):
                spent = _spent(record, attempt, share, prices)
                if spent.unpriced_gpu_hours:
                    unpriced.add(attempt.gpu or "unknown")
                sums[name] = sums.get(name, Spending()) + spent
                names.setdefault(name, set()).add(record.fingerprint)
                every.add(record.fingerprint)
                total += spent
    rows = [CostRow(name=name, trainings=len(names[name]), spent=sums[name]) for name in sorted(sums)]
    return Costs(
        by=by,
        since=since,
        rows=rows,
        total=CostRow(name="all", trainings=len(every), spent=total),
        currency="" if prices is None else prices.currency,
        unpriced=sorted(unpriced),
    )


def cost_of(record: UsageRecord, prices: PriceTable | None) -> TrainingCost:
    """Return the costs of one training."""
    spent = Spending(money=None if prices is None else 0.0)
    for attempt in record.attempts:
        spent += _spent(record, attempt, 1.0, prices)
    return TrainingCost(
        model=record.model,
        partition=record.partition,
        fingerprint=record.fingerprint,
        states=[one.state for one in record.attempts],
        spent=spent,
        goodput=record.goodput,
        currency="" if prices is None else prices.currency,
    )


def _spent(record: UsageRecord, attempt: UsedAttempt, share: float, prices: PriceTable | None) -> Spending:
    """Return what a share, 0–1, of an attempt costs."""
    gpus, cores, gib = (share * one for one in (attempt.gpu_hours, attempt.core_hours, attempt.gib_hours))
    hours = Spending(
        gpu_hours=gpus, idle_gpu_hours=gpus * record.goodput.idle_share, core_hours=cores, gib_hours=gib
    )
    if prices is None:
        return hours
    price = prices.of_gpu(attempt.gpu)
    return replace(
        hours,
        money=gpus * (price or 0.0) + cores * prices.core_hour + gib * prices.gib_hour,
        unpriced_gpu_hours=gpus if price is None else 0.0,
    )


def _shares(
    record: UsageRecord, attempt: UsedAttempt, by: By, since: float, groups: Mapping[str, str]
) -> Iterator[tuple[str, float]]:
    """Yield the groups of an attempt, each with the share of its hours that counts there."""
    name_of: Mapping[By, Callable[[], str]] = {
        "pipeline": lambda: record.model,
        "partition": lambda: f"{record.model} {record.partition}",
        "status": lambda: attempt.state,
        "gpu": lambda: attempt.gpu or ("unknown" if attempt.gpus else "none"),
        "group": lambda: groups.get(record.model, "not declared"),
    }
    began, until = attempt.reading.began, attempt.reading.at
    if by != "day":
        if (share := _share(began, until, since, math.inf)) > 0:
            yield name_of[by](), share
        return
    first = max(began, since)
    day = datetime.fromtimestamp(first, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while day.timestamp() <= max(first, until):  # a clock that was set back ends an attempt before it began
        share = _share(began, until, max(since, day.timestamp()), day.timestamp() + _DAY)
        if share > 0:
            yield day.date().isoformat(), share
        day += timedelta(days=1)


def _share(began: float, until: float, first: float, last: float) -> float:
    """Return the share of the time from `began` to `until` that lies between two moments."""
    if until <= began:
        return float(first <= began < last)
    return max(0.0, min(until, last) - max(began, first)) / (until - began)
