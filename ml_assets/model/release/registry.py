"""Registered models: versions in MLflow's registry, each pointing to a stored bundle.

MLflow stores absolute addresses: of each version's bundle, and of the files of each experiment and run. Its API changes
none of them. If a home was moved (by `mv`, as a restored backup, or to artifacts on S3), `readdress` rewrites in the
database of the embedded MLflow those that the platform gave it. Not here: addresses at an MLflow server, the decision
to register or promote (tags and alias only show it), and bundles (`bundle`, `bundle_store`).
"""

import re
import sqlite3
from collections.abc import Container, Generator, Iterable, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_assets.model.release.bundle_store import (
    BUNDLES,
    Bundle,
    BundleDamaged,
    BundleMissing,
    BundleStore,
    digest_in,
)
from ml_assets.model.release.embedded_registry import EmbeddedRegistry, StoredVersion
from resources.addresses import Address
from resources.tracking.mlflow_client import TrackerRefused, embedded_file, open_client, reaching, write
from resources.tracking.tracker import FILES

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


class VersionMissing(Exception):
    """The registry has no such version."""


class NumberReused(VersionMissing):
    """The registry has another bundle under a number than the one that the ledger decided about."""


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """One version of a model."""

    model: str
    number: int
    """MLflow's number: 1, 2, 3 …"""
    bundle_digest: str
    """Digest from the version's source, an address in the bundle store. MLflow lets nobody change a source; tags can be
    edited."""
    run_id: str
    """MLflow run that trained it."""
    tags: Mapping[str, str]
    """All tags, for people. No decision uses them."""

    @property
    def semantic(self) -> str:
        """Semantic version from its tag."""
        return self.tags.get("semantic_version", "no semantic version")

    @property
    def named(self) -> str:
        """Model, number and semantic version, for people."""
        return f"{self.model} {self.number} ({self.semantic})"


_LARGEST_NUMBER = 2**31 - 1
"""Largest number of a version that MLflow's databases hold."""


