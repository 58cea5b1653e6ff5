"""Audit of partitions before they land: each gets a verdict, by its contract, its rows' number, and its table's past.

Bad rows are set aside where the table allows it. Foreign keys are looked up at one commit of main, and the past is
compared by the profiles in manifests, without reading rows. Not here: the rules themselves
(`ml_assets.data.validation`), and the landing (`publish`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from ml_assets.data.tables import layout
from ml_assets.data.tables.cadence import OF_MONTHS, UNPARTITIONED, Cadence, CadenceKind
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.publish.prepare import (
    Prepared,
    StoredPartition,
    undated_digest,
    undated_partition,
    with_quarantined,
    with_rows,
)
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import MOST_UNDATED, TableSpec
from ml_assets.data.validation.check import broken_rules
from ml_assets.data.validation.contract import ForeignKey
from ml_assets.data.validation.drift_rule import DriftRule
from ml_assets.data.validation.quarantine import (
    Share,
    divide,
    over_limit_finding,
    set_aside_findings,
    undated_finding,
    unreconciled_finding,
    with_reason_undated,
)
from ml_assets.data.validation.table_drift import PastAndNow, Shifts, TableDrift
from ml_assets.data.validation.verdict import Finding, Verdict
from ml_assets.data.validation.volume import VolumePast, volume_findings
from resources.ledger import Ledger, NewVerdict, VerdictRow

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


class ReferredTables:
    """Look-up of referred rows. It remembers each partition that it read, with its digest.

    The guard decides if a partition may be referred to, as it does for inputs of a feature table.
    """

    def __init__(
        self,
        reader: TableReader,
        ledger: Ledger,
        tables: DeclaredTables,
        cadence: CadenceKind,
        keys: Sequence[str],
    ) -> None:
        """`cadence`, `keys`: those of the partitions whose foreign keys are looked up."""
        self._reader = reader
        self._ledger = ledger
        self._tables = tables
        self._cadence = cadence
        self._keys = keys
        self._read: dict[str, set[tuple[str, str, str]]] = {}
        self._barred: dict[str, Mapping[str, str]] = {}
        self._frames: dict[tuple[ForeignKey, str], pl.DataFrame] = {}

    def __call__(self, foreign: ForeignKey, key: str) -> pl.DataFrame | str:
        """Return the named columns of the whole table if it has no partitions, else of partition `key`.

        Return the reason as text if there are no such rows that may be used. Raises `ManifestUnreadable`.
        """
        declared = self._tables.find(foreign.table)
        digests = self._reader.digests(foreign.table)
        if declared is None and UNPARTITIONED in digests and len(digests) > 1:
            return (
                f"main has the partition {UNPARTITIONED!r} and dated ones of it, and nothing declares which of them "
                "count"
            )
        kind = declared.cadence.kind if declared else None
        if kind not in (None, "none", self._cadence):
            return f"it is {kind}, and this table is {self._named_cadence}"
        is_whole = UNPARTITIONED in digests if kind is None else kind == "none"
        theirs = UNPARTITIONED if is_whole else key
        if (why := self._barred_of(foreign.table, is_whole=is_whole).get(theirs)) is not None:
            return f"{foreign.table} {theirs} {why}"
        found = self._reader.manifest(foreign.table, theirs).cadence
        if not is_whole and found != self._cadence:
            return f"main has {theirs} of it as a partition that is {found}, and this table is {self._named_cadence}"
        self._read.setdefault(key, set()).add((foreign.table, theirs, digests[theirs]))
        if (foreign, theirs) not in self._frames:
            rows = self._reader.scan(foreign.table, [theirs])
            if lacking := sorted(set(foreign.named) - set(rows.collect_schema())):
                return f"{foreign.table} {theirs} has no column {', '.join(lacking)}"
            self._frames[foreign, theirs] = rows.select(foreign.named).unique().collect()
        return self._frames[foreign, theirs]

    def read_for(self, key: str) -> tuple[tuple[str, str, str], ...]:
        """Return (table, key, content digest) of the partitions that were read for partition `key`, sorted."""
        return tuple(sorted(self._read.get(key, ())))

    @property
    def _named_cadence(self) -> str:
        return "without partitions" if self._cadence == "none" else self._cadence

    def _barred_of(self, table: str, *, is_whole: bool) -> Mapping[str, str]:
        """Return key → reason for the partitions that the guard refuses, all looked up at once."""
        if table not in self._barred:
            keys = [UNPARTITIONED] if is_whole else self._keys
            window = validate_window(self._reader, self._ledger, self._tables, table, keys)
            self._barred[table] = {
                key: window.refused.get(f"{table} {key}", why) for key, why in window.barred.items()
            }
        return self._barred[table]


@dataclass(frozen=True, slots=True)
class Validated:
    """A partition with its verdict."""

    verdict: Verdict
    partition: Prepared
    """The rows that the verdict is about. Rows that were set aside are left out."""
    set_aside: Prepared | None = None
    """Those rows, as a partition of the quarantine table."""
    keeps_undated: bool = True
    """True if the source's rows without a time, or that it has none, are kept in the quarantine table."""
    drift: TableDrift | None = None
    """Distances from earlier partitions; None if it was not compared with them."""

    @property
    def stored(self) -> list[StoredPartition]:
        """Everything to write. A quarantine without rows is written, too: it removes an earlier one."""
        mine = self.partition.stored
        table = layout.quarantine_of(mine.table)
        if table is None:
            return [mine]
        aside = self.set_aside.stored if self.set_aside else StoredPartition(table, mine.key, {}, {})
        return [mine, aside]


