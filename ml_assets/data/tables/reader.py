"""Reader of tables at one commit. A listing answers most questions; data files are opened only for their rows.

A content digest needs only paths and SHA-256s, so one listing shows the changes of a whole year. `write_out` copies
partitions at a commit to a folder outside the lake.
"""

import hashlib
import json
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from ml_assets.data.tables import layout
from ml_assets.data.tables.manifest import ManifestUnreadable, PartitionManifest, content_digest
from ml_assets.data.validation.column_types import explain_columns
from resources.files import unfinished_folder
from resources.lake import ObjectStat, VersionedStore
from resources.ledger import Ledger
from resources.words import name_some


class PartitionMissing(Exception):
    """Requested partitions are not in the lake at this commit."""

    def __init__(self, table: str, keys: tuple[str, ...], commit_id: str) -> None:
        super().__init__(
            f"{table} has no partition {name_some(keys)} at commit {commit_id[:12]}: "
            f"materialize {'it' if len(keys) == 1 else 'them'} first"
        )
        self.table = table
        self.keys = keys


class ColumnsDiffer(Exception):
    """Partitions that are read together do not have the same columns."""

    def __init__(self, table: str, schemas: Mapping[str, Mapping[str, str]]) -> None:
        """`schemas`: key → column → type name, keys in the order of reading; at least two differ."""
        (before, first), *later = schemas.items()
        changed = next(key for key, schema in later if list(schema.items()) != list(first.items()))
        # The newest partition was made by today's declaration or by the nearest to it.
        newest = list(schemas[max(schemas)].items())
        odd = [key for key, schema in schemas.items() if list(schema.items()) != newest]
        super().__init__(
            f"{table} has other columns from {changed} on than on {before}: "
            f"{explain_columns(schemas[changed], first)}. "
            f"Partitions that are read together need the same columns: materialize {name_some(odd)} again"
        )
        self.table = table
        self.odd = tuple(odd)


@dataclass(frozen=True, slots=True)
class EarlierObject:
    """Object of an earlier version of a partition."""

    key: str
    until: datetime
    """Moment (UTC) at which other rows replaced this version."""
    former: str
    """Path at which main held it."""
    stat: ObjectStat
    """The object where the lake keeps it."""


_Version = tuple[datetime, dict[str, ObjectStat]]
"""Earlier version of a partition: the moment at which other rows replaced it, and former path → object."""


