"""Entries of a lakeFS repository: listing by pages, looking many paths up in few requests; ids of moved commits.

Here: listing, and a cache of the entries of commits, which never change. Not here: the content of objects, and the
digest of an object that was written without it (`lakefs_content.py`).

Commits of an embedded lake got other ids when they moved to lakeFS, which computes the id of a commit from its content.
Manifests, rows of the ledger, tags in MLflow and records of environments hold old ids and are never rewritten. The lake
itself holds the new ones, in an object on a branch of its own. Not here: the move (`migration.py`).
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resources.lake import SERVERS_OWN
from resources.lake.lakefs_api import LakeFSApi

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


DIGEST = "sha256"
"""Key of the digest in an object's metadata. The digest depends on the content alone, so equal content gets equal
metadata."""
PAGE = 1000
"""Entries in a page. lakeFS returns no more."""
_FEW = 4
"""Up to this number of paths, each is looked up by a request of its own."""
REMEMBERED_BYTES = 256 << 20
"""Bytes of memory for entries of commits. A commit of 200,000 objects takes about 100 MB."""
_ENTRY_BYTES = 300
"""Bytes of an entry without its texts: the object, its slot in a dictionary, the headers of the texts."""
_COMMIT_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One object at one ref, from the server's listing."""

    path: str
    size: int
    """Bytes."""
    sha256: str | None
    """Digest in the object's metadata; None if another program wrote the object."""
    address: str
    """Address and checksum of the content. Together they identify the content for ever."""


class CommitEntries:
    """Cache of entries of commits, which never change. Keeps the last used commits, up to `limit` bytes of memory."""

    def __init__(self, limit: int = REMEMBERED_BYTES) -> None:
        self._limit = limit
        self._known: OrderedDict[str, dict[str, Entry]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        return sum(self._sizes.values())

    def find(self, ref: str, paths: Sequence[str]) -> dict[str, Entry]:
        """Return path → cached entry for those `paths` that are in the cache."""
        with self._lock:
            known = self._known.get(ref, {})
            return {path: known[path] for path in paths if path in known}

    def add(self, ref: str, page: Sequence[Entry]) -> None:
        """Cache a page of entries at `ref`, if `ref` is a commit id. Drop the least recently used commits if needed."""
        if not _COMMIT_ID.fullmatch(ref):
            return
        with self._lock:
            known = self._known.setdefault(ref, {})
            self._known.move_to_end(ref)
            self._sizes.setdefault(ref, 0)
            for entry in page:
                if entry.path not in known:
                    known[entry.path] = entry
                    self._sizes[ref] += _size(entry)
            while self._known and self.size > self._limit:
                # A single commit may exceed the limit: then its own entries are dropped.
                forgotten, _ = self._known.popitem(last=False)
                del self._sizes[forgotten]


class Listing:
    """Entries of one repository. Safe for any number of threads."""

    def __init__(self, api: LakeFSApi) -> None:
        self._api = api
        self._known = CommitEntries()

    def entries(self, ref: str, prefix: str = "") -> list[Entry]:
        """Return the entries whose path starts with `prefix`, sorted by path, without the server's own entries."""
        found: list[Entry] = []
        after = ""
        while True:
            page, has_more = self._page(ref, prefix, after, PAGE)
            found += [entry for entry in page if not entry.path.startswith(SERVERS_OWN)]
            if not has_more:
                # The server sorts by bytes of UTF-8, which is the order of code points.
                return found
            after = page[-1].path

    def find(self, ref: str, paths: Sequence[str]) -> dict[str, Entry]:
        """Return path → entry for those `paths` that exist."""
        found = self._known.find(ref, paths)
        missing = sorted({path for path in paths if path not in found and not path.startswith(SERVERS_OWN)})
        if len(missing) <= _FEW:
            return found | {entry.path: entry for path in missing for entry in self._exactly(ref, path)}
        return found | self._find_many(ref, missing)

    def own(self, ref: str) -> list[Entry]:
        """Return the server's own entries: the hooks that lakeFS would read at `ref`."""
        return self._page(ref, SERVERS_OWN, "", PAGE)[0]

    def hooks(self, ref: str) -> dict[str, str]:
        """Return path → checksum of each entry of `own`."""
        return {entry.path: entry.address.rsplit(" ", 1)[1] for entry in self.own(ref)}

    def _find_many(self, ref: str, wanted: Sequence[str]) -> dict[str, Entry]:
        """Look sorted paths up page by page, skipping the entries between two distant paths."""
        found: dict[str, Entry] = {}
        wanted_set = set(wanted)
        position = 0
        while position < len(wanted):
            # Begin after the path without its last character: few entries sort between that and the path.
            page, has_more = self._page(ref, "", wanted[position][:-1], PAGE)
            found |= {entry.path: entry for entry in page if entry.path in wanted_set}
            if not has_more:
                break
            if page[-1].path < wanted[position]:
                found |= {entry.path: entry for entry in self._exactly(ref, wanted[position])}
            reached = max(page[-1].path, wanted[position])
            while position < len(wanted) and wanted[position] <= reached:
                position += 1
        return found

    def _exactly(self, ref: str, path: str) -> Iterator[Entry]:
        page, _ = self._page(ref, path, "", 1)
        return (entry for entry in page if entry.path == path)

    def _page(self, ref: str, prefix: str, after: str, amount: int) -> tuple[list[Entry], bool]:
        answer = self._api.ask_plainly(
            "objects_api", "list_objects", ref, prefix=prefix, after=after, amount=amount, user_metadata=True
        )
        page = [_entry(stats) for stats in answer["results"]]
        self._known.add(ref, page)
        return page, bool(answer["pagination"]["has_more"])


def _entry(stats: Mapping[str, Any]) -> Entry:
    metadata: Mapping[str, str] = stats.get("metadata") or {}
    sha256 = metadata.get(DIGEST, "")
    return Entry(
        path=stats["path"],
        size=stats["size_bytes"],
        sha256=sha256 if _COMMIT_ID.fullmatch(sha256) else None,
        address=f"{stats['physical_address']} {stats['checksum']}",
    )


def _size(entry: Entry) -> int:
    return _ENTRY_BYTES + len(entry.path) + len(entry.address) + len(entry.sha256 or "")