def undated_place(spec: TableSpec, good: Mapping[str, Validated]) -> list[StoredPartition]:
    """Return the rows without a time that the last partition was read with, as a partition of the quarantine table.

    Without such rows, it removes earlier ones.
    """
    table = layout.quarantine_of(spec.table)
    for one in reversed(list(good.values())):
        rows = one.partition.undated
        if rows is None or table is None or not one.keeps_undated:
            continue
        if not rows.frame.height:
            return [StoredPartition(table, layout.UNDATED, {}, {})]
        aside = with_reason_undated(rows.frame, rows.column)
        return [undated_partition(spec, one.partition, aside).stored]
    return []


def validate(
    ledger: Ledger,
    spec: TableSpec,
    partitions: Mapping[str, Prepared],
    newest: Mapping[str, VerdictRow],
    reader: TableReader,
    tables: DeclaredTables,
) -> dict[str, Validated]:
    """Return key → verdict on exactly this content: known verdicts, and new content validated as one joined frame.

    `newest` is the ledger's newest verdict per key. `reader` reads the tables to which foreign keys refer, as far as
    the guard allows it by their declarations in `tables`. A verdict
    that let content pass holds as long as content and rules stay the same, also if such a table changes. A rejected
    partition is validated again, because the rules on volume and drift compare with a history that grows. So is content
    that was a rest, whose other rows were set aside: these may be gone or others now.
    """
    digests = {key: one.digest for key, one in partitions.items()}
    stored = ledger.find_verdicts(spec.table, digests, spec.rules_digest)
    # An acceptance covers one verdict: it holds while that verdict is the newest.
    known = {
        key: verdict_of(row)
        for key, row in stored.items()
        if row.status in ("passed", "warned") or (row.status == "accepted" and row == newest.get(key))
    }
    known = {
        key: verdict
        for key, verdict in known.items()
        if not verdict.quarantine_digest and verdict.undated_digest == undated_digest(spec, partitions[key])
    }
    unknown = {key: one for key, one in partitions.items() if key not in known}
    before = {key: partitions[key] for key in known}
    fresh = _validate_new(ledger, spec, unknown, before, reader, tables) if unknown else {}
    return {
        key: fresh[key] if key in fresh else _as_before(known[key], one) for key, one in partitions.items()
    }