class TableReader:
    """Tables at one commit. A commit is immutable, so listings and manifests are read once and cached."""

    def __init__(self, store: VersionedStore, commit_id: str) -> None:
        self.store = store
        self.commit_id = commit_id
        self._files: dict[str, dict[str, list[ObjectStat]]] = {}
        self._digests: dict[str, dict[str, str]] = {}
        self._manifest_hashes: dict[str, dict[str, str]] = {}
        self._manifests: dict[tuple[str, str], PartitionManifest] = {}
        self._earlier: dict[str, list[EarlierObject]] = {}
        self._versions: dict[str, dict[str, list[_Version]]] = {}
        self._moments: dict[str, list[datetime]] = {}
        self._known: dict[tuple[str, int], TableReader] = {}
        self._places: dict[str, str] = {}
        """Path of an object → path at which the lake holds it, if that is another one."""

    @classmethod
    def at(cls, store: VersionedStore, ref: str = "main") -> "TableReader":
        """Return a reader at the commit that `ref` names now. It does not follow the branch."""
        return cls(store, store.resolve(ref))

    def narrowed(self, table: str, keys: Iterable[str]) -> "TableReader":
        """Return a reader of the same commit that knows only `keys` of `table`, at the cost of these keys alone."""
        found = TableReader(self.store, self.commit_id)
        files: dict[str, list[ObjectStat]] = {}
        manifests: dict[str, str] = {}
        for key in keys:
            path = layout.manifest_path(table, key)
            listed = self.store.list(self.commit_id, layout.partition_prefix(table, key))
            if parts := sorted(listed, key=_by_part):
                files[key] = parts
            manifests |= {
                one.path: one.sha256 for one in self.store.list(self.commit_id, path) if one.path == path
            }
        found._files[table], found._manifest_hashes[table] = files, manifests
        return found

    def earlier(self, table: str) -> Sequence[EarlierObject]:
        """Return the objects of the earlier versions of `table`'s partitions (`publish/earlier.py`)."""
        if table not in self._earlier:
            listed = self.store.list(self.commit_id, layout.earlier_prefix(table))
            self._earlier[table] = [EarlierObject(*layout.of_earlier(one.path), one) for one in listed]
        return self._earlier[table]

    def as_known(self, table: str, at: datetime, ledger: Ledger) -> "TableReader":
        """Return a reader of `table` alone that reads each partition as it was known at `at` (UTC).

        A partition that a later change replaced has its rows from before, unless `ledger` says that these are rejected:
        then those that replaced them. The same reader is returned for moments between which nothing changed; it is
        this one if nothing changed after `at`.
        """
        if table not in self._moments:
            self._versions[table] = self._not_rejected(table, ledger)
            self._moments[table] = sorted({one for some in self._versions[table].values() for one, _ in some})
        moments = self._moments[table]
        number = bisect_right(moments, at)
        if number == len(moments):
            return self
        if (table, number) not in self._known:
            chosen: dict[str, ObjectStat] = {}
            for versions in self._versions[table].values():
                place = bisect_right(versions, at, key=lambda one: one[0])
                if place < len(versions):
                    chosen |= versions[place][1]
            self._known[table, number] = self._with(table, chosen)
        return self._known[table, number]

    def _not_rejected(self, table: str, ledger: Ledger) -> "dict[str, list[_Version]]":
        """Return key → earlier versions by their time, without those whose newest verdict is a rejection."""
        found: dict[tuple[str, datetime], dict[str, ObjectStat]] = {}
        for one in self.earlier(table):
            found.setdefault((one.key, one.until), {})[one.former] = one.stat
        contents = {
            version: (
                version[0],
                content_digest(
                    (path, one.sha256)
                    for path, one in objects.items()
                    if not path.startswith(layout.ALL_MANIFESTS)
                ),
            )
            for version, objects in found.items()
        }
        verdicts = ledger.verdicts_of(table, contents.values()) if contents else {}
        kept: dict[str, list[_Version]] = {}
        for (key, until), objects in sorted(found.items()):
            row = verdicts.get(contents[key, until])
            if row is None or not row.blocks:
                kept.setdefault(key, []).append((until, objects))
        return kept

    def _with(self, table: str, earlier: Mapping[str, ObjectStat]) -> "TableReader":
        """Return a reader with other objects for the partitions of `table` of which `earlier` has any."""
        found = TableReader(self.store, self.commit_id)
        found._places = {former: one.path for former, one in earlier.items()}
        files: dict[str, list[ObjectStat]] = {}
        manifests: dict[str, str] = {}
        for former, one in earlier.items():
            if former.startswith(layout.ALL_MANIFESTS):
                manifests[former] = one.sha256
            else:
                files.setdefault(layout.key_of_part(former), []).append(replace(one, path=former))
        for some in files.values():
            some.sort(key=_by_part)
        here = self._partitions(table)
        changed = {key: some for key, some in files.items() if key in here}
        found._files[table] = here | changed
        # Most partitions are the same at all times: their digests are computed once.
        found._digests[table] = {
            **self.digests(table),
            **{key: _digest_of(some) for key, some in changed.items()},
        }
        found._manifest_hashes[table] = dict(self._all_manifests(table)) | manifests
        return found

    def tables(self) -> list[str]:
        """Return the ids of all tables that have a partition, sorted."""
        return [*self.described()]

    def described(self) -> dict[str, list[str]]:
        """Return table → keys of its partitions that have a manifest, both sorted. One listing for all tables."""
        found: dict[str, list[str]] = {}
        for one in self.store.list(self.commit_id, layout.ALL_MANIFESTS):
            if (place := layout.partition_of(one.path)) is not None:
                found.setdefault(place[0], []).append(place[1])
        return {table: sorted(found[table]) for table in sorted(found)}

    def inputs_read(self, partitions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Set[str]]:
        """Return (table, key) → its input tables, as the manifest names them, of those that have a readable manifest.

        Lists no table, and does not compare a manifest with its files.
        """
        paths = {layout.manifest_path(*one): one for one in partitions}
        found: dict[tuple[str, str], Set[str]] = {}
        for path, local in self.store.fetch(self.commit_id, list(paths)).items():
            with suppress(ManifestUnreadable):
                found[paths[path]] = PartitionManifest.from_json(local.read_bytes()).inputs.keys()
        return found

    def keys(self, table: str) -> list[str]:
        """Return the keys of the existing partitions, sorted."""
        return sorted(self._partitions(table))

    def digests(self, table: str) -> Mapping[str, str]:
        """Return key → content digest of the existing partitions, sorted by key."""
        if table not in self._digests:
            self._digests[table] = {
                key: _digest_of(files) for key, files in sorted(self._partitions(table).items())
            }
        return self._digests[table]

    def manifest(self, table: str, key: str) -> PartitionManifest:
        """Return the manifest of one partition. Raises `PartitionMissing`."""
        return self.manifests(table, [key])[key]

    def manifests(self, table: str, keys: Sequence[str]) -> dict[str, PartitionManifest]:
        """Return key → manifest, in the order of `keys`. `PartitionMissing` names the keys that do not exist."""
        self._require(table, keys)
        unread = [k for k in keys if (table, k) not in self._manifests]
        paths = {layout.manifest_path(table, k): k for k in unread}
        for path, local in self._fetch(list(paths)).items():
            self._manifests[table, paths[path]] = PartitionManifest.from_json(local.read_bytes())
        return {k: self._manifests[table, k] for k in keys}

    def checked_manifests(
        self, table: str, keys: Sequence[str]
    ) -> tuple[dict[str, PartitionManifest], dict[str, str]]:
        """Return key → manifest that matches its files, and key → fault for the others. All `keys` must exist."""
        wrong: dict[str, str] = {}
        readable = [key for key in keys if layout.manifest_path(table, key) in self.object_hashes(table, key)]
        try:
            found = self.manifests(table, readable)
        except ManifestUnreadable:
            found: dict[str, PartitionManifest] = {}
            for key in readable:
                try:
                    found[key] = self.manifest(table, key)
                except ManifestUnreadable as error:
                    wrong[key] = f"its {error}"
        for key in keys:
            if key not in found:
                wrong.setdefault(key, "its manifest is gone")
            elif found[key].content_digest != self.digests(table)[key]:
                wrong[key] = "its manifest lists other files than its folder holds"
        return {key: one for key, one in found.items() if key not in wrong}, wrong

    def scan(self, table: str, keys: Sequence[str]) -> pl.LazyFrame:
        """Return the rows of `keys`, in that order; within a partition in file order.

        The frame reads immutable local files in place. Raises `PartitionMissing`, and `ColumnsDiffer` if the
        partitions do not all have the same columns of the same types.
        """
        files = self.local_files(table, keys)
        return pl.scan_parquet([file for some in files.values() for file in some], glob=False)

    def local_files(self, table: str, keys: Sequence[str]) -> dict[str, tuple[Path, ...]]:
        """Return key → immutable local files with its rows, in order. Raises as `scan` does."""
        if not keys:
            raise ValueError(f"no partitions of {table} to scan: name at least one")
        self._require(table, keys)
        self._require_same_columns(table, keys)
        partitions = self._partitions(table)
        local = self._fetch([f.path for k in keys for f in partitions[k]])
        return {k: tuple(local[f.path] for f in partitions[k]) for k in keys}

    def heights(self, table: str, keys: Sequence[str]) -> dict[str, int]:
        """Return key → number of rows, in the order of `keys`. Raises `PartitionMissing` and `ManifestUnreadable`."""
        return {key: one.rows for key, one in self.manifests(table, keys).items()}

    def input_digests(self, table: str, keys: Iterable[str]) -> dict[str, str]:
        """Return key → content digest, as the record of a derived table's inputs; empty if a partition is missing."""
        digests = self.digests(table)
        return {key: digests.get(key, "") for key in keys}

    def read_digests(self, table: str, keys: Iterable[str], columns: Sequence[str]) -> dict[str, str]:
        """Return key → digest of the values of `columns`, as `PartitionManifest.digest_of`; empty if it is missing.

        Raises `ManifestUnreadable`.
        """
        digests = dict.fromkeys(keys, "")
        present = [key for key in digests if key in self._partitions(table)]
        return digests | {key: one.digest_of(columns) for key, one in self.manifests(table, present).items()}

    def values_digests(self, table: str, keys: Sequence[str], columns: Iterable[str]) -> dict[str, str]:
        """Return key → digest of names, types and values of `columns` (`PartitionManifest.digest_of_values`)."""
        names = tuple(columns)
        return {key: one.digest_of_values(names) for key, one in self.manifests(table, keys).items()}

    def objects_digest(self, table: str, keys: Iterable[str]) -> str:
        """Return the SHA-256 of all objects of `keys`, manifests included: equal for commits that hold the same
        partitions, made in the same way from the same rows. 64 hex digits."""
        found = {path: sha256 for key in keys for path, sha256 in self.object_hashes(table, key).items()}
        lines = (f"{path}\0{sha256}\n" for path, sha256 in sorted(found.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def behind(self, read: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str, str], ...]:
        """Return (table, key, content digest), sorted, of all partitions behind those in `read`, at any depth.

        `read` is table → keys. Missing partitions contribute nothing.
        """
        found: set[tuple[str, str, str]] = set()
        for table, keys in read.items():
            present = [key for key in keys if key in self._partitions(table)]
            for manifest in self.manifests(table, present).values():
                found.update(manifest.behind)
                found.update(
                    (source, key, digest)
                    for source, made_from in manifest.inputs.items()
                    for key, digest in made_from.items()
                    if digest
                )
        return tuple(sorted(found))

    def object_hashes(self, table: str, key: str) -> dict[str, str]:
        """Return path → SHA-256 of all objects of a partition, its manifest included; empty if it does not exist."""
        path = layout.manifest_path(table, key)
        manifest = self._all_manifests(table).get(path)
        files = {stat.path: stat.sha256 for stat in self._partitions(table).get(key, ())}
        return files if manifest is None else files | {path: manifest}

    def files(self, table: str, keys: Sequence[str]) -> list[ObjectStat]:
        """Return the data files of `keys`, in that order. `PartitionMissing` names the keys that do not exist."""
        self._require(table, keys)
        partitions = self._partitions(table)
        return [f for k in keys for f in partitions[k]]

    def _all_manifests(self, table: str) -> Mapping[str, str]:
        """Return path → SHA-256 of the manifests of `table`."""
        if table not in self._manifest_hashes:
            listed = self.store.list(self.commit_id, layout.manifest_prefix(table))
            self._manifest_hashes[table] = {stat.path: stat.sha256 for stat in listed}
        return self._manifest_hashes[table]

    def _fetch(self, paths: Sequence[str]) -> dict[str, Path]:
        """Return path → local file. A path of an earlier version is fetched from where the lake keeps it."""
        held = {self._places.get(path, path): path for path in paths}
        return {held[place]: local for place, local in self.store.fetch(self.commit_id, list(held)).items()}

    def _require(self, table: str, keys: Iterable[str]) -> None:
        partitions = self._partitions(table)
        lacking = tuple(k for k in keys if k not in partitions)
        if lacking:
            raise PartitionMissing(table, lacking, self.commit_id)

    def _require_same_columns(self, table: str, keys: Sequence[str]) -> None:
        # Compare manifests: polars would notice only while it reads, and would name a file instead of the partition.
        described = [k for k in keys if layout.manifest_path(table, k) in self.object_hashes(table, k)]
        found = self.manifests(table, described)
        if len({manifest.schema_hash for manifest in found.values()}) > 1:
            raise ColumnsDiffer(table, {key: manifest.schema for key, manifest in found.items()})

    def _partitions(self, table: str) -> dict[str, list[ObjectStat]]:
        if table not in self._files:
            found: dict[str, list[ObjectStat]] = {}
            for stat in self.store.list(self.commit_id, layout.data_prefix(table)):
                found.setdefault(layout.key_of_part(stat.path), []).append(stat)
            for files in found.values():
                # In a listing by name, part-10 comes before part-2.
                files.sort(key=_by_part)
            self._files[table] = found
        return self._files[table]


def _digest_of(files: Iterable[ObjectStat]) -> str:
    return content_digest((one.path, one.sha256) for one in files)


def _by_part(stat: ObjectStat) -> tuple[int, str]:
    return len(stat.path), stat.path


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
