"""Retraining on request: the limit that live performance breaks, and the partition to train.

Only days count that no training has seen: after the last partition of each evaluated training. So a version that was
trained after the trouble began requests nothing, and neither does one whose retraining a gate rejected, until new days
are bad, too.

One limit is skew: the newest partitions of the features against those that the version in production was trained on.
Profiles of both are in the lake, so no rows are read. The training's window is cut into blocks as long as the newest
partitions together; their distances from each other say what is usual (`ml_assets.data.validation.table_drift`). Not
here: figures (`performance`), declaration and records (`steps.retraining`), the run, the check
(`checks.skew`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import BuildRefused
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.publish.audit import verdict_of
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from ml_assets.data.validation.drift_rule import LEAST_BLOCKS, SkewRule
from ml_assets.data.validation.drift_rule import RULE as DRIFT_RULE
from ml_assets.data.validation.table_drift import PastAndNow, TableDrift, change_in_words
from ml_assets.model.release.standing import InputsUnknown, keys_of
from ml_assets.model.steps.retraining import (
    DRIFT,
    HOLDOUT_DRIFT,
    SKEW,
    TABLE_DRIFT,
    RetrainRequest,
    RetrainRule,
    RetrainSection,
    record_request,
    requests_since,
    states_of_requests,
)
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets.model.steps.window import possible_partitions, validate_inputs
from ml_assets.use.live.performance import DayFigures, VersionFigures
from ml_assets.use.live.performance_history import states_of_days, stored_days
from resources.lake import ObjectNotFound, RefNotFound
from resources.platform import Platform
from resources.words import name_some


@dataclass(frozen=True, kw_only=True)
class Skew:
    """Comparison of the newest partitions with the training of a version."""

    version: str
    """Version in production."""
    now: tuple[str, ...]
    """Newest partitions, oldest first."""
    trained_on: tuple[str, str]
    """First and last partition of the training's window."""
    drift: TableDrift
    changes: dict[str, str]
    """Column that differs → the change in words."""

    def __str__(self) -> str:
        compared = (
            f"{self.now[0]} to {self.now[-1]} against {self.trained_on[0]} to {self.trained_on[1]}, "
            f"the training of version {self.version}"
        )
        if not self.changes:
            return f"{compared}: no column of {len(self.drift.columns)} differs"
        said = name_some([f"{name} ({change})" for name, change in self.changes.items()])
        return f"{compared}: {len(self.changes)} of {len(self.drift.columns)} columns differ: {said}"


class NotCompared(Exception):
    """Nothing can be compared yet. The message says why."""


def skew_of(spec: PipelineSpec, rule: SkewRule, platform: Platform, *, after: str = "") -> Skew:
    """Compare the newest partitions on main, all later than `after` and the training's window, with that window.

    Raises `NotCompared`, `LakeError` and `LedgerError`.
    """
    log, table = platform.ledger.models, spec.features.table
    production = log.in_production(spec.name)
    row = None if production is None else log.evaluation(production.evaluation_digest)
    if production is None or row is None:
        raise NotCompared(f"no version of {spec.name} is in production")
    window = row.trained_on
    before = TableReader(platform.lake, window.commit)
    main = TableReader.at(platform.lake, "main")
    now = [key for key in main.keys(table) if key > max(after, window.last)][-rule.partitions :]
    if len(now) < rule.partitions:
        raise NotCompared(
            f"{table} has {len(now)} partitions after {max(after, window.last)}; {rule.partitions} are compared"
        )
    try:
        past = list(keys_of(before, window))
        manifests = {**before.manifests(window.table, past), **main.manifests(table, now)}
    except (InputsUnknown, PartitionMissing, RefNotFound, ObjectNotFound) as error:
        raise NotCompared(
            f"the partitions of the training of version {production.version}: {error}"
        ) from error
    size = rule.partitions
    blocks = [past[end - size : end] for end in range(len(past), size - 1, -size)][::-1]
    profiles = {key: one.profile for key, one in manifests.items()}
    inputs = (*spec.features.numeric, *spec.features.categorical)
    found = PastAndNow(profiles).compare_blocks(now, blocks, rule, least=LEAST_BLOCKS, only=inputs)
    if found is None:
        raise NotCompared(f"fewer than {LEAST_BLOCKS} blocks of {size} partitions of the training have rows")
    return Skew(
        version=production.version,
        now=tuple(now),
        trained_on=(window.first, window.last),
        drift=found,
        changes={
            one.column: change_in_words(one.column, [profiles[key] for key in past], profiles[now[-1]])
            for one in found.drifting
        },
    )


_TRIED = 14
"""Newest partitions among which one is looked for whose window may be read."""


@dataclass(frozen=True, kw_only=True)
class RetrainState:
    """Request to make now, or why there is none."""

    request: RetrainRequest | None
    said: str
    """Reason of the request, or why there is none."""
    until: datetime | None = None
    """Moment (UTC) from which time alone may allow a request; None: there is none."""


def seen_by_next_request(
    spec: PipelineSpec, platform: Platform, tables: DeclaredTables
) -> dict[str, str | int | list[str]]:
    """Return the facts on which the answer of `next_request` depends, but for time. Reads no figure and no row.

    Raises `ArtifactsError`, `LakeError` or `LedgerError`.
    """
    behind = [one.table for one in tables.with_inputs(spec.features.table)]
    return {
        "decided": platform.ledger.models.head().place,
        "verdicts": [f"{table} {platform.ledger.newest_change(table)}" for table in behind],
        "main": platform.lake.resolve(MAIN),
        "requested": states_of_requests(platform.artifacts, spec.name),
        "measured": states_of_days(platform.artifacts, spec.name),
    }