class Registry:
    """MLflow's model registry at `uri`. Cheap to create; every method may raise `TrackerUnavailable`.

    Only versions that point into the bundle store count. Versions made by hand or by another installation are ignored.
    An embedded registry is read, and its aliases and tags are set, in its file: only `add` imports mlflow then.
    """

    def __init__(self, uri: str, bundles: str) -> None:
        """Store `uri`, the tracker's address, and `bundles`, which is `BundleStore.address`."""
        self.uri = uri
        self.bundles = bundles

    def add(
        self, bundle: Bundle, *, run_id: str, tags: Mapping[str, str], taken: Container[int] = ()
    ) -> RegisteredVersion:
        """Return the version of this bundle; create it if there is none. An existing version keeps its tags.

        `taken` are numbers of other bundles: a registry that counts from 1 again gives none of them to this bundle.
        Also sets the tag `model_version` of the MLflow run.
        """
        model = bundle.facts.lineage.model

        def of_bundle() -> list[RegisteredVersion]:
            found = (one for one in self.versions(model) if one.bundle_digest == bundle.digest)
            return [one for one in found if one.number not in taken]

        with reaching(self.uri):
            self._ensure_model(model)
        mine = of_bundle()
        while not mine:
            made = write(
                self.uri,
                lambda: self._client.create_model_version(
                    model, bundle.address, run_id=run_id, tags=dict(tags)
                ),
            )
            # Two processes may create a version at the same time. Both then use the lower number.
            mine = of_bundle()
            if not mine or mine[0].number != int(made.version):
                with reaching(self.uri):
                    self._client.delete_model_version(model, made.version)
        number = mine[0].number
        write(self.uri, lambda: self._client.set_tag(run_id, "model_version", f"{model}/{number}"))
        return mine[0]

    def models(self) -> list[str]:
        """Return the names of the models with a version that points to a bundle, sorted."""
        # "_" is a wildcard: MLflow's filters have no quoted quotes.
        below = self.bundles.rstrip("/").replace("'", "_")
        file = self._file
        stored = self._search(f"source_path LIKE '{below}/%'") if file is None else file.versions()
        return sorted({one.model for one in self._registered(stored)})

    def versions(self, model: str) -> list[RegisteredVersion]:
        """Return all versions of `model` that point to bundles, oldest first; empty if nobody registered it."""
        file = self._file
        stored = self._search(f"name = '{model}'") if file is None else file.versions(model)
        return sorted(self._registered(stored), key=lambda one: one.number)

    def newest_number(self, model: str) -> int | None:
        """Return the highest number of a version of `model`, whatever it points to; None if nobody registered it."""
        if (file := self._file) is not None:
            return max((one.number for one in file.versions(model)), default=None)
        order = ["version_number DESC"]
        with reaching(self.uri):
            page = self._client.search_model_versions(f"name = '{model}'", max_results=1, order_by=order)
        return int(page[0].version) if page else None

    def _search(self, which: str) -> Generator[StoredVersion]:
        token = None
        while True:
            with reaching(self.uri):
                page = self._client.search_model_versions(which, page_token=token)
            yield from map(stored_version, page)
            token = page.token
            if not token:
                return

    def _get(self, model: str, number: int) -> StoredVersion:
        """Return one version, whatever it points to. Raises `TrackerRefused` if MLflow has none."""
        if (file := self._file) is None:
            with reaching(self.uri):
                return stored_version(self._client.get_model_version(model, str(number)))
        found = next((one for one in file.versions(model) if one.number == number), None)
        if found is None:
            raise TrackerRefused(f"MLflow at {file.path} has no version {number} of {model}")
        return found

    def version(self, model: str, number: int) -> RegisteredVersion:
        """Return one version. Raises `VersionMissing`."""
        if number > _LARGEST_NUMBER:  # MLflow's database would fail
            raise VersionMissing(f"{model} has no version with a number that long")
        try:
            found = registered(self._get(model, number), self.bundles)
        except TrackerRefused as refusal:
            known = [f"{one.number} ({one.semantic})" for one in self.versions(model)]
            raise VersionMissing(
                f"{model} has no version {number}; it has {', '.join(known) or 'none yet'}"
            ) from refusal
        if found is None:
            raise VersionMissing(
                f"{model} version {number} points to no bundle under {self.bundles}: it was created in MLflow "
                f"by hand, or the home was moved. If it was: ml-assets home move"
            )
        return found

    def is_of_moved_home(self, model: str, number: int, digest: str) -> bool:
        """Return True if a version has the bundle `digest` at an address outside the bundle store: the home was moved.

        No decision uses such a version, because anybody may write to another address.
        """
        source = self._get(model, number).source
        return digest_in(source, self.bundles) is None and source.rstrip("/").endswith(f"/{BUNDLES}/{digest}")

    def aliased(self, model: str, alias: str) -> int | None:
        """Return the number of the version with `alias`; None if no version has it."""
        if (file := self._file) is not None:
            return file.alias(model, alias)
        with reaching(self.uri):
            found = self._client.search_registered_models(f"name = '{model}'")
        aliases: Mapping[str, str] = found[0].aliases if found else {}
        return int(aliases[alias]) if alias in aliases else None

    def set_alias(self, model: str, alias: str, number: int | None) -> None:
        """Move `alias` to a version; delete it if `number` is None."""
        if (file := self._file) is not None:
            file.set_alias(model, alias, number)
            return
        with reaching(self.uri):
            if number is None:
                self._client.delete_registered_model_alias(model, alias)
            else:
                self._client.set_registered_model_alias(model, alias, str(number))

    def tag(self, model: str, number: int, name: str, value: str) -> None:
        if (file := self._file) is not None:
            file.tag(model, number, name, value)
            return
        write(self.uri, lambda: self._client.set_model_version_tag(model, str(number), name, value))

    @property
    def _file(self) -> EmbeddedRegistry | None:
        path = embedded_file(self.uri)
        return None if path is None else EmbeddedRegistry(path)

    def _registered(self, stored: Iterable[StoredVersion]) -> list[RegisteredVersion]:
        return [found for one in stored if (found := registered(one, self.bundles)) is not None]

    @property
    def _client(self) -> Any:
        return open_client(self.uri)

    def _ensure_model(self, model: str) -> None:
        if not self._client.search_registered_models(f"name = '{model}'"):
            try:
                with reaching(self.uri):
                    self._client.create_registered_model(model)
            except TrackerRefused:  # another process created it meanwhile
                self._client.get_registered_model(model)


def stored_version(version: "ModelVersion") -> StoredVersion:
    """Return a version of MLflow's client as plain values."""
    return StoredVersion(
        model=version.name,
        number=int(version.version),
        source=version.source or "",
        run_id=version.run_id or "",
        tags=dict(version.tags),
    )


def registered(version: StoredVersion, bundles: str) -> RegisteredVersion | None:
    """Return one of MLflow's versions; None if its source is no bundle of the store at `bundles`."""
    digest = digest_in(version.source, bundles)
    if digest is None:
        return None
    return RegisteredVersion(
        model=version.model,
        number=version.number,
        bundle_digest=digest,
        run_id=version.run_id,
        tags=version.tags,
    )


