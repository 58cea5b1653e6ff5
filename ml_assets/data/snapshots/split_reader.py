"""Format and reader of a snapshot: the only part of this package that training workers import.

Here: the manifest `snapshot.json` as frozen values, and the check that a folder still matches it. Not here: choosing
rows (spec, row_choice), the format of a shard (shards), the order of rows in training (training.data.order), torch.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from ml_assets.data.snapshots.shards import Rows, concatenate, map_rows

MANIFEST = "snapshot.json"
FITTED = "fitted.json"
"""File beside the manifest with the fitted state (`FittedState.to_json`): vocabularies, for serving raw rows."""

SplitName: TypeAlias = Literal["train", "validation", "holdout"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "holdout")


def index_name(split: SplitName) -> str:
    """Return the name of a split's index file."""
    return f"{split}.index.parquet"


class SnapshotError(Exception):
    """A snapshot cannot be made or read. The message has the remedy."""


class ShardChanged(SnapshotError):
    """A file of the snapshot is missing or does not match the manifest."""


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """Columns that a model reads, in order. `fitted.json` describes the encoding of raw values."""

    numeric: tuple[str, ...]
    """F names: the columns of `numeric`, which are standardised."""
    fill: tuple[float, ...]
    """F float32: the standardised number that replaces a missing value."""
    quantiles: tuple[tuple[float, ...], ...] = ()
    """F tuples: standardised numbers, float32, ascending, that divide the known values of training rows into up to 16
    equal parts, from the least to the greatest. A tuple is empty if the column is constant. No tuples if the snapshot
    was made before 0.2."""
    means: tuple[float, ...] = ()
    """F means of the training rows, in the unit of the column. None if the snapshot was made before 0.2."""
    scales: tuple[float, ...] = ()
    """F standard deviations of the training rows, in the unit of the column: it is the standardised number times the
    scale, plus the mean."""
    categorical: tuple[str, ...]
    """C names: the columns of `category`."""
    cardinalities: tuple[int, ...]
    """C sizes of an embedding: ids run from 0 (unknown or missing) to size − 1."""
    blob: str = ""
    """Name of the column with blobs, stored bytes that the pipeline's `decode` reads; empty if rows have none."""
    classes: tuple[str, ...] = ()
    """Classes of the label, in the order of the model's outputs; empty if the label is a number."""
    vocabulary: int = 0
    """Number of token ids, 0 to `vocabulary` − 1, that `decode` may return for a text; 0 if rows are not texts."""
    level: float = 0.0
    """Output of a model that predicts the mean label: the mean, its logarithm (count) or log-odds (binary). 0 for
    classes, lists and texts."""
    spread: float = 1.0
    """Standard deviation of the label if the output is in its unit; else 1."""

    @property
    def outputs(self) -> int:
        """Numbers that a model returns for a row: one for each class, or 1; for each token of a text, the
        scores of all ids."""
        return self.vocabulary or len(self.classes) or 1

    def __post_init__(self) -> None:
        if len(self.numeric) != len(self.fill):
            raise SnapshotError("InputSpec needs one fill per numeric column")
        if len(self.categorical) != len(self.cardinalities):
            raise SnapshotError("InputSpec needs one cardinality per categorical column")


@dataclass(frozen=True, kw_only=True)
class SourceValues:
    """Values of a feature table from which a snapshot was made.

    Only the columns that a training reads count. So a change of another column leaves the digest of a snapshot as it
    is, and no training is repeated. The commit does not belong to it: several commits hold the same values.
    """

    table: str
    """Feature table."""
    columns: tuple[str, ...] = ()
    """Columns that were read, sorted."""
    partitions: dict[str, str] = field(default_factory=dict[str, str])
    """Partition key → digest of names, types and values of `columns` in all its rows, in their order."""

    @property
    def digest(self) -> str:
        """SHA-256, 64 hex digits, of all values that were read."""
        return _sha256(dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True)
class PartitionIndex:
    """Row counts of one partition: rows taken and rows left out."""

    key: str
    split: SplitName
    rows: int
    """Rows taken."""
    excluded: dict[str, int]
    """Reason → rows left out."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One tar file with the blobs of a shard's rows."""

    path: str
    """Relative to the snapshot's folder."""
    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One Arrow file (IPC, one record batch, not compressed, so that it can be memory-mapped)."""

    split: SplitName
    path: str
    """Relative to the snapshot's folder."""
    sha256: str
    rows: int
    bytes: int
    lists: int | None = None
    """Lists that its rows form; None if rows do not form lists. A list is whole in a shard."""
    blobs: Archive | None = None
    """Archive of blobs beside it; None if rows have no blobs."""

    @property
    def units(self) -> int:
        """Number of parts that training never divides: its rows, or its lists."""
        return self.rows if self.lists is None else self.lists

    @property
    def files(self) -> "tuple[Shard | Archive, ...]":
        """Files that the shard needs: itself, and its archive if it has one."""
        return (self,) if self.blobs is None else (self, self.blobs)


@dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """One index file: the rows of a split, as numbers of rows of the feature table (`split_rows.index_parts`)."""

    split: SplitName
    path: str
    """Relative to the snapshot's folder."""
    sha256: str
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """An immutable training input: the content of `snapshot.json`, and its folder."""

    folder: Path
    """Folder of the snapshot; not part of the digest."""
    source: SourceValues
    """Values from which the rows came. The commit that was read belongs to a run, not to the snapshot."""
    split_config_hash: str
    schema_hash: str
    """SHA-256 of the ordered (column, type) pairs that a worker reads, label included."""
    fitted_digest: str
    inputs: InputSpec
    label: str
    """Name of the label column."""
    cutoffs: dict[SplitName, str]
    """Split → cutoff, ISO 8601 UTC. Rows whose label became known later are left out."""
    index: tuple[PartitionIndex, ...]
    splits: tuple[SplitIndex, ...]
    """Index file of each split: the rows that train, select and evaluate every model of this snapshot."""
    shards: tuple[Shard, ...]
    weight: str = ""
    """Name of the column with the weights of rows; empty if each row counts once."""

    @property
    def digest(self) -> str:
        """SHA-256, 64 hex digits, of everything except the folder."""
        return _sha256(self._facts())

    @property
    def excluded(self) -> dict[str, int]:
        """Reason → rows left out, over all partitions."""
        return dict(sum((self.excluded_of(split) for split in SPLITS), Counter[str]()))

    def excluded_of(self, split: SplitName) -> Counter[str]:
        """Return reason → rows left out of a split."""
        totals = Counter[str]()
        for partition in self.index:
            if partition.split == split:
                totals.update(partition.excluded)
        return totals

    def rows(self, split: SplitName) -> int:
        """Return the number of rows of a split."""
        return sum(shard.rows for shard in self.shards_of(split))

    def keys(self, split: SplitName) -> tuple[str, ...]:
        """Return the partition keys of a split, oldest first."""
        return tuple(partition.key for partition in self.index if partition.split == split)

    def shards_of(self, split: SplitName) -> tuple[Shard, ...]:
        """Return the shards of a split, in order."""
        return tuple(shard for shard in self.shards if shard.split == split)

    def index_of(self, split: SplitName) -> SplitIndex:
        """Return the index file of a split."""
        return next(one for one in self.splits if one.split == split)

    def map(self, shard: Shard) -> Rows:
        """Memory-map one shard; data is read only when it is used. `ShardChanged` if its shape or schema differs."""
        path = self.folder / shard.path
        archive = None if shard.blobs is None else self.folder / shard.blobs.path
        columns = len(self.inputs.numeric), len(self.inputs.categorical)
        try:
            rows = map_rows(path, *columns, self.schema_hash, archive)
        except (OSError, ValueError) as error:
            raise ShardChanged(f"shard {path} cannot be used: {error}. {REBUILD}") from error
        if len(rows) != shard.rows:
            raise ShardChanged(
                f"shard {path} has {len(rows)} rows, the manifest says {shard.rows}. {REBUILD}"
            )
        return rows

    def read(self, split: SplitName) -> Rows:
        """Return all rows of a split in memory; validation and holdout rows are in the order of the table, or, where
        rows form lists, list by list."""
        parts = [self.map(shard) for shard in self.shards_of(split)]
        if not parts:
            raise SnapshotError(f"the snapshot in {self.folder} has no {split} rows")
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def to_json(self) -> str:
        """Return the content of `snapshot.json`."""
        return json.dumps({"digest": self.digest, **self._facts()}, sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str, folder: Path) -> Self:
        """Inverse of `to_json`. Raises `ShardChanged` if the document is damaged or altered."""
        try:
            facts: dict[str, Any] = json.loads(text)
            digest = facts.pop("digest")
            facts.setdefault("weight", "")
            lacking = {one.name for one in dataclasses.fields(cls)} - {"folder"} - facts.keys()
            if lacking:
                raise ShardChanged(
                    f"{folder / MANIFEST} was written by another version of ml_assets: it lacks "
                    f"{', '.join(sorted(lacking))}. {REBUILD}"
                )
            values: dict[str, Any] = {
                **facts,
                "source": _source(**facts["source"]),
                "index": tuple(PartitionIndex(**partition) for partition in facts["index"]),
                "splits": tuple(SplitIndex(**split) for split in facts["splits"]),
                "shards": tuple(_shard(**shard) for shard in facts["shards"]),
                "inputs": _inputs(**facts["inputs"]),
            }
            snapshot = cls(folder=folder, **values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ShardChanged(f"{folder / MANIFEST} is damaged: {error}. {REBUILD}") from error
        if snapshot.digest != digest:
            raise ShardChanged(
                f"{folder / MANIFEST} was altered: it says digest {digest[:12]}…, its content gives "
                f"{snapshot.digest[:12]}…. {REBUILD}"
            )
        return snapshot

    def _facts(self) -> dict[str, Any]:
        facts = dataclasses.asdict(self)
        del facts["folder"]
        if not self.weight:
            del facts["weight"]
        for shard in facts["shards"]:
            if shard["lists"] is None:
                del shard["lists"]
        return facts


def _shard(blobs: dict[str, Any] | None, **facts: Any) -> Shard:
    return Shard(blobs=None if blobs is None else Archive(**blobs), **facts)


def _source(columns: list[str], **facts: Any) -> SourceValues:
    return SourceValues(columns=tuple(columns), **facts)


def _inputs(
    blob: str,
    vocabulary: int,
    level: float = 0.0,
    spread: float = 1.0,
    quantiles: Sequence[list[float]] = (),
    **columns: list[Any],
) -> InputSpec:
    return InputSpec(
        blob=blob,
        vocabulary=vocabulary,
        level=level,
        spread=spread,
        quantiles=tuple(map(tuple, quantiles)),
        **{name: tuple(values) for name, values in columns.items()},
    )


def open_snapshot(folder: Path, digest: str | None = None, columns: str = "") -> Snapshot:
    """Read the manifest in `folder`. With `digest`, refuse a snapshot of another digest (`ShardChanged`).

    With `columns`, a `schema_hash`, refuse a snapshot with other columns or types. Its digest differs, too, but this
    error says why. Shards are not read: call `verify` for the shards that you will use.
    """
    try:
        text = (folder / MANIFEST).read_text()
    except OSError as error:
        raise ShardChanged(f"no snapshot in {folder}: {error}. {REBUILD}") from error
    snapshot = Snapshot.from_json(text, folder)
    if columns and snapshot.schema_hash != columns:
        raise ShardChanged(
            f"{folder} holds columns of schema {snapshot.schema_hash[:12]}…, but the training was submitted "
            f"with {columns[:12]}…. {REBUILD}, then train again"
        )
    if digest is not None and snapshot.digest != digest:
        raise ShardChanged(
            f"{folder} holds snapshot {snapshot.digest[:12]}…, the job names {digest[:12]}…. {REBUILD}"
        )
    return snapshot


def verify(snapshot: Snapshot, shards: Sequence[Shard]) -> None:
    """Read the files of these shards and compare their SHA-256; `ShardChanged` names the first that differs."""
    for shard in shards:
        for file in shard.files:
            verify_file(snapshot.folder / file.path, file)


def verify_file(path: Path, expected: Shard | Archive | SplitIndex) -> None:
    """Read the file at `path` and compare its SHA-256 with `expected`. Raises `ShardChanged`."""
    try:
        found = file_sha256(path)
    except OSError as error:
        raise ShardChanged(f"shard {path} cannot be read: {error}. {REBUILD}") from error
    if found != expected.sha256:
        raise ShardChanged(
            f"shard {path} changed: SHA-256 {found[:12]}…, the manifest says {expected.sha256[:12]}…. "
            f"{REBUILD}"
        )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def schema_hash(inputs: InputSpec, label: str, weight: str = "") -> str:
    """Return the SHA-256 of the ordered (column, type) pairs that a worker reads."""
    return _sha256(
        [
            *([name, "float32"] for name in inputs.numeric),
            *(
                [name, f"category[{size}]"]
                for name, size in zip(inputs.categorical, inputs.cardinalities, strict=True)
            ),
            [label, f"class[{len(inputs.classes)}]" if inputs.classes else "float32"],
            *(
                [[inputs.blob, f"tokens[{inputs.vocabulary}]" if inputs.vocabulary else "blob"]]
                if inputs.blob
                else []
            ),
            *([[weight, "weight"]] if weight else []),
        ]
    )


REBUILD = "Materialize the training set again: it is rebuilt from the lake"


def _sha256(facts: Any) -> str:
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
