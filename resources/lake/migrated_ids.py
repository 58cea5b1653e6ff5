"""Ids that commits of an embedded lake got when they moved to lakeFS, so that records of the old ids stay readable.

lakeFS computes the id of a commit from its content, so it cannot keep ids of another store. Manifests, rows of the
ledger, tags in MLflow and records of environments hold old ids and are never rewritten. The lake itself holds the new
ones, in an object on a branch of its own. Not here: the move (`migration.py`).
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

BRANCH = "keep-migration"
"""Branch whose only object names the new ids. A lake without it was not migrated."""
PATH = "migration/commits.json"
_COMMIT = re.compile(r"[0-9a-f]{64}")


class MigratedIds:
    """Old id of a commit → its id here. Reads the lake once, when the first commit id is asked for."""

    def __init__(self, read: Callable[[], Path | None]) -> None:
        """`read` returns the local file of the object, or None if the lake was not migrated."""
        self._read = read
        self._lock = threading.Lock()
        self._known: Mapping[str, str] | None = None

    def current(self, ref: str) -> str:
        """Return the id here of a commit of the earlier lake; any other ref as it is."""
        if not _COMMIT.fullmatch(ref):
            return ref
        with self._lock:
            if self._known is None:
                file = self._read()
                self._known = {} if file is None else decoded(file.read_bytes())
            return self._known.get(ref, ref)


def encoded(ids: Mapping[str, str]) -> bytes:
    """Return the content of the object for old id → new id."""
    return json.dumps(dict(ids), indent=0, sort_keys=True).encode()


def decoded(content: bytes) -> dict[str, str]:
    """Return old id → new id from the content of the object."""
    return json.loads(content)
