"""Tree of a commit: path → object, as immutable sorted ranges that versions share.

Belongs here: the shape of a tree on disk, reading it, changing it, comparing two. Does not: merging
or storing ranges (`refs.py`, which provides `load` and `save`).

A tree is a list of ranges. A range is a sorted run of about 64 entries. It ends after an entry whose path hashes to
a boundary, so the cut depends on the paths alone. Equal contents therefore have equal ids, whatever the history. A
commit that changes one partition writes one or two ranges. To compare two trees, only the ranges that they do not
share are loaded. (lakeFS keeps its metadata in ranges for the same reason.)

On disk the same rule cuts the list of ranges into pages, and the list of pages into pages of the next level. The top
level is one page, whose id is the id of the tree. So a commit writes one page of each level, not the whole list.
"""

import hashlib
import json
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from resources.lake import ObjectStat

Changes = Mapping[str, ObjectStat | None]
"""Path → the new object, or None if the path was removed."""

_BOUNDARY = 64
"""Mean entries in a range: about 8 kB of JSON, 4 kB compressed."""
_CACHED_RANGES = 4096
"""Decoded ranges kept in memory: 260,000 entries, at most 80 MB. A listing longer than that decodes all anew."""
_PAGE = 16
"""Mean ranges (or pages) in a page. A commit writes a page of each level; small pages cost it less than few levels."""
_CACHED_PAGES = 4096
"""Decoded pages kept in memory: about 64 k ranges with 4 million entries."""


@dataclass(frozen=True, slots=True)
class Range:
    """A run of entries, or a page of ranges. `last` is its greatest path, `id` the SHA-256 of its encoding."""

    last: str
    id: str


Tree = tuple[Range, ...]
_Page = tuple[int, tuple[Range, ...]]
"""Level and entries of a page. Level 1 lists ranges; each higher level lists pages of the level below."""


