"""Addresses in the embedded MLflow of a home that was moved: by `mv`, as a restored backup, or to artifacts on S3.

MLflow stores absolute addresses: of each version's bundle, and of the files of each experiment and run. Its API changes
none of them, so they are found and rewritten in its database. Here: those that the platform itself gave to MLflow.
Not here: addresses at an MLflow server (they lie in its own database), and everything that finds its files by name.
"""

import re
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ml_assets.model.release.bundle_store import BUNDLES, BundleDamaged, BundleMissing, BundleStore
from resources.addresses import Address
from resources.tracking.mlflow_client import embedded_file
from resources.tracking.tracker import FILES

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
