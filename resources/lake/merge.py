"""Three-way merge by path, and the commit two histories share.

Belongs here: functions on changes, trees and the commit graph. Does not: where any of them is kept.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from resources.lake.store import ObjectStat
from resources.lake.tree import Changes, Tree, Trees


@dataclass(frozen=True, slots=True)
class Combined:
    """Result of a three-way merge."""

    changes: dict[str, ObjectStat | None]
    """Changes to apply to our side so that it holds both sides' changes."""
    conflicts: tuple[str, ...]
    """Paths both sides changed to different content, sorted."""


def combine(ours: Changes, theirs: Changes) -> Combined:
    """Combine what two sides changed since their common commit.

    A path that one side changed takes that change; a path both changed to the same content, or both removed,
    is left as it is; anything else conflicts, removal against change included.
    """
    changes: dict[str, ObjectStat | None] = {}
    conflicts: list[str] = []
    for path, entry in theirs.items():
        if path not in ours:
            changes[path] = entry
        elif ours[path] != entry:
            conflicts.append(path)
    return Combined(changes, tuple(sorted(conflicts)))


def merge_trees(trees: Trees, base: Tree, ours: Tree, theirs: Tree) -> tuple[Tree, tuple[str, ...]]:
    """Our tree with their changes since `base`, and the conflicts (then the tree is ours, unchanged)."""
    if theirs in (base, ours):
        return ours, ()
    if ours == base:
        return theirs, ()
    combined = combine(trees.difference(base, ours), trees.difference(base, theirs))
    if combined.conflicts:
        return ours, combined.conflicts
    return trees.apply(ours, combined.changes), ()


@dataclass(frozen=True, slots=True)
class CommitNode:
    """A commit as the graph sees it."""

    parents: tuple[str, ...]
    generation: int
    """1 + the greatest generation of the parents; 0 at the root. An ancestor's is always smaller."""


def merge_base(left: str, right: str, read: Callable[[str], CommitNode]) -> str:
    """The common ancestor of two commits with the greatest generation (of several, the smallest id).

    Walks both histories at once, greatest generation first, and stops at the first commit reached from both
    sides: each commit above the base is read once. Histories of one repository share the root commit.
    """
    nodes = {left: read(left), right: read(right)}
    reached = {left: 1}
    reached[right] = reached.get(right, 0) | 2
    queue = [(-node.generation, commit) for commit, node in nodes.items()]
    heapq.heapify(queue)
    while queue:
        _, commit = heapq.heappop(queue)
        sides = reached[commit]
        if sides == 3:
            return commit
        for parent in nodes[commit].parents:
            if parent not in nodes:
                nodes[parent] = read(parent)
                heapq.heappush(queue, (-nodes[parent].generation, parent))
            reached[parent] = reached.get(parent, 0) | sides
    raise ValueError(f"Commits {left} and {right} share no ancestor: they are from different repositories.")
