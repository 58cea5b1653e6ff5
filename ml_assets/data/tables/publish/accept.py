"""Acceptance of a rejected partition: merge its evidence branch and record in the ledger who accepted it and why."""

from collections.abc import Callable, Sequence

from ml_assets.data.tables import layout
from ml_assets.data.tables.publish.prepare import StoredPartition
from ml_assets.data.tables.publish.publish import CommitFacts, land
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.validation.verdict import Verdict
from resources.lake import RefNotFound, VersionedStore
from resources.ledger import Acceptance, Ledger, NothingToAccept, Person, VerdictRow
from resources.words import name_some


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
