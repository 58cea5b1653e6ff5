"""Three-way merge by path, and the common ancestor of two commits.

Belongs here: functions on changes, trees and the commit graph. Does not: their storage (`refs.py`).
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
    """Changes to apply to our side. Afterwards it holds the changes of both sides."""
    conflicts: tuple[str, ...]
    """Paths that both sides changed to different content, sorted."""


def combine(ours: Changes, theirs: Changes) -> Combined:
    """Combine the changes of two sides since their common ancestor.

    A path that only one side changed takes that change. A path that both sides changed to the same content, or both
    removed, stays as our side has it. Every other path is a conflict, also a removal against a change.
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
    """Return our tree with their changes since `base`, and the conflicts. With conflicts, our tree is unchanged."""
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
    """Node of the commit graph."""

    parents: tuple[str, ...]
    generation: int
    """1 + the greatest generation of the parents; 0 at the root. An ancestor always has a smaller generation."""


def merge_base(left: str, right: str, read: Callable[[str], CommitNode]) -> str:
    """Return the common ancestor with the greatest generation; on a tie, the one with the smallest id.

    Walks both histories at once, greatest generation first, and stops at the first commit reached from both
    sides. So it reads each commit above the ancestor once. All histories of one repository share the root commit.
    Raise `ValueError` for commits of different repositories.
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