_OF_EXPERIMENT = (("runs", "artifact_uri"), ("logged_models", "artifact_location"))
"""Tables and columns with addresses below that of their experiment."""
_WAIT_SECONDS = 30.0


class NoEmbeddedTracker(Exception):
    """MLflow is a server, whose addresses nobody but its administrator can change."""


@dataclass(frozen=True)
class Readdressed:
    """Changes that `readdress` made."""

    experiments: int
    versions: int
    missing: tuple[str, ...]
    """Versions that kept their address, `MODEL/NUMBER`, because the bundle store does not have their bundle."""


def moved_from(tracking_uri: Address, bundles: BundleStore) -> list[str]:
    """Return the addresses of artifacts, other than today's, that MLflow has; none if it is a server or has no file.

    Reads alone. Raises `sqlite3.Error`.
    """
    path = embedded_file(tracking_uri.reveal())
    if path is None or not path.exists():
        return []
    here = _before(bundles.address, f"/{BUNDLES}")
    with _opened(path) as database:
        found = {_before(location, f"/{FILES}/{name}") for _, name, location in _experiments(database)}
        found |= {_before(source, f"/{BUNDLES}/{digest}") for *_, source, digest in _versions(database)}
    return sorted(one for one in found if one != here)


def readdress(tracking_uri: Address, bundles: BundleStore) -> Readdressed:
    """Give MLflow the addresses of today, in one transaction.

    A version gets that of the bundle with its digest, if the store has it, whole. Numbers, aliases and tags stay.
    Raises `NoEmbeddedTracker`, `sqlite3.Error`, and `ArtifactsError`.
    """
    path = embedded_file(tracking_uri.reveal())
    if path is None:
        raise NoEmbeddedTracker(
            f"MLflow is the server {tracking_uri}, whose addresses do not move with a home. If bundles lie elsewhere "
            "now, materialize the newest partition of each model, which registers the same bundle at its new address"
        )
    experiments = versions = 0
    missing: list[str] = []
    if not path.exists():
        return Readdressed(0, 0, ())
    with _opened(path) as database:
        moved = {digest for *_, source, digest in _versions(database) if source != _address(bundles, digest)}
    # Before the transaction: a bundle is hashed, and fetched if it is on S3.
    whole = {digest for digest in moved if _is_whole(bundles, digest)}
    with _opened(path) as database, database:
        database.execute("BEGIN IMMEDIATE")
        for number, name, location in _experiments(database):
            right = bundles.artifacts.address(f"{FILES}/{name}")
            if location == right:
                continue
            database.execute(
                "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (right, number)
            )
            for table, column in _OF_EXPERIMENT:
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE experiment_id = ? AND substr({column}, 1, ?) = ?",
                    (right, len(location) + 1, number, len(location) + 1, f"{location}/"),
                )
            experiments += 1
        for model, number, source, digest in _versions(database):
            right = _address(bundles, digest)
            if source == right:
                continue
            if digest not in whole:
                missing.append(f"{model}/{number}")
                continue
            database.execute(
                "UPDATE model_versions SET source = ?, storage_location = ? WHERE name = ? AND version = ?",
                (right, right, model, number),
            )
            versions += 1
    return Readdressed(experiments, versions, tuple(missing))


def _address(bundles: BundleStore, digest: str) -> str:
    return f"{bundles.address}/{digest}"


def _is_whole(bundles: BundleStore, digest: str) -> bool:
    try:
        bundles.open(digest)
    except (BundleMissing, BundleDamaged):
        return False
    return True


@contextmanager
def _opened(path: Path) -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)) as database:
        yield database


def _experiments(database: sqlite3.Connection) -> list[tuple[int, str, str]]:
    """Return id, name and address of each experiment whose files the platform placed."""
    rows = database.execute("SELECT experiment_id, name, artifact_location FROM experiments").fetchall()
    return [
        (number, name, place) for number, name, place in rows if (place or "").endswith(f"/{FILES}/{name}")
    ]


def _versions(database: sqlite3.Connection) -> list[tuple[str, int, str, str]]:
    """Return model, number, address and digest of each version that points to a bundle, in this store or another."""
    rows = database.execute("SELECT name, version, source FROM model_versions").fetchall()
    ends = re.compile(f"/{BUNDLES}/([0-9a-f]{{64}})/?$")
    return [
        (model, number, source.rstrip("/"), found[1])
        for model, number, source in rows
        if (found := ends.search(source or ""))
    ]


def _before(address: str, ending: str) -> str:
    return address.rstrip("/").removesuffix(ending)
