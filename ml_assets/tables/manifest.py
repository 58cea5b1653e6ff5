"""What a partition says of itself: the JSON beside its files.

A manifest holds only what follows from the content, the rules and the code, never who ran it or when: equal
content must give equal bytes, or every re-run would be a change and two runs a conflict.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

FORMAT = 1


class ManifestUnreadable(Exception):
    """A manifest is not what this version writes."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One data file of a partition."""

    path: str
    """Path in the lake."""
    sha256: str
    rows: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """One version of one partition."""

    table: str
    key: str
    files: tuple[FileEntry, ...]
    """Sorted by path."""
    schema: Mapping[str, str]
    """Column → type, in our own type names, in file order."""
    schema_hash: str
    contract_digest: str
    """The contract it was judged by."""
    code_version: str
    """Version of the code that made it; empty if not stated."""
    writer: str
    """The library that wrote the files."""
    event_time: tuple[str, str] | None = None
    """Earliest and latest event time, ISO 8601 (a time in UTC); None without event times."""
    source_watermark: str | None = None
    """How far the source had got, ISO 8601 in UTC, if it says so."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """For a derived table: table → key → content digest of every partition that was read."""
    profile: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """See `ml_assets.validation.profile`."""

    @property
    def rows(self) -> int:
        """Rows of the partition."""
        return sum(f.rows for f in self.files)

    @property
    def size(self) -> int:
        """Bytes of the data files."""
        return sum(f.size for f in self.files)

    @property
    def content_digest(self) -> str:
        """Identity of the partition's content: see `content_digest`."""
        return content_digest((f.path, f.sha256) for f in self.files)

    def to_json(self) -> bytes:
        """Canonical JSON: equal manifests are equal bytes."""
        body = {
            "format": FORMAT,
            "content_digest": self.content_digest,
            "rows": self.rows,
            **asdict(self),
            "schema": list(self.schema.items()),  # a list, because its order is part of the schema
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "PartitionManifest":
        """The manifest in `data`. `ManifestUnreadable` if it is of another format."""
        body: dict[str, Any] = json.loads(data)
        if body.get("format") != FORMAT:
            raise ManifestUnreadable(
                f"manifest of format {body.get('format')!r}, expected {FORMAT}: publish the partition again"
            )
        del body["format"], body["content_digest"], body["rows"]
        body["files"] = tuple(FileEntry(**f) for f in body["files"])
        body["schema"] = dict(body["schema"])
        body["event_time"] = tuple(body["event_time"]) if body["event_time"] else None
        return cls(**body)


def content_digest(files: Iterable[tuple[str, str]]) -> str:
    """SHA-256 over (path, sha256) of a partition's files, sorted by path: 64 hex digits.

    Paths are part of it, so two days with the same rows are two contents, each judged for its own day.
    """
    digest = hashlib.sha256()
    for path, sha256 in sorted(files):
        digest.update(f"{path}\0{sha256}\n".encode())
    return digest.hexdigest()


def iso_utc(moment: datetime) -> str:
    """A timezone-aware moment as ISO 8601 text in UTC."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: make it UTC at the edge")
    return moment.astimezone(UTC).isoformat()
