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
Not here: the verdicts (`audit`), acceptance of a rejected partition (`accept.py`).
"""

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ml_assets.data.tables import layout
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.publish.audit import Validated, validate, verdict_of
from ml_assets.data.tables.publish.landing import (
    CommitFacts,
    Landed,
    StoredPartition,
    land,
    new_branch,
    write,
)
from ml_assets.data.tables.publish.prepare import (
    Prepared,
    prepare_chunks,
    undated_partition,
)
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.quarantine import (
    with_reason_undated,
)
from ml_assets.data.validation.table_drift import TableDrift
from ml_assets.data.validation.verdict import Verdict
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


def published_by(
    runs: Collection[str],
    reader: TableReader,
    ledger: Ledger,
    spec: TableSpec,
    keys: Sequence[str],
    inputs: Sequence[InputTable] = (),
) -> Mapping[str, PublishedPartition]:
    """Return key → partition of `keys` that one of `runs` published, and that would be the same now.

    Main must hold what that run published, made by today's code and rules. A partition of a derived table must also
    have been built from what main now holds of `inputs`. Raises `ManifestUnreadable`.
    """
    if not runs:  # the first try, which is the usual case, asks neither lake nor ledger
        return {}
    digests = reader.digests(spec.table)
    rows = {
        key: row
        for key, row in ledger.newest_verdicts(spec.table, keys).items()
        if row.run_id in runs
        and row.status in ("passed", "warned")
        and row.contract_digest == spec.rules_digest
        and row.content_digest == digests.get(key)
    }
    found: dict[str, PublishedPartition] = {}
    for key, manifest in reader.manifests(spec.table, sorted(rows)).items():
        needed = {
            one.table: one.as_known(reader, ledger, key).input_digests(one.table, one.needed_for(key))
            for one in inputs
        }
        if manifest.code_version == spec.code_version and manifest.inputs == needed:
            found[key] = PublishedPartition(
                content_digest=manifest.content_digest,
                rows=manifest.rows,
                size=manifest.size,
                changed=False,
                verdict=verdict_of(rows[key]),
            )
    return found