class Trees:
    """Reader and writer of trees through `load(id) -> bytes` and `save(id, bytes)`. May save the same id twice."""

    def __init__(self, load: Callable[[str], bytes], save: Callable[[str, bytes], None]) -> None:
        self._load = load
        self._save = save
        self._ranges: OrderedDict[str, tuple[ObjectStat, ...]] = OrderedDict()
        self._pages: OrderedDict[str, _Page] = OrderedDict()
        self._page_ids: dict[_Page, str] = {}

    def read(self, tree_id: str) -> Tree:
        """Return the tree with this id."""
        level, nodes = self._page(tree_id)
        while level > 1:
            level -= 1
            nodes = tuple(node for page in nodes for node in self._page(page.id)[1])
        return nodes

    def unseen(self, tree_id: str, seen: set[str]) -> Iterator[ObjectStat]:
        """Yield the entries of the ranges that are not in `seen`; add the ids of the pages and ranges read to it.

        Over many trees with one `seen`, each page and range is read once. Nothing is cached.
        """
        todo = [(tree_id, True)]
        while todo:
            id_, is_page = todo.pop()
            if id_ in seen:
                continue
            seen.add(id_)
            if is_page:
                (level,), *nodes = json.loads(zlib.decompress(self._load(id_)))
                todo += [(below, level > 1) for _, below in nodes]
            else:
                for path, sha256, size in json.loads(zlib.decompress(self._load(id_))):
                    yield ObjectStat(path, sha256, size)

    def write(self, tree: Tree) -> str:
        """Save the pages that list the ranges; return the id of the tree. The ranges must be saved already."""
        level, nodes = 1, tree
        while len(pages := _pages(level, nodes)) > 1:
            nodes = tuple(Range(page[-1].last, self._keep_page((level, page))) for page in pages)
            level += 1
        return self._keep_page((level, nodes))

    def entries(self, tree: Tree, prefix: str = "") -> Iterator[ObjectStat]:
        """Yield the entries whose path starts with `prefix`, sorted by path."""
        for range_ in tree[bisect_left(tree, prefix, key=_last) :]:
            for entry in self._range(range_.id):
                if entry.path.startswith(prefix):
                    yield entry
                elif entry.path > prefix:
                    return

    def find(self, tree: Tree, paths: Iterable[str]) -> dict[str, ObjectStat]:
        """Return path → entry for those `paths` that are in the tree."""
        found: dict[str, ObjectStat] = {}
        for path in paths:
            position = bisect_left(tree, path, key=_last)
            if position == len(tree):
                continue
            entries = self._range(tree[position].id)
            at = bisect_left(entries, path, key=_path)
            if at < len(entries) and entries[at].path == path:
                found[path] = entries[at]
        return found

    def apply(self, tree: Tree, changes: Changes) -> Tree:
        """Return the tree after `changes`. A range that no change falls into is reused without reading it."""
        waiting = sorted(changes)
        done = 0
        ranges: list[Range] = []
        open_entries: list[ObjectStat] = []
        for range_ in tree:
            until = done
            while until < len(waiting) and waiting[until] <= range_.last:
                until += 1
            if until == done and not open_entries:
                ranges.append(range_)
                continue
            touched = {path: changes[path] for path in waiting[done:until]}
            done = until
            open_entries.extend(_changed(self._range(range_.id), touched))
            open_entries = self._cut(open_entries, ranges)
        if done < len(waiting) and ranges and not open_entries and not _is_boundary(ranges[-1].last):
            # Only the last range may end without a boundary: later entries are appended to it.
            open_entries = list(self._range(ranges.pop().id))
        open_entries.extend(_changed((), {path: changes[path] for path in waiting[done:]}))
        open_entries = self._cut(open_entries, ranges)
        if open_entries:
            ranges.append(self._save_range(open_entries))
        return tuple(ranges)

    def difference(self, base: Tree, side: Tree) -> dict[str, ObjectStat | None]:
        """Return the changes from `base` to `side`. Only ranges that the two do not share are read."""
        shared = set(base) & set(side)
        before = {
            entry.path: entry for range_ in base if range_ not in shared for entry in self._range(range_.id)
        }
        changes: dict[str, ObjectStat | None] = {}
        for range_ in side:
            if range_ not in shared:
                for entry in self._range(range_.id):
                    if before.pop(entry.path, None) != entry:
                        changes[entry.path] = entry
        changes.update(dict.fromkeys(before))
        return changes

    def _cut(self, entries: list[ObjectStat], ranges: list[Range]) -> list[ObjectStat]:
        """Append the complete ranges of `entries` to `ranges`; return the entries after the last boundary."""
        start = 0
        for position, entry in enumerate(entries):
            if _is_boundary(entry.path):
                ranges.append(self._save_range(entries[start : position + 1]))
                start = position + 1
        return entries[start:]

    def _keep_page(self, page: "_Page") -> str:
        # A loaded page is stored already. Encoding it again would take most of the time of a small commit.
        if (known := self._page_ids.get(page)) is not None:
            return known
        level, nodes = page
        return self._keep([[level], *([node.last, node.id] for node in nodes)])

    def _page(self, id_: str) -> "_Page":
        page = self._pages.get(id_)
        if page is None:
            (level,), *nodes = json.loads(zlib.decompress(self._load(id_)))
            page = (level, tuple(Range(last, below) for last, below in nodes))
            self._pages[id_] = page
            self._page_ids[page] = id_
            if len(self._pages) > _CACHED_PAGES:
                _, oldest = self._pages.popitem(last=False)
                del self._page_ids[oldest]
        return page

    def _save_range(self, entries: list[ObjectStat]) -> Range:
        id_ = self._keep([[entry.path, entry.sha256, entry.size] for entry in entries])
        return Range(entries[-1].path, id_)

    def _keep(self, content: Sequence[Sequence[str | int]]) -> str:
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        id_ = hashlib.sha256(body).hexdigest()
        self._save(id_, zlib.compress(body, 3))
        return id_

    def _range(self, id_: str) -> tuple[ObjectStat, ...]:
        entries = self._ranges.get(id_)
        if entries is None:
            rows = json.loads(zlib.decompress(self._load(id_)))
            entries = tuple(ObjectStat(path, sha256, size) for path, sha256, size in rows)
            self._ranges[id_] = entries
            if len(self._ranges) > _CACHED_RANGES:
                self._ranges.popitem(last=False)
        return entries


def _changed(entries: Iterable[ObjectStat], changes: Changes) -> list[ObjectStat]:
    after = {entry.path: entry for entry in entries}
    for path, entry in changes.items():
        if entry is None:
            after.pop(path, None)
        else:
            after[path] = entry
    return [after[path] for path in sorted(after)]


def _is_boundary(path: str) -> bool:
    return hashlib.blake2b(path.encode(), digest_size=1).digest()[0] % _BOUNDARY == 0


def _pages(level: int, nodes: tuple[Range, ...]) -> list[tuple[Range, ...]]:
    """Cut `nodes` after each one whose last path hashes to a boundary of this level."""
    pages: list[tuple[Range, ...]] = []
    start = 0
    for position, node in enumerate(nodes, start=1):
        # Every range ends at a boundary of its own hash, so each level needs another hash.
        digest = hashlib.blake2b(node.last.encode(), digest_size=1, salt=b"%d" % level).digest()
        if digest[0] % _PAGE == 0 or position == len(nodes):
            pages.append(nodes[start:position])
            start = position
    return pages


def _last(range_: Range) -> str:
    return range_.last


def _path(entry: ObjectStat) -> str:
    return entry.path
