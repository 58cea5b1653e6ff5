"""Preparation of a source's rows for the lake: canonical rows, their bytes, their manifest.

Pure functions: the same `Incoming` gives the same `Prepared`, so its digest is known before anything is written.
"""

import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from ml_assets.data.tables import layout, parquet
from ml_assets.data.tables.manifest import FileEntry, PartitionManifest, Reconciliation, iso_utc, profile_text
from ml_assets.data.tables.spec import MOST_UNDATED, Incoming, SourceFailed, TableSpec, UndatedRows
from ml_assets.data.validation.column_types import polars_type, schema_hash, schema_of
from ml_assets.data.validation.profile import profile
from ml_assets.foundation.days import MICROSECOND, after, begin_of
from resources.addresses import hide_credentials

POLARS_FAILED = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Errors of polars for values it cannot handle. A panic is a `BaseException`, so `except Exception` misses it."""


class KeyTwice(ValueError):
    """A source returned the same partition twice in one call."""


COLUMN_BYTES = 1_200
"""Bytes that a column of a partition needs beside its values: a series, a digest, a profile and its JSON. Measured: a
row of 3,000 columns needs 4.5 MB, of which values and file are 0.9."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """All objects of one partition, its manifest included."""

    table: str
    key: str
    objects: Mapping[str, bytes | Path]
    """Path in the lake → content."""
    hashes: Mapping[str, str]
    """Path in the lake → SHA-256."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """One partition, ready for validation and writing."""

    frame: pl.DataFrame
    """Rows as they will be stored."""
    manifest: PartitionManifest
    stored: StoredPartition
    """The partition as objects of the lake."""
    undated: UndatedRows | None = None
    """See `Incoming`."""

    @property
    def key(self) -> str:
        """Partition key."""
        return self.manifest.key

    @property
    def digest(self) -> str:
        """Content digest."""
        return self.manifest.content_digest

    @property
    def memory(self) -> int:
        """Bytes that the frame, its files and what the manifest says of its columns need in memory."""
        undated = 0 if self.undated is None else self.undated.frame.estimated_size()
        columns = COLUMN_BYTES * self.frame.width
        return int(self.frame.estimated_size() + undated) + self.manifest.size + columns


@dataclass(frozen=True, slots=True)
class MadePartition:
    """A partition before its validation."""

    key: str
    ready: Prepared | None
    """None: it has no rows."""
    failed: str = ""
    """Reason why it has none."""
    cause: BaseException | None = None
    """Error of the source behind it."""
    memory: int = 0
    """Bytes that it needs in memory: `Prepared.memory`, where it was made."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Partitions that are validated and land together."""

    ready: dict[str, Prepared]
    """Key → partition, sorted by key."""
    failed: dict[str, str]
    """Key → reason why it has no rows."""


def prepare_chunks(
    spec: TableSpec, incoming: Iterable[Incoming | MadePartition], most_bytes: float = math.inf
) -> Iterator[Chunk]:
    """Yield the partitions of `incoming` in chunks that end when their frames and files need `most_bytes` of memory.

    Reads `incoming` once, one partition at a time. Without any partition, there is one empty chunk. Raises `KeyRefused`
    and `KeyTwice`.
    """
    seen: set[str] = set()
    ready: dict[str, Prepared] = {}
    failed: dict[str, str] = {}
    size = 0
    for one in incoming:
        spec.cadence.require(one.key)
        if one.key in seen:
            raise KeyTwice(f"{spec.table}: the source returned {one.key} twice: return each partition once")
        seen.add(one.key)
        made = one if isinstance(one, MadePartition) else make(spec, one)
        del one  # otherwise the frame of the source stays in memory beside the next one
        if made.ready is None:
            failed[made.key] = made.failed
            continue
        ready[made.key] = made.ready
        size += made.memory
        del made
        if size >= most_bytes:
            yield Chunk(dict(sorted(ready.items())), failed)
            ready, failed, size = {}, {}, 0
    if ready or failed or not seen:
        yield Chunk(dict(sorted(ready.items())), failed)


