"""Skew: the newest partitions of a model's features against those that the version in production was trained on.

Profiles of both are in the lake: those of the training's window at the commit that it read. No rows are read. The
window is cut into blocks as long as the newest partitions together, so that their distances from each other say what is
usual (`ml_assets.data.validation.table_drift`). Not here: the check and its page (`components.checks.skew`).
"""

from dataclasses import dataclass

from ml_assets.data.tables.reader import PartitionMissing, TableReader
from ml_assets.data.validation.drift_rule import LEAST_BLOCKS, SkewRule
from ml_assets.data.validation.drift_words import change_in_words
from ml_assets.data.validation.table_drift import PastAndNow, TableDrift
from ml_assets.model.release.rows_behind import InputsUnknown, keys_of
from ml_assets.model.steps.spec import PipelineSpec
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
        """Return the result in a sentence."""
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
