"""Facts of a dossier, gathered once: every document is made from these alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BUNDLE, DOSSIER = "bundle", "dossier"
"""Folders of an exported dossier: files of the bundle, and the documents about it."""
PROVENANCE = f"{DOSSIER}/provenance.intoto.json"
BILL = f"{DOSSIER}/bom.cdx.json"
CARD, CARD_PAGE = f"{DOSSIER}/card.md", f"{DOSSIER}/card.html"
EVALUATION = f"{DOSSIER}/evaluation.json"
DECISIONS = f"{DOSSIER}/decisions.json"
LOCK = f"{DOSSIER}/requirements.txt"
CODE_DIFFERENCE = f"{DOSSIER}/code.diff"
LISTING = f"{BUNDLE}/files.sha256"
"""Its SHA-256 is the bundle's digest."""
FACTS = f"{BUNDLE}/bundle.json"


@dataclass(frozen=True, kw_only=True)
class TableBehind:
    """A table whose rows are behind the weights."""

    name: str
    partitions: int
    digest: str
    """SHA-256 over the sorted lines `<key> <content digest>` of these partitions."""


@dataclass(frozen=True, kw_only=True)
class DossierFacts:
    """A registered version, its origin, and the decisions about it."""

    model: str
    number: int
    semantic: str
    partition: str
    description: str
    objective: str
    label: str
    inputs: tuple[str, ...]
    """Names of the raw columns."""
    metrics: Mapping[str, float]
    """Metrics of the holdout."""
    intended_use: str
    not_intended_for: tuple[str, ...]
    bundle: str
    """Digest of the bundle."""
    listing: str
    """Content of its `files.sha256`."""
    lineage: Mapping[str, Any]
    """`lineage` of its `bundle.json`."""
    evaluation: Mapping[str, Any]
    """Row of its evaluation in the ledger."""
    lake: str
    """Name of the lake's repository."""
    tables: tuple[TableBehind, ...]
    launches: tuple[Mapping[str, Any], ...]
    """Launches that trained it, oldest first: code, lock, packages, machine."""
    decisions: Mapping[str, Any]
    """`head` of the ledger's chain, and `rows`: its decisions about this bundle, as they are stored."""
    lock: str = ""
    """Locked requirements of the last launch."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Further documents by their path in the dossier."""
