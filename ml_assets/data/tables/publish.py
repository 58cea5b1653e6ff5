"""Write–audit–publish: validate every partition of a call and merge the good ones into `main` in one merge.

The order of the steps makes a kill at any moment harmless:

Rows that a table sets aside (`quarantine_limit`) are a partition of its quarantine table, which lands together with the
good rows: one branch, one merge.

1. commit rejected partitions to their own audit branch, which stays as evidence;
2. commit good partitions to another audit branch;
3. record the rejections in the ledger, so that consumers refuse them even if main holds an older version;
4. merge the good partitions;
5. record in the ledger that they passed, and delete their branch.

Steps 3 to 5 are one turn of the table: no other publish and no acceptance comes in between. A rerun finds equal
content on main or in the ledger and does only the missing steps. A dead run leaves a branch that nobody merges.
Not here: the rules of validation (`ml_assets.data.validation`), acceptance of a rejected partition (`accept.py`).
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from ml_assets.data.tables import layout
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.landing import (
    MAIN,
    CommitFacts,
    Landed,
    StoredPartition,
    land,
    new_branch,
    write,
)
from ml_assets.data.tables.past_profiles import drift_of_partitions
from ml_assets.data.tables.prepare import (
    Prepared,
    prepare_chunks,
    undated_digest,
    undated_partition,
    with_quarantined,
    with_rows,
)
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.referred import ReferredTables
from ml_assets.data.tables.spec import MOST_UNDATED, Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.check import broken_rules
from ml_assets.data.validation.quarantine import (
    Share,
    divide,
    over_limit_finding,
    set_aside_findings,
    undated_finding,
    unreconciled_finding,
    with_reason_undated,
)
from ml_assets.data.validation.table_drift import TableDrift
from ml_assets.data.validation.verdict import Finding, Verdict
from ml_assets.data.validation.volume import VolumePast, volume_findings
from resources.lake import VersionedStore
from resources.ledger import Ledger, NewVerdict, VerdictRow
from resources.words import name_some


@dataclass(frozen=True, kw_only=True)
class PublishedPartition:
    """A partition whose content is on main."""

    content_digest: str
    """Data version of the partition."""
    rows: int
    size: int
    """Bytes of its data files."""
    changed: bool
    """True if main held other content of this partition before, or none."""
    verdict: Verdict
    drift: TableDrift | None = None
    """Distances from earlier partitions, if this call compared it with them."""


@dataclass(frozen=True, kw_only=True)
class RejectedPartition:
    """A partition that was kept from main."""

    verdict: Verdict
    """Verdict with its findings: `verdict.explain()`, or `findings.table_rows(key, verdict.findings)`."""
    branch: str
    """Branch of the rejected content."""


@dataclass(frozen=True, kw_only=True)
class PublishResult:
    """Outcome of every partition of one call; keys are sorted."""

    merged: Mapping[str, PublishedPartition]
    rejected: Mapping[str, RejectedPartition]
    failed: Mapping[str, str]
    """Key → reason why the partition has no rows. Main and ledger do not change for it."""
    commit_id: str
    """Commit of main that holds everything in `merged`."""


def publish(
    store: VersionedStore,
    ledger: Ledger,
    spec: TableSpec,
    incoming: Iterable[Incoming],
    run: PublishingRun,
    tables: DeclaredTables,
) -> PublishResult:
    """Validate the partitions of `incoming` and merge the good ones into main, all or none of them.

    `tables` are today's declarations, by which the guard decides if a foreign key may look into a partition.
    Reads `incoming` once, one partition at a time, and holds all frames until they are validated. Publishing content
    that main already holds changes nothing. If another run changed a partition meanwhile, the later merge wins. Raises
    `LakeBusy` or `MergeConflict` after `TRIES` lost races, `KeyRefused` for a key that the table cannot have and
    `KeyTwice` for a repeated key. Bad data never raises.
    """
    [result] = publish_in_chunks(store, ledger, spec, incoming, run, tables, chunk_bytes=math.inf)
    return result


def publish_in_chunks(
    store: VersionedStore,
    ledger: Ledger,
    spec: TableSpec,
    incoming: Iterable[Incoming],
    run: PublishingRun,
    tables: DeclaredTables,
    chunk_bytes: float,
) -> Iterator[PublishResult]:
    """Publish chunks of `incoming` one after the other, as `publish` does, so that memory does not grow with the range.

    A chunk ends when its frames and files need `chunk_bytes`. After a kill, the chunks before are on main.
    """
    for chunk in prepare_chunks(spec, incoming, chunk_bytes):
        result = _publish(store, ledger, spec, chunk.ready, chunk.failed, run, tables)
        del chunk  # or its frames would stay in memory while the next chunk is read
        yield result


def _publish(
    store: VersionedStore,
    ledger: Ledger,
    spec: TableSpec,
    partitions: Mapping[str, Prepared],
    failed: Mapping[str, str],
    run: PublishingRun,
    tables: DeclaredTables,
) -> PublishResult:
    branches: dict[str, str] = {}
    while True:
        newest = ledger.newest_verdicts(spec.table, partitions)
        validated = validate(ledger, spec, partitions, newest, TableReader.at(store, MAIN), tables)
        verdicts = {key: one.verdict for key, one in validated.items()}
        bad = {key: one for key, one in validated.items() if one.verdict.blocks}
        good = {key: one for key, one in validated.items() if key not in bad}
        lacking = {key: one for key, one in bad.items() if key not in branches}
        branches |= _keep_evidence(store, spec, lacking, newest, run)
        rows = {key: new_row_of(verdicts[key], run.run_id, branches[key]) for key in bad}
        rows |= {key: new_row_of(verdicts[key], run.run_id, MAIN) for key in good}
        with contextlib.suppress(_Overtaken):
            landed = _land(store, ledger, spec, good, verdicts, newest, rows, run)
            break
    before = landed.before.digests(spec.table)
    return PublishResult(
        merged={
            key: PublishedPartition(
                content_digest=one.partition.digest,
                rows=one.partition.manifest.rows,
                size=one.partition.manifest.size,
                changed=before.get(key) != one.partition.digest,
                verdict=one.verdict,
                drift=one.drift,
            )
            for key, one in good.items()
        },
        rejected={key: RejectedPartition(verdict=verdicts[key], branch=branches[key]) for key in bad},
        failed=failed,
        commit_id=landed.commit_id,
    )


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
        monthly=spec.cadence.kind == "monthly",
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


def _says(row: VerdictRow | None, verdict: Verdict | NewVerdict) -> bool:
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


class _Overtaken(Exception):
    """A newer verdict came after the acceptance on which a verdict relies."""


def _land(
    store: VersionedStore,
    ledger: Ledger,
    spec: TableSpec,
    good: Mapping[str, Validated],
    verdicts: Mapping[str, Verdict],
    newest: Mapping[str, VerdictRow],
    rows: Mapping[str, NewVerdict],
    run: PublishingRun,
) -> Landed:
    """Merge `good` and record every verdict that the ledger lacks. Raises `_Overtaken`."""

    def facts(keys: Sequence[str]) -> CommitFacts:
        return _commit_facts("Publish", spec, list(dict.fromkeys(keys)), run, "passed")

    def record(keys: Sequence[str]) -> None:
        now = ledger.newest_verdicts(spec.table, keys)
        news = [rows[key] for key in keys if not _is_recorded(now.get(key), rows[key])]
        if news:
            ledger.record_verdicts(news)

    def begin() -> None:
        accepted = [key for key, verdict in verdicts.items() if verdict.status == "accepted"]
        if accepted and ledger.newest_verdicts(spec.table, accepted) != {k: newest[k] for k in accepted}:
            raise _Overtaken
        record([key for key in rows if key not in good])

    stored = [each for one in good.values() for each in one.stored]
    stored += _undated_place(spec, good)
    return land(
        store, ledger, spec.table, stored, run.run_id, facts, begin=begin, record=lambda: record(list(good))
    )


def _undated_place(spec: TableSpec, good: Mapping[str, Validated]) -> list[StoredPartition]:
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


def _is_recorded(row: VerdictRow | None, new: NewVerdict) -> bool:
    """True if the newest verdict has the same content and status and, if rejected, the same evidence branch."""
    return _says(row, new) and row is not None and (new.status != "rejected" or row.branch == new.branch)


def _keep_evidence(
    store: VersionedStore,
    spec: TableSpec,
    bad: Mapping[str, Validated],
    newest: Mapping[str, VerdictRow],
    run: PublishingRun,
) -> dict[str, str]:
    """Commit rejected partitions to a branch that is never merged; return key → its evidence branch.

    If the newest verdict rejected equal content by the same rules, its branch is used again.
    """
    existing = store.branches(layout.AUDIT) if bad else {}
    kept = {
        key: newest[key].branch
        for key, one in bad.items()
        if _says(newest.get(key), one.verdict) and newest[key].branch in existing
    }
    fresh = [one for key, one in bad.items() if key not in kept]
    if not fresh:
        return kept
    base = TableReader.at(store, MAIN)
    branch = new_branch(store, base, fresh[0].partition.stored, run.run_id)
    write(store, branch, base, [each for one in fresh for each in one.stored])
    facts = _commit_facts("Reject", spec, [one.verdict.key for one in fresh], run, "rejected")
    store.commit(branch, facts.message, facts.metadata)
    return kept | {one.verdict.key: branch for one in fresh}


def _commit_facts(
    verb: str, spec: TableSpec, keys: Sequence[str], run: PublishingRun, audit: str
) -> CommitFacts:
    metadata = {
        "table": spec.table,
        "keys": ",".join(keys),
        "run_id": run.run_id,
        "audit": audit,
        "rules_digest": spec.rules_digest,
        "code_version": spec.code_version,
    }
    if run.author:
        metadata["author"] = run.author
    if run.url:
        # lakeFS's pages show an entry of this name as a button.
        metadata["::lakefs::Dagster::url[url:ui]"] = run.url
    return CommitFacts(f"{verb} {spec.table} {name_some(keys, 3)}", metadata)
