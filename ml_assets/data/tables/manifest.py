"""Manifest of a partition: the JSON beside its files.

A manifest holds only facts that follow from the content, the rules and the code. It never says who ran it or when.
Equal content must give equal bytes: otherwise every re-run would be a change, and two runs would conflict.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

FORMAT = 4
_PROFILE = ',\n"profile":'
"""Text before the profile. Canonical JSON has no other line break."""


class ManifestUnreadable(Exception):
    """A manifest is damaged or of another format."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One data file of a partition."""

    path: str
    """Path in the lake."""
    sha256: str
    rows: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Counts of the rows that a source returned for one partition. Each row landed, or is counted here as another."""

    returned: int
    """Rows that the source returned, with those in `undated`."""
    undated: int = 0
    """Rows whose time is null, or one that no calendar has."""
    outside: int = 0
    """Rows whose event time lies outside the partition. They land only within `contract.event_slack_hours`."""
    repeated: int = 0
    """Copies of a message that a stream delivered again. They add no row."""
    quarantined: int = 0
    """Rows in quarantine."""

    def missing(self, landed: int) -> int:
        """Return the rows that neither landed nor are accounted for; below 0 if rows were added."""
        return self.returned - landed - self.quarantined - self.repeated

    def in_words(self, landed: int) -> str:
        """Return the counts that are not zero, beside those of all rows and of `landed`, the rows of the partition."""
        parts = [
            (self.quarantined, "in quarantine"),
            (self.repeated, "repeated"),
            (self.missing(landed), "left out by an acceptance"),
        ]
        among = [(self.undated, "without a time"), (self.outside, "of other partitions")]
        said = [f"{landed:,} here", *(f"{number:,} {what}" for number, what in parts if number)]
        of_them = [f"{number:,} {what}" for number, what in among if number]
        return f"{self.returned:,} returned: {', '.join(said)}" + (
            f"; {' and '.join(of_them)}" if of_them else ""
        )


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """One version of one partition."""

    table: str
    key: str
    files: tuple[FileEntry, ...]
    """Files in the order of their rows."""
    schema: Mapping[str, str]
    """Column → type name of this project (`validation.column_types`), in file order."""
    schema_hash: str
    contract_digest: str
    """Digest of the contract that validated the partition."""
    code_version: str
    """Version of the code that made the partition; empty if not stated."""
    cadence: str
    """`Cadence.kind` of the table at that time. A day and a week may share a key, but are different partitions."""
    writer: str
    """The library that wrote the files."""
    event_time: tuple[str, str] | None = None
    """Earliest and latest event time, ISO 8601 (a time in UTC); None without event times."""
    source_watermark: str | None = None
    """Watermark of the source, ISO 8601 in UTC, if it has one."""
    source_version: str | None = None
    """Version of the rows at the source, if it has versions."""
    reconciliation: Reconciliation | None = None
    """Rows that the source returned, and what became of them; None for a derived table."""
    final_from: str | None = None
    """Moment, ISO 8601 in UTC, from which other rows of this partition are a correction: the rows before are kept as an
    earlier version (`publish/earlier.py`). None: they are never kept."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Inputs of a derived table: table → key → content digest of every input partition."""
    read_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Columns that the feature function read: table → names, sorted. An input without an entry was read whole."""
    read_digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """`digest_of(read_columns[table])` of every input partition: table → key → digest; empty if it was missing."""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Column → digest of its values, in the order of the rows (`parquet.column_digests`)."""
    behind: tuple[tuple[str, str, str], ...] = ()
    """(table, key, content digest) of the partitions behind those inputs, at any depth; sorted. Stored here, because a
    later version of an input may be made from other rows and no longer name these."""
    profile_json: str = "{}"
    """The profile as text, from `profile_text`."""

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

    def digest_of(self, columns: Iterable[str]) -> str:
        """Return 32 hex digits of the SHA-256 of the values of `columns`, and of the names and types of all columns.

        Names and types count, because a function may choose columns by a pattern or by their types.
        """
        digest = hashlib.sha256(self.schema_hash.encode())
        for name in columns:
            digest.update(f"\n{name}\0{self.columns.get(name, '')}".encode())
        return digest.hexdigest()[:32]

    def digest_of_values(self, columns: Iterable[str]) -> str:
        """Return 32 hex digits of the SHA-256 of names, types and values of `columns` alone, in the order of the rows.

        For a reader that names its columns. If the manifest has no digest of one of them, the whole content counts.
        """
        digest = hashlib.sha256()
        for name in columns:
            values = self.columns.get(name, self.content_digest)
            digest.update(f"{name}\0{self.schema.get(name, '')}\0{values}\n".encode())
        return digest.hexdigest()[:32]

    @property
    def watermark(self) -> datetime | None:
        """`source_watermark` as a moment."""
        return datetime.fromisoformat(self.source_watermark) if self.source_watermark else None

    @property
    def profile(self) -> dict[str, Any]:
        """Profile of the partition (`ml_assets.data.validation.profile`). Decoded on each call."""
        return json.loads(self.profile_json)

    def to_json(self) -> bytes:
        """Return canonical JSON: equal manifests give equal bytes."""
        facts = {
            "format": FORMAT,
            "content_digest": self.content_digest,
            "rows": self.rows,
            **_fields(self),
            "files": [_fields(one) for one in self.files],
            "schema": list(self.schema.items()),  # a list, because its order is part of the schema
        }
        del facts["profile_json"]
        if self.reconciliation is not None:
            facts["reconciliation"] = _fields(self.reconciliation)
        for name in ("source_version", "reconciliation", "final_from"):
            if facts[name] is None:
                del facts[name]
        return f"{_canonical(facts)[:-1]}{_PROFILE}{self.profile_json}}}".encode()

    @classmethod
    def from_json(cls, data: bytes) -> "PartitionManifest":
        """Read the manifest in `data`. Raises `ManifestUnreadable` if it is damaged or of another format."""
        # The profile is most of the text and is seldom needed, so it is cut off before decoding.
        try:
            text, cut, profile = data.decode().partition(_PROFILE)
            facts: dict[str, Any] = json.loads(f"{text}}}") if cut else {}
        except ValueError as error:  # of the encoding or of JSON
            raise ManifestUnreadable(f"manifest is damaged ({error}): publish the partition again") from error
        if facts.get("format") != FORMAT:
            raise ManifestUnreadable(
                f"manifest of format {facts.get('format')!r}, expected {FORMAT}: publish the partition again"
            )
        del facts["format"], facts["content_digest"], facts["rows"]
        facts["files"] = tuple(FileEntry(**f) for f in facts["files"])
        facts["schema"] = dict(facts["schema"])
        facts["behind"] = tuple(tuple(one) for one in facts["behind"])
        facts["read_columns"] = {table: tuple(names) for table, names in facts["read_columns"].items()}
        facts["event_time"] = tuple(facts["event_time"]) if facts["event_time"] else None
        if "reconciliation" in facts:
            facts["reconciliation"] = Reconciliation(**facts["reconciliation"])
        return cls(**facts, profile_json=profile[:-1])


def content_digest(files: Iterable[tuple[str, str]]) -> str:
    """Return the SHA-256 over (path, sha256) of a partition's files, sorted by path: 64 hex digits.

    The digest includes paths, so equal rows of two days are two contents. Each day gets its own verdict.
    """
    digest = hashlib.sha256()
    for path, sha256 in sorted(files):
        digest.update(f"{path}\0{sha256}\n".encode())
    return digest.hexdigest()


def profile_text(profile: Mapping[str, Any]) -> str:
    """Return a profile as the canonical JSON that a manifest holds."""
    return _canonical(profile)


def iso_utc(moment: datetime) -> str:
    """Return a timezone-aware moment as ISO 8601 text in UTC. Raises `ValueError` for a moment without time zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: convert it to UTC where it is read")
    return moment.astimezone(UTC).isoformat()


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _fields(one: FileEntry | Reconciliation | PartitionManifest) -> dict[str, Any]:
    return {f.name: getattr(one, f.name) for f in fields(one)}
