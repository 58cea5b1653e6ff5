"""Write–audit–publish: validate every partition of a call and merge the good ones into `main` in one merge.

The order of the steps makes a kill at any moment harmless:

Rows that a table sets aside (`quarantine_limit`) are a partition of its quarantine table, which lands together with the
good rows: one branch, one merge.

1. commit rejected partitions to their own audit branch, which stays as evidence;
2. commit good partitions to another audit branch;
3. record the rejections in the ledger, so that consumers refuse them even if main holds an older version;
4. merge the good partitions;
5. record in the ledger that they passed, and delete their branch.

Steps 3 to 5 are one turn of the table: no other publish and no acceptance comes in between. Two processes may land in
any order: main always holds the content of the newest verdict in the ledger. A rerun finds equal content on main or in
the ledger and does only the missing steps. A dead run leaves a branch that nobody merges. Not here: the verdicts
(`audit`), the rows that a correction replaces (`earlier`), acceptance of a rejected partition (`rejected`), which lands
by `land`, too.
"""

import contextlib
import math
import random
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ml_assets.data.tables import layout
from ml_assets.data.tables.declared import DeclaredTables, InputTable
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.publish.audit import (
    Validated,
    is_recorded,
    new_row_of,
    says,
    undated_place,
    validate,
    verdict_of,
)
from ml_assets.data.tables.publish.earlier import keep_earlier, moment_of_change, put_changes
from ml_assets.data.tables.publish.prepare import MadePartition, Prepared, StoredPartition, prepare_chunks
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.table_drift import TableDrift
from ml_assets.data.validation.verdict import Verdict
from resources.lake import LakeBusy, LakeError, MergeConflict, VersionedStore
from resources.ledger import Ledger, NewVerdict, VerdictRow
from resources.threads import side_by_side
from resources.words import name_some

TRIES = 8
"""Merges to try before raising the error. After each lost race, the next try starts from the new head."""


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


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """Metadata of a commit."""

    message: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Landed:
    """Main after a landing."""

    commit_id: str
    """Commit of main that holds every partition."""
    before: TableReader
    """Main before the landing."""


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
    incoming: Iterable[Incoming | MadePartition],
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
        news = [rows[key] for key in keys if not is_recorded(now.get(key), rows[key])]
        if news:
            ledger.record_verdicts(news)

    def begin() -> None:
        accepted = [key for key, verdict in verdicts.items() if verdict.status == "accepted"]
        if accepted and ledger.newest_verdicts(spec.table, accepted) != {k: newest[k] for k in accepted}:
            raise _Overtaken
        record([key for key in rows if key not in good])

    stored = [each for one in good.values() for each in one.stored]
    stored += undated_place(spec, good)
    return land(
        store, ledger, spec.table, stored, run.run_id, facts, begin=begin, record=lambda: record(list(good))
    )


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
        if says(newest.get(key), one.verdict) and newest[key].branch in existing
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


def land(
    store: VersionedStore,
    ledger: Ledger,
    table: str,
    partitions: Sequence[StoredPartition],
    run_id: str,
    facts: Callable[[Sequence[str]], CommitFacts],
    *,
    begin: Callable[[], None],
    record: Callable[[], None],
) -> Landed:
    """Merge partitions of `table` into main in one merge and record their verdicts in the ledger.

    Partitions whose content main already holds are left out. If none is left, main does not change. `facts` is called
    with the keys that change. The table's turn covers `begin` (which may raise to end the landing), the merge and
    `record`. Objects are uploaded before the turn. If another process changed these partitions meanwhile, they are
    uploaded again within the turn, so the later merge wins. What a partition with `final_from` in its manifest
    replaces is kept as an earlier version. Raises `MergeConflict` or `LakeBusy` after `TRIES`
    lost races, which only writers that take no turns can cause.
    """

    def try_once(*, alone: bool) -> Landed | None:
        with contextlib.ExitStack() as stack:
            if alone:
                stack.enter_context(ledger.turn(table))
            base = TableReader.at(store, MAIN)
            news = [p for p in partitions if base.object_hashes(p.table, p.key) != p.hashes]
            staged = stack.enter_context(_staged(store, ledger, table, base, news, run_id, facts))
            if not alone:
                stack.enter_context(ledger.turn(table))
                if _has_changed(store, base, table, partitions):
                    return None
            begin()
            commit_id = staged.merge() if staged else base.commit_id
            record()
            return Landed(commit_id, base)

    for number in range(1, TRIES + 1):
        try:
            landed = try_once(alone=number > 1)
        except (MergeConflict, LakeBusy):
            if number == TRIES:
                raise
            landed = None
        if landed is not None:
            return landed
        time.sleep(random.uniform(0.5, 1.5) * 0.05 * 2 ** min(number, 5))
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class _Staged:
    """Branch with committed partitions that wait for the merge."""

    store: VersionedStore
    branch: str
    facts: CommitFacts

    def merge(self) -> str:
        return self.store.merge(self.branch, MAIN, self.facts.message, self.facts.metadata)


@contextlib.contextmanager
def _staged(
    store: VersionedStore,
    ledger: Ledger,
    table: str,
    base: TableReader,
    news: Sequence[StoredPartition],
    run_id: str,
    facts: Callable[[Sequence[str]], CommitFacts],
) -> Generator[_Staged | None]:
    """Commit `news` to a branch and delete the branch after the block; yield None if `news` is empty."""
    if not news:
        yield None
        return
    said = facts([one.key for one in news])
    branch = new_branch(store, base, news[0], run_id)
    try:
        write(store, branch, base, news)
        # One moment for all: a reader sees all changes of a landing or none.
        moment = moment_of_change(base, ledger, table, datetime.now(UTC))
        changes = [keep_earlier(base, one.table, one.key, one.objects, moment) for one in news]
        put_changes(store, branch, changes)
        store.commit(branch, said.message, said.metadata)
        yield _Staged(store, branch, said)
    finally:
        # A branch that stays costs nothing; an error here would hide the error above.
        with contextlib.suppress(LakeError):
            store.delete_branch(branch)


def _has_changed(
    store: VersionedStore, base: TableReader, table: str, partitions: Sequence[StoredPartition]
) -> bool:
    """True if main now holds other content of these partitions than `base`, or a newer correction of `table`."""
    now = TableReader.at(store, MAIN)
    return now.commit_id != base.commit_id and (
        now.earlier(table) != base.earlier(table)
        or any(
            now.object_hashes(one.table, one.key) != base.object_hashes(one.table, one.key)
            for one in partitions
        )
    )


def new_branch(store: VersionedStore, base: TableReader, first: StoredPartition, run_id: str) -> str:
    """Create an audit branch from `base` for this try alone; return its name."""
    name = layout.audit_branch(first.table, first.key, run_id)
    store.create_branch(name, base.commit_id)
    return name


def write(
    store: VersionedStore, branch: str, base: TableReader, partitions: Sequence[StoredPartition]
) -> None:
    """Write partitions to a branch made from `base`; remove files that only their older versions had."""
    objects = [item for one in partitions for item in one.objects.items()]
    side_by_side(lambda item: store.put(branch, *item), objects)
    older = [
        path
        for one in partitions
        for path in base.object_hashes(one.table, one.key).keys() - one.objects.keys()
    ]
    side_by_side(lambda path: store.remove(branch, path), older)