def _as_before(verdict: Verdict, partition: Prepared) -> Validated:
    """Return content with its known verdict. Rows without a time were set aside, unless a person accepted the rest."""
    is_kept = not (verdict.undated_digest and verdict.status == "accepted")
    rows = partition.undated.frame.height if is_kept and partition.undated is not None else 0
    return Validated(verdict, with_quarantined(partition, rows), keeps_undated=is_kept)


def verdict_of(row: VerdictRow) -> Verdict:
    """Return the recorded verdict with its current status: a person may have accepted the partition since."""
    return replace(Verdict.from_json(row.body_json), status=row.status)


def new_row_of(verdict: Verdict, run_id: str, branch: str) -> NewVerdict:
    """Return a verdict as a row for the ledger."""
    return NewVerdict(
        table=verdict.table,
        key=verdict.key,
        content_digest=verdict.content_digest,
        contract_digest=verdict.contract_digest,
        status=verdict.status,
        rows=verdict.rows,
        body_json=verdict.to_json(),
        run_id=run_id,
        branch=branch,
    )


def says(row: VerdictRow | None, verdict: Verdict | NewVerdict) -> bool:
    """True if a recorded verdict has the same content, rules and status as `verdict`, and set the same rows aside."""
    if row is None or (row.content_digest, row.contract_digest, row.status) != (
        verdict.content_digest,
        verdict.contract_digest,
        verdict.status,
    ):
        return False
    new = verdict if isinstance(verdict, Verdict) else Verdict.from_json(verdict.body_json)
    before = Verdict.from_json(row.body_json)
    return (before.quarantine_digest, before.undated_digest) == (new.quarantine_digest, new.undated_digest)


def is_recorded(row: VerdictRow | None, new: NewVerdict) -> bool:
    """True if the newest verdict has the same content and status and, if rejected, the same evidence branch."""
    return says(row, new) and row is not None and (new.status != "rejected" or row.branch == new.branch)


def _validate_new(
    ledger: Ledger,
    spec: TableSpec,
    partitions: Mapping[str, Prepared],
    known: Mapping[str, Prepared],
    reader: TableReader,
    tables: DeclaredTables,
) -> dict[str, Validated]:
    referred = ReferredTables(reader, ledger, tables, spec.cadence.kind, list(partitions))
    divided = _divide_all(spec, partitions, referred)
    # Count only partitions that no other rule blocks: a broken day says nothing about the days after it.
    counted = {key: one.partition.frame.height for key, one in divided.items() if not _blocks(one.findings)}
    past = _past_volumes(ledger, spec, known, partitions)
    volumes = volume_findings(
        counted,
        past,
        spec.volume,
        table=spec.table,
        of_months=OF_MONTHS.get(spec.cadence.kind, ""),
        zone=spec.contract.event_time_zone,
    )
    rows_of_table = sum(
        {**past.passed, **{key: one.frame.height for key, one in partitions.items()}}.values()
    )
    divided = {key: _reconciled(spec, one, rows_of_table) for key, one in divided.items()}
    findings = {
        key: [*one.findings, *([volumes[key]] if key in volumes else [])] for key, one in divided.items()
    }
    comparable = {key: one.partition.manifest for key, one in divided.items() if not _blocks(findings[key])}
    drifts = drift_of_partitions(reader, spec, comparable, {key: one.manifest for key, one in known.items()})
    return {
        key: Validated(
            Verdict.of(
                spec.table,
                key,
                [*findings[key], *(drifts[key].findings if key in drifts else ())],
                rows=one.partition.frame.height,
                content_digest=one.partition.digest,
                contract_digest=spec.rules_digest,
                quarantined=one.set_aside.frame.height if one.set_aside else 0,
                quarantine_digest=one.set_aside.digest if one.set_aside else "",
                undated_digest=undated_digest(spec, one.partition),
                referred=referred.read_for(key),
            ),
            one.partition,
            one.set_aside,
            drift=drifts[key].drift if key in drifts else None,
        )
        for key, one in divided.items()
    }


