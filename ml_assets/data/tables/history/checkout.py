"""Copies of partitions at a commit, as Parquet files in a folder outside the lake."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_assets.data.tables.reader import TableReader
from resources.files import unfinished_folder

WRITTEN = "checkout.json"
"""File in such a folder: the commit, and SHA-256 and size of every file."""


class FolderTaken(Exception):
    """The folder exists."""


@dataclass(frozen=True, kw_only=True)
class WrittenOut:
    """Partitions that were written to a folder."""

    folder: Path
    commit: str
    files: int
    size: int
    """Bytes."""
    partitions: Mapping[str, int]
    """Table → number of its partitions."""


def write_out(reader: TableReader, wanted: Mapping[str, Sequence[str]], folder: Path) -> WrittenOut:
    """Write the data files of `wanted` (table → keys) at the reader's commit to `folder`, read-only.

    Paths below `folder` are those of the lake. The folder is complete or absent. Raises `FolderTaken`, and
    `PartitionMissing` for a key that the commit lacks.
    """
    if folder.exists():
        raise FolderTaken(f"{folder} exists: name a new folder")
    stats = {table: reader.files(table, keys) for table, keys in wanted.items()}
    written: dict[str, dict[str, object]] = {}
    with unfinished_folder(folder.parent) as filling:
        for files in stats.values():
            for path, source in reader.store.fetch(reader.commit_id, [one.path for one in files]).items():
                target = filling / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o444)
            written |= {one.path: {"sha256": one.sha256, "size": one.size} for one in files}
        _require_whole(filling, {path: str(one["sha256"]) for path, one in written.items()})
        facts = {"commit": reader.commit_id, "files": written}
        (filling / WRITTEN).write_text(json.dumps(facts, indent=1) + "\n")
        (filling / WRITTEN).chmod(0o444)
        filling.rename(folder)
    return WrittenOut(
        folder=folder,
        commit=reader.commit_id,
        files=len(written),
        size=sum(one.size for files in stats.values() for one in files),
        partitions={table: len(keys) for table, keys in wanted.items()},
    )


class CopyDamaged(Exception):
    """A copied file does not have the content that the lake recorded."""


def _require_whole(folder: Path, digests: Mapping[str, str]) -> None:
    for path, sha256 in digests.items():
        with (folder / path).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise CopyDamaged(f"the copy of {path} is damaged: check the disk under {folder.parent}")
