"""Check in the history of `main` that every commit passed an audit or was accepted.

The server's audit hook refuses an unaudited merge. But lakeFS reads the hook from the source branch of the merge, and
that branch may lack it. The history shows every merge. Not here: validation (`validate.py`) and the metadata
(`publish.py`, `accept.py`).
"""

from ml_assets.tables.landing import MAIN
from resources.lake import Commit, VersionedStore


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
