"""Return of rows that a publish kept from main: a person accepts a rejected partition, or readmits quarantined rows.

Acceptance merges the evidence branch of the partition unchanged, and the ledger records who accepted it and why.
Readmission validates quarantined rows again, with the rows on main, and publishes what passes now.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from ml_assets.data.tables import layout
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.publish.audit import validate
from ml_assets.data.tables.publish.prepare import StoredPartition, prepare_chunks
from ml_assets.data.tables.publish.publish import CommitFacts, PublishResult, land, publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.explain import shown
from ml_assets.data.validation.quarantine import COLUMN, REASON, RULE, reasons_of, without_reasons
from ml_assets.data.validation.verdict import Verdict
from resources.lake import RefNotFound, VersionedStore
from resources.ledger import Acceptance, Ledger, NothingToAccept, Person, VerdictRow
from resources.words import counted, name_some


class EvidenceGone(Exception):
    """The evidence branch of a rejected partition is gone, or holds other content by now."""


class _Overtaken(Exception):
    """Another verdict or another acceptance came first."""


def accept_partition(
    store: VersionedStore,
    ledger: Ledger,
    table: str,
    key: str,
    by: Person,
    reason: str,
) -> Acceptance:
    """Merge the content that the newest verdict on a partition rejected into main, unchanged.

    Look-up, merge and record happen within one turn of the table, so no publish comes in between. A repeated call
    changes nothing more, even after a kill in the middle. Raises `NothingToAccept` if the newest verdict is not
    a rejection, if another verdict came meanwhile (an acceptance covers one verdict), or if `reason` is empty. Raises
    `EvidenceGone` if the rejected content was not kept, and `IdentityNeeded` if the ledger has accounts and `by`
    acts for none in force.
    """
    ledger.accounts.require_identity(by)  # before main changes

    def accept(number: int) -> Acceptance:
        return ledger.accept(table, key, number, by=by, reason=reason)

    row = ledger.newest_verdicts(table, [key]).get(key)
    if row is None or not row.blocks or not reason.strip():
        return accept(row.number if row else 0)
    try:
        [acceptance] = _accept(store, ledger, [row], lambda one: accept(one.number), by, reason)
    except _Overtaken:
        return accept(row.number)
    return acceptance


def accept_level(
    store: VersionedStore,
    ledger: Ledger,
    table: str,
    first: str,
    last: str,
    by: Person,
    reason: str,
) -> list[Acceptance]:
    """Accept the rejected partitions `first`..`last` as a new level of the number of rows, merged at once.

    The volume rule compares later partitions with this level (`validation.volume`). A repeated call changes nothing
    more and accepts what a kill left out. Raises `NothingToAccept` if none of them is rejected, or if another rule
    rejects one, and the errors of `accept_partition`.
    """
    ledger.accounts.require_identity(by)  # before main changes
    rows = {
        key: row
        for key, row in ledger.rejections(table).items()
        if first <= key <= last and ("T" in key) == ("T" in first)
    }
    other = [key for key, row in rows.items() if not Verdict.from_json(row.body_json).is_volume_alone]
    if other:
        raise NothingToAccept(
            f"{table} {name_some(other)}: other rules than the number of rows reject these partitions of the level: "
            "fix their source and materialize them again, or accept each by itself first"
        )
    if not rows:
        raise NothingToAccept(f"{table} has no rejected partition from {first} to {last}: nothing to accept")
    if not reason.strip():
        raise NothingToAccept(f"accepting {table} {first}..{last} needs a reason for the log")

    def accept(row: VerdictRow) -> Acceptance:
        return ledger.accept(table, row.key, row.number, by=by, reason=reason, level=f"{first}..{last}")

    try:
        return _accept(store, ledger, list(rows.values()), accept, by, reason)
    except _Overtaken:
        raise NothingToAccept(
            f"{table} has newer verdicts on partitions from {first} to {last} by now: look at their findings, then "
            "accept the level again"
        ) from None


def _accept(
    store: VersionedStore,
    ledger: Ledger,
    rows: Sequence[VerdictRow],
    accept: Callable[[VerdictRow], Acceptance],
    by: Person,
    reason: str,
) -> list[Acceptance]:
    """Merge the contents of rejections of one table and record their acceptances by `accept`. Raises `_Overtaken`."""
    table, keys = rows[0].table, [row.key for row in rows]
    metadata = {
        "table": table,
        "keys": ",".join(keys),
        "run_id": rows[-1].run_id,
        "audit": "accepted",
        "accepted_by": by.name,
        "reason": reason,
        "rules_digest": rows[-1].contract_digest,
    }

    def facts(_: Sequence[str]) -> CommitFacts:
        return CommitFacts(f"Accept {table} {name_some(keys, 3)}", metadata)

    def begin() -> None:
        if ledger.newest_verdicts(table, keys) != {row.key: row for row in rows}:
            raise _Overtaken

    accepted: list[Acceptance] = []

    def record() -> None:
        # After the merge, because the ledger must not record an acceptance of content that main lacks.
        accepted.extend(map(accept, rows))

    partitions = [
        one for row in rows for one in _evidence(store, table, row.key, row.branch, row.content_digest)
    ]
    land(store, ledger, table, partitions, rows[-1].run_id, facts, begin=begin, record=record)
    return accepted


def _evidence(store: VersionedStore, table: str, key: str, branch: str, digest: str) -> list[StoredPartition]:
    """Return the rejected partition and the rows that were set aside from it, which may be none."""
    try:
        reader = TableReader.at(store, branch)
    except RefNotFound as error:
        raise EvidenceGone(
            f"branch {branch} with the rejected {table} {key} is gone: materialize it again, then accept it"
        ) from error
    if reader.digests(table).get(key) != digest:
        raise EvidenceGone(
            f"branch {branch} no longer holds the rejected content of {table} {key}: materialize {key} again"
        )
    found: list[StoredPartition] = []
    for name in filter(None, (table, layout.quarantine_of(table))):
        hashes = reader.object_hashes(name, key)
        found.append(StoredPartition(name, key, store.fetch(reader.commit_id, list(hashes)), hashes))
    return found


class NotReadmitted(Exception):
    """Quarantined rows cannot return. The message says why, and what to do."""


def quarantined_keys(reader: TableReader, table: str) -> list[str]:
    """Return the partitions of `table` with quarantined rows, sorted; none for tables that set no rows aside."""
    name = layout.quarantine_of(table)
    return reader.keys(name) if name else []


def quarantined_rules(reader: TableReader, table: str, key: str) -> tuple[int, dict[str, int]]:
    """Return the number of quarantined rows of a partition, and rule → rows by the first rule that each breaks."""
    manifest = reader.manifest(layout.quarantine_of(table) or table, key)
    return manifest.rows, reasons_of(manifest.profile)


def shown_rows(reader: TableReader, spec: TableSpec, key: str, rows: int) -> pl.DataFrame:
    """Return the first quarantined rows for people: reasons first, values of sensitive columns hidden."""
    first = quarantined_rows(reader, spec.table, key).head(rows)
    hidden = [shown(first[name], spec.contract) for name in first.columns if spec.hides(name)]
    return first.with_columns(hidden).select(RULE, COLUMN, REASON, pl.exclude(RULE, COLUMN, REASON))


def quarantined_rows(reader: TableReader, table: str, key: str) -> pl.DataFrame:
    """Return the quarantined rows of a partition, with the columns of `validation.quarantine`.

    Raises `NotReadmitted` if there are none.
    """
    name = layout.quarantine_of(table)
    if name is None or key not in reader.keys(name):
        raise NotReadmitted(
            f"{table} {key} has no quarantined rows: `ml-assets quarantine list` shows those that are"
        )
    return reader.scan(name, [key]).collect()


def readmit(
    store: VersionedStore,
    ledger: Ledger,
    spec: TableSpec,
    key: str,
    by: Person,
    tables: DeclaredTables,
) -> PublishResult:
    """Validate the rows on main and the quarantined ones together by today's rules, and publish the result.

    `tables` are today's declarations, for foreign keys. Rows that still break a rule stay in quarantine. A second call
    changes nothing. Raises `NotReadmitted`, and leaves everything as it is, if there are no quarantined rows, if the
    partition would be rejected, if its newest verdict is a rejection, if an acceptance left out rows of its source, or
    if the code that made the rows changed since.
    Raises `IdentityNeeded` if the ledger has accounts and `by` acts for none in force.
    """
    ledger.accounts.require_identity(by)
    if key == layout.UNDATED:
        raise NotReadmitted(
            f"the rows without a time of {spec.table} belong to no partition: fill their time at the source, and "
            "materialize the partitions to which they belong"
        )
    reader = TableReader.at(store)
    bad = without_reasons(quarantined_rows(reader, spec.table, key))
    newest = ledger.newest_verdicts(spec.table, [key])
    if key in newest and newest[key].blocks:
        raise NotReadmitted(
            f"the newest verdict on {spec.table} {key} is a rejection of other rows: fix its source and materialize "
            "it again, which validates all its rows"
        )
    manifest = reader.manifest(spec.table, key)
    if manifest.code_version != spec.code_version:
        raise NotReadmitted(
            f"{spec.table} {key} was made by code {manifest.code_version or 'unknown'} and would be made by "
            f"{spec.code_version} now: materialize it again, which validates all its rows"
        )
    reconciliation = manifest.reconciliation
    if reconciliation is not None and (left_out := reconciliation.missing(manifest.rows)):
        raise NotReadmitted(
            f"{spec.table} {key} was accepted without {counted(left_out, 'row')} of its source: materialize it again, "
            "which validates all its rows; then accept it again, if it is rejected"
        )
    good = reader.scan(spec.table, [key]).collect()
    incoming = Incoming(
        key=key,
        data=pl.concat([good, bad.select(good.columns)]),
        inputs=manifest.inputs,
        read_columns=manifest.read_columns,
        read_digests=manifest.read_digests,
        behind=manifest.behind,
        reconciliation=reconciliation
        and replace(reconciliation, quarantined=reconciliation.quarantined - bad.height),
        version=manifest.source_version,
        watermark=manifest.watermark,
    )
    [chunk] = prepare_chunks(spec, [incoming])
    verdicts = [one.verdict for one in validate(ledger, spec, chunk.ready, newest, reader, tables).values()]
    refused = [*chunk.failed.values(), *(verdict.explain() for verdict in verdicts if verdict.blocks)]
    if refused:
        raise NotReadmitted(
            f"{spec.table} {key} stays as it is, because its rows would be rejected together with those in "
            f"quarantine: {name_some(refused)}"
        )
    run = PublishingRun(run_id="readmit", author=by.name)
    return publish(store, ledger, spec, [incoming], run, tables)