def _past_volumes(
    ledger: Ledger, spec: TableSpec, known: Mapping[str, Prepared], new: Mapping[str, Prepared]
) -> VolumePast:
    levels: dict[str, set[str]] = {}
    for one in ledger.acceptances(spec.table):
        if one.level:
            levels.setdefault(one.level, set()).add(one.key)
    return VolumePast(
        passed=ledger.volumes(spec.table) | {key: one.frame.height for key, one in known.items()},
        rejected={
            key: row.rows
            for key, row in ledger.rejections(spec.table).items()
            if key not in new and key not in known and Verdict.from_json(row.body_json).is_volume_alone
        },
        levels=list(levels.values()),
    )


@dataclass(frozen=True, slots=True)
class _Divided:
    """A partition after the rules of its contract."""

    findings: list[Finding]
    partition: Prepared
    set_aside: Prepared | None = None


def _divide_all(
    spec: TableSpec, partitions: Mapping[str, Prepared], referred: ReferredTables
) -> dict[str, _Divided]:
    """Check the contract; set bad rows aside where the table allows it and they are few."""

    def check(some: Mapping[str, Prepared]):
        is_partitioned = spec.cadence.kind != "none"
        return broken_rules(
            {key: one.frame for key, one in some.items()},
            spec.contract,
            bounds={key: spec.cadence.bounds(key) for key in some} if is_partitioned else None,
            referred=referred,
        )

    divided: dict[str, _Divided] = {}
    for key, broken in check(partitions).items():
        one, findings = partitions[key], [each.finding for each in broken]
        limit, division = spec.quarantine_limit, None
        if limit is not None:
            division = divide(one.frame, spec.contract, broken)
        if limit is None or division is None:
            divided[key] = _Divided(findings, one)
        elif division.bad > limit * one.frame.height:
            divided[key] = _Divided(
                [over_limit_finding(division.bad, one.frame.height, limit), *findings], one
            )
        else:
            bad, rows = division.bad, one.frame.height
            divided[key] = _Divided(
                set_aside_findings(findings, bad, rows, limit, spec.table, key),
                with_rows(spec, one, one.frame.filter(pl.Series(division.keep))),
                with_rows(spec, one, division.bad_rows(one.frame), table=layout.quarantine_of(spec.table)),
            )
    # A rule may compare rows with each other, so what is left is checked once more.
    rests = {key: one.partition for key, one in divided.items() if one.set_aside}
    for key, broken in (check(rests) if rests else {}).items():
        findings = [one.finding for one in broken]
        if _blocks(findings):
            divided[key] = _Divided(findings, partitions[key])
    return divided


def _reconciled(spec: TableSpec, one: _Divided, rows_of_table: int) -> _Divided:
    """Count the rows in quarantine, those without a time included; compare the sum with what the source returned."""
    partition = with_quarantined(one.partition, one.set_aside.frame.height if one.set_aside else 0)
    findings, undated = list(one.findings), partition.undated
    if undated is not None and undated.frame.height:
        limit = spec.quarantine_limit
        found = undated_finding(
            undated.frame,
            spec.contract,
            undated.column,
            spec.table,
            most=MOST_UNDATED,
            share=None if limit is None else Share(limit, rows_of_table),
        )
        findings.insert(0, found)
        partition = partition if found.blocks else with_quarantined(partition, undated.frame.height)
    counts, landed = partition.manifest.reconciliation, partition.frame.height
    if counts is not None and counts.missing(landed) and not _blocks(findings):
        findings.append(unreconciled_finding(counts.returned, landed, counts.quarantined, counts.repeated))
    return replace(one, findings=findings, partition=partition)


def _blocks(findings: Sequence[Finding]) -> bool:
    return any(finding.blocks for finding in findings)
