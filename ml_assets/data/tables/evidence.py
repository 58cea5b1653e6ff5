"""Audit branches that nobody needs: evidence that a newer verdict replaced, and what killed runs left.

A branch is needed while the newest verdict on one of its partitions is a rejection that names it, because
`ml-assets accept` merges it. A
young branch may belong to a run in progress.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from ml_assets.data.tables import layout
from ml_assets.data.tables.landing import MAIN
from resources.lake import Commit, VersionedStore
from resources.ledger import Ledger

_EVERY = 1 << 31
"""Commits of a whole history."""


def needless_audit_branches(store: VersionedStore, ledgers: Sequence[Ledger], before: datetime) -> list[str]:
    """Return the audit branches made before `before` (UTC) that no newest verdict of `ledgers` names, sorted."""
    heads = {name: store.read_commit(head) for name, head in store.branches(layout.AUDIT).items()}
    if not heads:
        return []
    moved_on = dict(_moved_on(store))
    return [
        name
        for name, commit in sorted(heads.items())
        if _is_older(commit, moved_on, before) and not any(_is_named(one, name, commit) for one in ledgers)
    ]


def _is_named(ledger: Ledger, branch: str, commit: Commit) -> bool:
    table, keys = commit.metadata.get("table"), commit.metadata.get("keys", "")
    if not table or commit.metadata.get("audit") != "rejected":
        return False
    newest = ledger.newest_verdicts(table, keys.split(","))
    return any(row.branch == branch and row.blocks for row in newest.values())


def _is_older(commit: Commit, moved_on: dict[str, datetime | None], before: datetime) -> bool:
    """True if the branch with this head was made before `before`.

    A branch without a commit of its own stands on main. It is older than the commit that came next on main.
    """
    made = moved_on.get(commit.id, commit.created_at)
    return made is not None and made < before


def _moved_on(store: VersionedStore) -> Iterator[tuple[str, datetime | None]]:
    """Yield each commit of main, with the time of the next one; None for the head."""
    after: datetime | None = None
    for commit in store.log(MAIN, _EVERY):
        yield commit.id, after
        after = commit.created_at
