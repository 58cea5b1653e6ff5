"""Check that every commit on `main` passed an audit or was accepted, from its history.

The server's audit hook refuses an unaudited merge, but lakeFS reads the hook from the merge's source, which may lack
it. The history shows every merge. Not here: validation (`validate.py`) and the metadata (`publish.py`, `accept.py`).
"""

from ml_assets.tables.landing import MAIN
from resources.lake import Commit, VersionedStore


def unaudited(store: VersionedStore, newest: int) -> list[Commit]:
    """Return those of main's `newest` commits that no audit passed and no person accepted, newest first.

    The commit a repository begins with holds nothing and needs none.
    """
    log = store.log(MAIN, limit=newest)
    return [commit for commit in log if commit.parents and not _is_audited(commit)]


def _is_audited(commit: Commit) -> bool:
    facts = commit.metadata
    if facts.get("audit") == "accepted":
        return bool(facts.get("accepted_by") and facts.get("reason"))
    return facts.get("audit") == "passed"
