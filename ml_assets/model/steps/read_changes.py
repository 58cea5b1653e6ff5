"""Changes of a model's window since its last training: the columns, and which step reads them.

For people, in `ml-assets plan`. Compares manifests and reads no rows. Not here: staleness of partitions, which compares
them with what they were made from (`tables.guard`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ml_assets.data.tables.manifest import ManifestUnreadable
from ml_assets.data.tables.reader import PartitionMissing, TableReader
from ml_assets.model.steps.spec import PipelineSpec
from resources.lake import ObjectNotFound, RefNotFound

ReadBy = Literal["training", "evaluation", "nothing"]


@dataclass(frozen=True, kw_only=True)
class ColumnChange:
    """Columns that changed in the same partitions and have the same reader."""

    keys: tuple[str, ...]
    """Partitions, oldest first."""
    columns: tuple[str, ...]
    """Sorted."""
    read_by: ReadBy
    """The first step that reads them: `evaluation` means that only the evaluation does."""


def changes_since(
    spec: PipelineSpec,
    reader: TableReader,
    commit: str,
    keys: Sequence[str],
    champion: Collection[str] = (),
) -> Sequence[ColumnChange]:
    """Return the columns of the partitions `keys` that differ between `commit` and the reader's commit.

    `champion` are the columns that the version in production reads: an evaluation reads them, too. Returns none if the
    lake no longer holds the partitions at `commit`, or holds them in an earlier form.
    """
    table = spec.features.table
    earlier = TableReader(reader.store, commit)
    try:
        differ = [
            key for key in keys if earlier.object_hashes(table, key) != reader.object_hashes(table, key)
        ]
        before, now = earlier.manifests(table, differ), reader.manifests(table, differ)
    except (RefNotFound, ObjectNotFound, PartitionMissing, ManifestUnreadable):
        return ()
    evaluated = {*spec.evaluation.columns, *champion}
    found: dict[tuple[ReadBy, tuple[str, ...]], list[str]] = {}
    for key in differ:
        was, is_now = before[key], now[key]
        names = sorted({*was.schema, *is_now.schema})
        changed = [name for name in names if was.digest_of_values([name]) != is_now.digest_of_values([name])]
        by_reader: dict[ReadBy, list[str]] = {}
        for name in changed:
            by_reader.setdefault(_reader_of(spec, evaluated, name), []).append(name)
        for read_by, columns in by_reader.items():
            found.setdefault((read_by, tuple(columns)), []).append(key)
    return [
        ColumnChange(keys=tuple(where), columns=columns, read_by=read_by)
        for (read_by, columns), where in sorted(found.items(), key=lambda one: (_ORDER[one[0][0]], one[1]))
    ]


_ORDER: Mapping[ReadBy, int] = {"training": 0, "evaluation": 1, "nothing": 2}


def _reader_of(spec: PipelineSpec, evaluated: Collection[str], column: str) -> ReadBy:
    if column in spec.training_columns:
        return "training"
    return "evaluation" if column in evaluated else "nothing"
