"""A person accepts a rejected partition: its kept evidence is merged, and the ledger says who and why."""

from collections.abc import Sequence

from ml_assets.tables.landing import CommitFacts, StoredPartition, land
from ml_assets.tables.reader import TableReader
from resources.lake import RefNotFound, VersionedStore
from resources.ledger import Acceptance, Ledger


class EvidenceGone(Exception):
    """The branch that held a rejected partition no longer does."""


class _Overtaken(Exception):
    """Another attempt, or another person's word, came first."""


def accept_partition(
    store: VersionedStore, ledger: Ledger, table: str, key: str, author: str, reason: str
) -> Acceptance:
    """Bring the newest, rejected attempt at a partition to main as it is.

    Look-up, merge and record are one step for everybody who publishes to the table. Repeating it, also after a
    kill in the middle, changes nothing more. Raises `NothingToAccept` if the newest attempt was not rejected, if
    another one came meanwhile (a word is for one attempt), or if `reason` is empty; `EvidenceGone` if its
    content is not kept.
    """
    row = ledger.newest_verdicts(table, [key]).get(key)
    if row is None or not row.blocks or not reason.strip():
        return ledger.accept(table, key, row.attempt if row else 0, author, reason)
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
        # After the merge: the ledger must not call accepted what main does not hold.
        accepted.append(ledger.accept(table, key, row.attempt, author, reason))

    try:
        partition = _evidence(store, table, key, row.branch, row.content_digest)
        land(store, ledger, table, [partition], row.run_id, facts, begin=begin, record=record)
    except _Overtaken:
        return ledger.accept(table, key, row.attempt, author, reason)
    return accepted[0]


def _evidence(store: VersionedStore, table: str, key: str, branch: str, digest: str) -> StoredPartition:
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
    hashes = reader.object_hashes(table, key)
    return StoredPartition(table, key, store.fetch(reader.commit_id, list(hashes)), hashes)
