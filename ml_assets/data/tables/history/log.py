"""History of the lake's tables: what each commit changed, which commits made a partition, and if each was audited.

The server's audit hook refuses an unaudited merge. But lakeFS reads the hook from the source branch of the merge, and
that branch may lack it. The history shows every merge. Here: reading commits and their metadata. Not here: the
difference of two commits (`diff.py`), writing commits (`publish`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ml_assets.data.tables import layout
from ml_assets.data.tables.history.diff import reasons
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.manifest import PartitionManifest
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from resources.lake import Commit, ObjectNotFound, VersionedStore
from resources.ledger import Ledger

_EVERY = 1 << 31
"""Commits of a whole history."""


@dataclass(frozen=True, kw_only=True)
class TableCommit:
    """A commit, as far as it is about one table."""

    commit: str
    at: datetime
    message: str
    table: str
    """Empty for a commit that names no table, such as the first."""
    keys: tuple[str, ...]
    """Partitions that the commit changed."""
    run_id: str
    author: str
    """Person who ran it, or who accepted the rows; empty if the commit does not say."""
    reason: str
    """Reason of an acceptance; empty for others."""
    code_version: str


@dataclass(frozen=True, kw_only=True)
class PartitionContent:
    """One content of a partition, and the commit that brought it."""

    made_by: TableCommit
    rows: int | None
    """None, as are the other facts below, if the commit removed the partition."""
    content_digest: str | None
    code_version: str | None
    """Version of the code that made it, from its manifest."""
    why: str
    """Differences from the content before, in words."""


def log_of(store: VersionedStore, ref: str, *, table: str = "", limit: int = 100) -> Iterator[TableCommit]:
    """Yield up to `limit` commits of `ref` along first parents, newest first; with `table`, those about it."""
    number = 0
    for commit in store.log(ref, limit=_EVERY if table else limit):
        found = facts_of(commit)
        if table and table not in (found.table, *commit.metadata.get("tables", "").split(",")):
            continue
        yield found
        number += 1
        if number == limit:
            return


def facts_of(commit: Commit) -> TableCommit:
    """Return what a commit says about itself."""
    facts = commit.metadata
    return TableCommit(
        commit=commit.id,
        at=commit.created_at,
        message=commit.message,
        table=facts.get("table", ""),
        keys=tuple(facts["keys"].split(",")) if facts.get("keys") else (),
        run_id=facts.get("run_id", ""),
        author=facts.get("accepted_by") or facts.get("author", ""),
        reason=facts.get("reason", ""),
        code_version=facts.get("code_version", ""),
    )


def blame(store: VersionedStore, table: str, key: str, ref: str = MAIN) -> list[PartitionContent]:
    """Return every content that a partition had in the history of `ref`, newest first, with the commit behind each.

    Asks only the commits whose metadata names the partition or names no table. If their contents do not follow one
    another, another commit changed the partition without saying so: then every commit is compared. Raises
    `PartitionMissing` if the history never held the partition.
    """
    log = list(store.log(ref, limit=_EVERY))
    path = layout.manifest_path(table, key)
    named = [one for one in log if _may_change(one, table, key)]
    changes = _changes(store, path, named)
    if not _follow(changes, _digest(store, log[0].id, path)):
        changes = _changes(store, path, log)
    if not changes:
        raise PartitionMissing(table, (key,), log[0].id)
    manifests = [
        PartitionManifest.from_json(store.fetch(commit.id, [path])[path].read_bytes()) if after else None
        for commit, _, after in changes
    ]
    return [
        _content(commit, manifest, manifests[number + 1] if number + 1 < len(manifests) else None)
        for number, ((commit, _, _), manifest) in enumerate(zip(changes, manifests, strict=True))
    ]


_Step = tuple[Commit, str, str]
"""A commit, and the digest of the partition's manifest before and after it; empty if there was none."""


def _may_change(commit: Commit, table: str, key: str) -> bool:
    facts = facts_of(commit)
    return not facts.table or (facts.table == table and key in facts.keys)


def _changes(store: VersionedStore, path: str, commits: Sequence[Commit]) -> list[_Step]:
    found: list[_Step] = []
    for commit in commits:
        before = _digest(store, commit.parents[0], path) if commit.parents else ""
        after = _digest(store, commit.id, path)
        if before != after:
            found.append((commit, before, after))
    return found


def _follow(changes: Sequence[_Step], now: str) -> bool:
    """True if each content is the one that the next commit found, from no content to that of `now`."""
    found = ["", *(after for _, _, after in reversed(changes))]
    expected = [*(before for _, before, _ in reversed(changes)), now]
    return found == expected


def _digest(store: VersionedStore, commit: str, path: str) -> str:
    try:
        return store.stat(commit, path).sha256
    except ObjectNotFound:
        return ""


def _content(
    commit: Commit, manifest: PartitionManifest | None, before: PartitionManifest | None
) -> PartitionContent:
    why = "first content"
    if manifest is None:
        why = "removed"
    elif before is not None:
        why = reasons(before, manifest)
    return PartitionContent(
        made_by=facts_of(commit),
        rows=manifest.rows if manifest else None,
        content_digest=manifest.content_digest if manifest else None,
        code_version=manifest.code_version if manifest else None,
        why=why,
    )


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
