"""Check that everything on `main` came through an audit: read from its own history, whatever let it in.

The server's gate stops a merge without a word on its audit, but reads the gate from the merge's source; the
history cannot be talked out of. Judging is in `judge.py`, the words are written by `publish.py` and `accept.py`.
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
