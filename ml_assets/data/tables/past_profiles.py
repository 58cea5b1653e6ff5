"""Comparison of partitions with their table's past, by the profiles in manifests. Reads no rows.

Not here: the decision (`ml_assets.data.validation.table_drift`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import TableSpec
from ml_assets.data.validation.drift_rule import DriftRule
from ml_assets.data.validation.table_drift import PastAndNow, Shifts, TableDrift
from ml_assets.data.validation.verdict import Finding

_WEEK = 7
"""Days of a week, which are partitions of a daily table."""


@dataclass(frozen=True, slots=True)
class PartitionDrift:
    """Comparison of a partition with its past, and the findings that follow."""

    drift: TableDrift
    findings: Sequence[Finding]


def drift_of_partitions(
    reader: TableReader,
    spec: TableSpec,
    new: Mapping[str, PartitionManifest],
    known: Mapping[str, PartitionManifest] | None = None,
) -> dict[str, PartitionDrift]:
    """Compare the partitions `new` with those before them; return the ones that have enough past.

    The past is `new` itself, `known`, and main at the reader's commit, in this order of preference. Goes through `new`
    in the order of keys. A partition that a drift keeps from main is not part of the past of later ones.
    """
    rule = spec.drift
    if rule is None or not new:
        return {}
    ours = {**(known or {}), **new}
    means = rule.given_others
    windows = {key: past_keys(spec.cadence, key, rule) for key in sorted(new)}
    of_means = {} if means is None else {key: spec.cadence.previous(key, means.window) for key in windows}
    on_main = set(reader.keys(spec.table)) - ours.keys()
    needed = {one for window in (*windows.values(), *of_means.values()) for one in window}
    asked = sorted(needed & on_main)
    manifests = reader.checked_manifests(spec.table, asked)[0] | ours
    # A day and a week may share a key.
    profiles = {key: one.profile for key, one in manifests.items() if one.cadence == spec.cadence.kind}
    compared, shifts = PastAndNow(profiles), Shifts(profiles if of_means else {})
    found, rejected = dict[str, PartitionDrift](), set[str]()
    for key, window in windows.items():
        drift = compared.compare(key, [one for one in window if one not in rejected], rule)
        if drift is not None:
            if means is not None:
                past = [one for one in of_means[key] if one not in rejected]
                drift = replace(drift, shifts=shifts.compare(key, past, means, rule))
            found[key] = PartitionDrift(drift, compared.findings(key, drift, rule))
            if any(one.blocks for one in found[key].findings):
                rejected.add(key)
    return found


def past_keys(cadence: Cadence, key: str, rule: DriftRule) -> list[str]:
    """Return the keys with which `rule` compares partition `key`, oldest first; fewer at the table's start."""
    if not rule.same_weekday:
        return cadence.previous(key, rule.window)
    return cadence.previous(key, rule.window * _WEEK)[-_WEEK::-_WEEK][::-1]