def make(spec: TableSpec, incoming: Incoming) -> MadePartition:
    """Prepare a partition, or say why it has no rows. Needs neither lake nor ledger, so a worker can do it."""
    if isinstance(incoming.data, SourceFailed):
        why = hide_credentials(str(incoming.data))
        return MadePartition(incoming.key, None, why, incoming.data.__cause__)
    try:
        ready = prepare(spec, incoming, incoming.data)
    except parquet.UnstorableFrame as error:
        return MadePartition(incoming.key, None, str(error))
    except POLARS_FAILED as error:
        why = _column_that_fails(incoming.data) or f"{type(error).__name__}: {error}"
        return MadePartition(incoming.key, None, why)
    return MadePartition(incoming.key, ready, memory=ready.memory)


def _column_that_fails(data: pl.DataFrame) -> str:
    """Return a sentence about the first column that polars cannot store or profile alone; empty if it can do all."""
    for name, dtype in data.schema.items():
        try:
            column = data.select(name)
            list(parquet.encode(column))
            profile(column)
        except POLARS_FAILED as error:
            return f"column {name!r} ({dtype}) cannot be stored: {error}. Cast or drop it in the source"
    return ""


def prepare(spec: TableSpec, incoming: Incoming, data: pl.DataFrame) -> Prepared:
    """Prepare one partition. Raises `parquet.UnstorableFrame` if Parquet cannot store its values."""
    frame = parquet.canonical(_typed_if_empty(spec, spec.contract.in_order(data)), spec.order)
    manifest = PartitionManifest(
        table=spec.table,
        key=incoming.key,
        files=(),
        schema={},
        schema_hash="",
        contract_digest=spec.contract.contract_digest,
        code_version=spec.code_version,
        cadence=spec.cadence.kind,
        writer=parquet.WRITER,
        source_version=incoming.version,
        source_watermark=iso_utc(incoming.watermark) if incoming.watermark else None,
        reconciliation=_counted(spec, incoming, frame),
        final_from=None if (final_from := spec.final_from(incoming.key)) is None else iso_utc(final_from),
        inputs={table: dict(sorted(keys.items())) for table, keys in incoming.inputs.items()},
        read_columns=incoming.read_columns,
        read_digests={table: dict(sorted(keys.items())) for table, keys in incoming.read_digests.items()},
        behind=incoming.behind,
    )
    return replace(_with_rows(spec, manifest, frame), undated=incoming.undated)


def _counted(spec: TableSpec, incoming: Incoming, frame: pl.DataFrame) -> Reconciliation | None:
    """Return the counts of a source's rows, with those of `frame` that have no time or one of another partition."""
    counts = incoming.reconciliation
    if counts is None:
        return None
    apart = counts.returned - counts.repeated - frame.height
    column = spec.contract.event_time
    dtype = frame.schema.get(column) if column else None
    if column is None or dtype is None:
        return replace(counts, undated=apart)
    times, outside = frame.get_column(column), 0
    if spec.cadence.kind != "none":
        first, last = spec.cadence.bounds(incoming.key)
        if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
            zone = spec.contract.event_time_zone
            first, last = begin_of(first, zone), begin_of(after(last), zone) - MICROSECOND
        elif dtype != pl.Date:
            return replace(counts, undated=apart)
        outside = int((times.lt(first) | times.gt(last)).sum())
    return replace(counts, undated=apart + times.null_count(), outside=outside)


def with_rows(spec: TableSpec, prepared: Prepared, frame: pl.DataFrame, table: str | None = None) -> Prepared:
    """Return the partition with other rows: `frame`, in canonical order. `table`: in another table of the lake."""
    manifest = prepared.manifest
    if table is not None:
        manifest = replace(manifest, table=table, final_from=None, reconciliation=None)
    return replace(_with_rows(spec, manifest, frame), undated=prepared.undated if table is None else None)


def undated_partition(spec: TableSpec, of: Prepared, frame: pl.DataFrame) -> Prepared:
    """Return rows without a time as a partition of the quarantine table. It holds no fact of the partition `of`, with
    which they were read."""
    manifest = replace(
        of.manifest,
        table=layout.quarantine_of(spec.table) or spec.table,
        key=layout.UNDATED,
        source_version=None,
        source_watermark=None,
        reconciliation=None,
        final_from=None,
    )
    return _with_rows(spec, manifest, parquet.canonical(frame, spec.order))