def value_of(figures: VersionFigures, metric: str) -> float | None:
    """Return drift or a metric of a version's day; None if it is not known or not defined."""
    if metric in (DRIFT, HOLDOUT_DRIFT):
        most = figures.largest_drift if metric == DRIFT else figures.largest_holdout_drift
        return None if most is None else most.psi_excess
    return figures.metrics.get(metric)


def broken_limits(when: Sequence[RetrainRule], days: Sequence[DayFigures], bundle: str) -> Iterator[str]:
    """Yield a sentence for each rule that the newest `days` (oldest first) of `bundle` break."""
    of_bundle = [(day.partition, one) for day in days for one in day.versions if one.bundle_digest == bundle]
    for rule in when:
        values = [
            (partition, value)
            for partition, one in of_bundle
            if (value := value_of(one, rule.metric)) is not None
        ][-rule.partitions :]
        if len(values) == rule.partitions and not any(rule.allows(value) for _, value in values):
            shown = ", ".join(f"{value:.3g} on {partition}" for partition, value in values)
            yield f"{rule.metric} was {shown}; {rule}"


def broken_by_inputs(
    spec: PipelineSpec, when: Sequence[RetrainRule], skew: SkewRule | None, platform: Platform, seen: str
) -> Iterator[str]:
    """Yield a sentence for each rule on the features that the newest partitions after `seen` break."""
    table = spec.features.table
    for rule in when:
        if rule.metric == TABLE_DRIFT:
            newest = platform.ledger.newest_verdicts(table)
            keys = sorted(key for key in newest if key > seen)[-rule.partitions :]
            values = [
                (key, sum(one.rule == DRIFT_RULE for one in verdict_of(newest[key]).findings)) for key in keys
            ]
            if len(values) == rule.partitions and not any(rule.allows(value) for _, value in values):
                shown = ", ".join(f"{value} on {key}" for key, value in values)
                yield f"table_drift of {table} was {shown}; {rule}"
        elif rule.metric == SKEW and skew is not None:
            try:
                found = skew_of(spec, skew, platform, after=seen)
            except NotCompared:
                continue
            if not rule.allows(found.drift.largest):
                yield f"skew was {found.drift.largest:.3g} ({found}); {rule}"


def next_request(
    spec: PipelineSpec,
    section: RetrainSection,
    platform: Platform,
    tables: DeclaredTables,
    *,
    made: str,
    now: datetime,
    skew: SkewRule | None = None,
) -> RetrainState:
    """Return the request to make now. A new one is recorded first. `skew` is the pipeline's section of that name.

    `made` is the name of the newest request whose run was requested: a recorded request without run, because its
    process died, is made again under its name. Raises `ArtifactsError`, `LakeError` or `LedgerError`.
    """
    if recent := requests_since(platform.artifacts, spec.name, now - section.cool_down):
        newest = recent[-1]
        if newest.name != made:
            return RetrainState(request=newest, said=newest.reason)
        until = newest.at + section.cool_down
        return RetrainState(
            request=None,
            said=f"{newest.partition} was requested: none before {until:%Y-%m-%d %H:%M} UTC",
            until=until,
        )
    log = platform.ledger.models
    production = log.in_production(spec.name)
    if production is None:
        return RetrainState(request=None, said=f"no version of {spec.name} is in production")
    seen = max((one.trained_on.last for one in log.evaluations(spec.name)), default="")
    days = stored_days(platform.artifacts, spec.name, after=seen)
    broken = [
        *broken_limits(section.when, days, production.bundle_digest),
        *broken_by_inputs(spec, section.when, skew, platform, seen),
    ]
    reason = "; ".join(broken)
    if not reason:
        return RetrainState(
            request=None,
            said=f"version {production.version} keeps its limits on the {len(days)} measured partitions after {seen}",
        )
    partition, why_not = _newest_ready(spec, platform, tables, seen)
    if partition is None:
        return RetrainState(request=None, said=f"{reason}. Nothing to train on yet: {why_not}")
    request = RetrainRequest(
        model=spec.name,
        partition=partition,
        at=now.replace(microsecond=0),
        version=int(production.version),
        reason=f"version {production.version}: {reason}",
    )
    record_request(platform.artifacts, request)
    return RetrainState(request=request, said=request.reason)


def _newest_ready(
    spec: PipelineSpec, platform: Platform, tables: DeclaredTables, seen: str
) -> tuple[str | None, str]:
    """Return the newest partition after `seen` with labels and a window that a training may read, or why not."""
    reader = TableReader.at(platform.lake, "main")
    declared = tables.find(spec.features.table)
    possible = [key for key in possible_partitions(spec, reader, tables) if key > seen]
    why_not = f"main holds no partition of {spec.features.table} after {seen}"
    if declared is None:
        return None, why_not
    for key in reversed(possible[-_TRIED:]):
        labels = reader.scan(spec.features.table, [key]).select(pl.col(spec.features.label).is_not_null())
        if not labels.collect().to_series().any():
            why_not = f"{spec.features.table} {key} has no labels"
            continue
        try:
            validate_inputs(spec, platform, tables, key, declared.cadence.window(key, spec.window.total))
        except BuildRefused as refused:
            why_not = str(refused)
            continue
        return key, ""
    return None, why_not
