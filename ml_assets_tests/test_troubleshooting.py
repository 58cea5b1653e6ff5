"""Page of troubleshooting: its error types and the messages that it quotes exist, and no public type is missing.

Not here: links, commands and keys on the page (`test_docs`).
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()

FAMILIES = {
    "BuildRefused",
    "TrainingFailed",
    "SourceRefused",
    "LakeError",
    "LedgerError",
    "TrackerError",
    "ArtifactsError",
    "OnlineStoreError",
    "PoolError",
    "BundleRefused",
    "ContextError",
}
"""Bases of the errors that end a run or a command. Each type below one of them is on the page."""

INSIDE = {
    "Preempted": "the next attempt follows",
    "TrackerRaced": "repeated at once",
    "SpoolFailed": "the metrics wait in memory",
    "Refusal": "the caller names branch or path",
    "NameRefused": "only code names branches",
    "RefExists": "only code creates branches",
    "ObjectNotFound": "readers raise `PartitionMissing`",
    "BranchDirty": "only code writes to branches",
}
"""Type → why no person meets it."""


@cache
def _trees() -> tuple[ast.Module, ...]:
    folders = [ROOT / "ml_assets", ROOT / "resources"]
    return tuple(ast.parse(path.read_text()) for folder in folders for path in folder.rglob("*.py"))


@cache
def _bases() -> dict[str, set[str]]:
    """Return class → names of its bases."""
    return {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def _ancestors(name: str) -> set[str]:
    bases = _bases().get(name, set())
    return bases.union(*(_ancestors(base) for base in bases))


def _rows() -> Iterator[tuple[list[str], str]]:
    """Yield types and shown messages of each row of the tables that begin with a type."""
    for table in re.findall(r"^\| type \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        for line in table.splitlines():
            types, shown = line.split(" | ")[:2]
            yield re.findall(r"`(\w+)`", types), shown


def test_types_on_the_page_are_errors_of_the_code() -> None:
    roots = {"Exception", "OSError", "ValueError", "UserWarning", "RuntimeError", "ClickException"}
    named = {name for types, _ in _rows() for name in types}
    assert len(named) > 90
    assert {name for name in named if not _ancestors(name) & roots} == set()


def test_each_public_error_type_is_on_the_page() -> None:
    public = {name for name in _bases() if name[0] != "_" and _ancestors(name) & FAMILIES} - FAMILIES
    on_page = {name for types, _ in _rows() for name in types}
    assert public - on_page == set(INSIDE)


def test_messages_on_the_page_are_those_of_the_code() -> None:
    texts = "\n".join(_texts())
    missing = [
        message
        for _, shown in _rows()
        for message in re.findall(r"`([^`]+)`", shown)
        if message.strip("… ") not in texts
    ]
    assert missing == []


def _texts() -> Iterator[str]:
    """Yield the texts of the code, with `…` in place of each value."""
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
                )