def undated_digest(spec: TableSpec, prepared: Prepared) -> str:
    """Return the identity of the rows without a time that were read with a partition; empty without any.

    Of more rows than are read, which ones were read is chance: their number is the identity.
    """
    rows = prepared.undated
    if rows is None or not rows.frame.height:
        return ""
    if rows.frame.height > MOST_UNDATED:
        return f"more than {MOST_UNDATED}"
    content = b"".join(parquet.encode(parquet.canonical(rows.frame, spec.order)))
    return hashlib.sha256(content).hexdigest()


def with_quarantined(prepared: Prepared, rows: int) -> Prepared:
    """Return the partition with `rows` more rows counted as in quarantine."""
    counts = prepared.manifest.reconciliation
    if not rows or counts is None:
        return prepared
    counts = replace(counts, quarantined=counts.quarantined + rows)
    manifest = replace(prepared.manifest, reconciliation=counts)
    path, content = layout.manifest_path(manifest.table, manifest.key), manifest.to_json()
    stored = replace(
        prepared.stored,
        objects={**prepared.stored.objects, path: content},
        hashes={**prepared.stored.hashes, path: hashlib.sha256(content).hexdigest()},
    )
    return replace(prepared, manifest=manifest, stored=stored)


def _with_rows(spec: TableSpec, manifest: PartitionManifest, frame: pl.DataFrame) -> Prepared:
    objects = {
        layout.part_path(manifest.table, manifest.key, part): content
        for part, content in enumerate(parquet.encode(frame))
    }
    files = tuple(
        FileEntry(
            path=path,
            sha256=hashlib.sha256(content).hexdigest(),
            rows=min(parquet.FILE_ROWS, frame.height - part * parquet.FILE_ROWS),
            size=len(content),
        )
        for part, (path, content) in enumerate(objects.items())
    )
    schema = schema_of(frame)
    profiled = profile(frame, hidden=[name for name in frame.columns if spec.hides(name)])
    manifest = replace(
        manifest,
        files=files,
        schema=dict(schema),
        schema_hash=schema_hash(schema),
        event_time=_event_range(profiled, spec.contract.event_time),
        columns=parquet.column_digests(objects[one.path] for one in files),
        profile_json=profile_text(profiled),
    )
    objects[layout.manifest_path(manifest.table, manifest.key)] = manifest.to_json()
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in objects.items()}
    return Prepared(frame, manifest, StoredPartition(manifest.table, manifest.key, objects, hashes))


def prepared_of(manifest: PartitionManifest, files: Sequence[bytes]) -> Prepared:
    """Return a partition that another process prepared, from its manifest and the contents of its files."""
    frame = pl.concat([pl.read_parquet(io.BytesIO(content)) for content in files])
    objects = {one.path: content for one, content in zip(manifest.files, files, strict=True)}
    path, content = layout.manifest_path(manifest.table, manifest.key), manifest.to_json()
    hashes = {one.path: one.sha256 for one in manifest.files} | {path: hashlib.sha256(content).hexdigest()}
    return Prepared(
        frame, manifest, StoredPartition(manifest.table, manifest.key, {**objects, path: content}, hashes)
    )


def _typed_if_empty(spec: TableSpec, data: pl.DataFrame) -> pl.DataFrame:
    """Return `data`, or an empty frame with the contract's types if `data` has no rows and no types.

    A source without rows returns `pl.DataFrame()`. That is an empty partition, not the file of another table.
    """
    if data.height:
        return data
    expected = {name: polars_type(column.dtype) for name, column in spec.contract.by_name.items()}
    is_untyped = all(expected.get(name) == dtype or dtype == pl.Null for name, dtype in data.schema.items())
    if is_untyped and data.columns in ([], list(expected)):
        return pl.DataFrame(schema=expected)
    return data


def _event_range(profiled: Mapping[str, Any], event_time: str | None) -> tuple[str, str] | None:
    """Return the first and last event time; None if the frame has no such column or no times in it."""
    column = profiled["columns"].get(event_time, {})
    first, last = column.get("min"), column.get("max")
    return (first, last) if isinstance(first, str) and isinstance(last, str) else None
