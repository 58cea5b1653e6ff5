"""Checks of the lake against its audits: the history of `main`, and the rejections in the ledger.

The server's audit hook refuses an unaudited merge. But lakeFS reads the hook from the source branch of the merge, and
that branch may lack it. The history shows every merge. Not here: validation (`publish.py`) and the metadata
(`publish.py`, `accept.py`).
"""

from dataclasses import dataclass

from ml_assets.data.tables import layout
from ml_assets.data.tables.landing import MAIN
from ml_assets.data.tables.reader import TableReader
from resources.lake import Commit, VersionedStore
from resources.ledger import Ledger


def unaudited(store: VersionedStore, newest: int) -> list[Commit]:
    """Return the commits among main's `newest` that no audit passed and no person accepted, newest first.

    The first commit of a repository is empty and needs no audit.
    """
    log = store.log(MAIN, limit=newest)
    return [commit for commit in log if commit.parents and not _is_audited(commit)]


def _is_audited(commit: Commit) -> bool:
    facts = commit.metadata
    if facts.get("audit") == "accepted":
        return bool(facts.get("accepted_by") and facts.get("reason"))
    return facts.get("audit") == "passed"


@dataclass(frozen=True, kw_only=True)
class UnknownRejection:
    """Rejected partitions in the lake that the ledger does not know, so that nothing refuses their older rows."""

    table: str
    keys: tuple[str, ...]
    branch: str
    """Branch of the rejected rows."""


def unknown_rejections(store: VersionedStore, ledger: Ledger) -> list[UnknownRejection]:
    """Return the rejections in the lake whose rows the ledger has no verdict on, sorted by branch.

    Someone restored an older copy of the ledger, published to this lake with another ledger, or killed a run between
    its branch and its verdict.
    """
    found: list[UnknownRejection] = []
    for branch, head in sorted(store.branches(layout.AUDIT).items()):
        facts = store.read_commit(head).metadata
        if facts.get("audit") != "rejected":
            continue
        table, digests = facts["table"], TableReader(store, head).digests(facts["table"])
        rows = [(key, digests[key]) for key in facts["keys"].split(",") if key in digests]
        known = ledger.verdicts_of(table, rows)
        if unknown := tuple(key for key, digest in rows if (key, digest) not in known):
            found.append(UnknownRejection(table=table, keys=unknown, branch=branch))
    return found
