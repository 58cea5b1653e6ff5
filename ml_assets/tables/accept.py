"""Acceptance of a rejected partition: merge its evidence branch and record in the ledger who accepted it and why."""

from collections.abc import Sequence

from ml_assets.tables import layout
from ml_assets.tables.landing import CommitFacts, StoredPartition, land
from ml_assets.tables.reader import TableReader
from resources.lake import RefNotFound, VersionedStore
from resources.ledger import Acceptance, CheckedBy, Ledger, Person


class EvidenceGone(Exception):
    """The evidence branch of a rejected partition is gone, or holds other content by now."""


class _Overtaken(Exception):
    """Another verdict or another acceptance came first."""


def accept_partition(
    store: VersionedStore,
    ledger: Ledger,
    table: str,
    key: str,
    author: str,
    reason: str,
    *,
    checked_by: CheckedBy = "nobody",
) -> Acceptance:
    """Merge the content that the newest verdict on a partition rejected into main, unchanged.

    Look-up, merge and record happen within one turn of the table, so no publish comes in between. A repeated call
    changes nothing more, even after a kill in the middle. Raises `NothingToAccept` if the newest verdict is not
    a rejection, if another verdict came meanwhile (an acceptance covers one verdict), or if `reason` is empty. Raises
    `EvidenceGone` if the rejected content was not kept, and `IdentityNeeded` if the ledger has accounts and nobody
    checked the author.
    """
    ledger.accounts.require_identity(Person(name=author, checked_by=checked_by))  # before main changes

    def accept(number: int) -> Acceptance:
        return ledger.accept(table, key, number, author, reason, checked_by=checked_by)

    row = ledger.newest_verdicts(table, [key]).get(key)
    if row is None or not row.blocks or not reason.strip():
        return accept(row.number if row else 0)
    metadata = {
        "table": table,
        "keys": key,
        "run_id": row.run_id,
        "audit": "accepted",
        "accepted_by": author,
        "reason": reason,
        "rules_digest": row.contract_digest,
    }

    def facts(_: Sequence[str]) -> CommitFacts:
        return CommitFacts(f"Accept {table} {key}", metadata)

    def begin() -> None:
        if ledger.newest_verdicts(table, [key]).get(key) != row:
            raise _Overtaken

    accepted: list[Acceptance] = []

    def record() -> None:
        # After the merge, because the ledger must not record an acceptance of content that main lacks.
        accepted.append(accept(row.number))

    try:
        partitions = _evidence(store, table, key, row.branch, row.content_digest)
        land(store, ledger, table, partitions, row.run_id, facts, begin=begin, record=record)
    except _Overtaken:
        return accept(row.number)
    return accepted[0]


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
