"""Store of bundles: each once, under the digest of its content, in the artifacts' home.

Here: the folder of bundles, its digests and the checks at reading. Not here: what is inside a bundle
(`bundle`), which one is in production (`promotion`), how files travel (`resources.artifacts`).
"""

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ml_assets.release.facts import BundleFacts
from ml_assets.release.mlflow_files import MLFLOW_FILES, MLMODEL
from ml_assets.release.runtime import DECODE, FACTS, GOLDEN, GRAPH
from resources.artifacts import ArtifactMissing, Artifacts

WEIGHTS = "model.safetensors"
_MARKER = MLMODEL
"""Arrives last: with it a bundle is whole."""
FILES = (GRAPH, WEIGHTS, FACTS, GOLDEN, *MLFLOW_FILES)
"""Everything a bundle consists of, and `decode.py` where rows have samples. MLflow leaves a `registered_model_meta`
beside them when it loads a version; it is no part of the bundle."""

BUNDLES = "bundles"
"""Name of the folder of all bundles among the artifacts."""
_INCOMING = ".incoming-"
_FORGOTTEN_AFTER = 86_400.0
"""Seconds after which an unfinished bundle is taken for one whose maker was ended."""


class BundleMissing(Exception):
    """The store has no bundle of this digest."""


class BundleDamaged(Exception):
    """A file of a stored bundle is gone or has other content than its digest says."""


@dataclass(frozen=True)
class Bundle:
    """One stored bundle."""

    digest: str
    """SHA-256 over path and SHA-256 of each of its files, 64 hex digits."""
    folder: Path
    """Local, to read from."""
    address: str
    """Address for others and MLflow: `file:///…` or `s3://…`."""

    @cached_property
    def facts(self) -> BundleFacts:
        """Read `bundle.json`."""
        return BundleFacts.read(self.folder)


class BundleStore:
    """All bundles; safe for several processes, a killed one leaves nothing half visible.

    Every method may raise `ArtifactsError` where bundles live on a server.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    @property
    def root(self) -> Path:
        """The local folder of bundles."""
        return self._artifacts.folder(BUNDLES)

    @property
    def address(self) -> str:
        """Address of all bundles for others; that of a bundle is its digest below it."""
        return self._artifacts.address(BUNDLES)

    @contextmanager
    def incoming(self) -> Generator[Path]:
        """An empty folder beside the bundles, to be filled and given to `add`; gone afterwards."""
        root = self.root
        self._purge(root)
        folder = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, folder: Path) -> Bundle:
        """Take a folder made by `incoming` into the store; a bundle that is there already is left alone.

        It is pushed in any case: the process that made it first may have been ended before that.
        """
        digest = digest_of(folder)
        place = self.root / digest
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o755)
        try:
            folder.rename(place)
        except OSError:
            if not place.is_dir():
                raise
            if not _has(place, digest):  # a copy that was cut off, or spoiled: this one is whole
                for name in _files_of(folder):
                    (folder / name).replace(place / name)
        bundle = self.open(digest)
        self._artifacts.push(f"{BUNDLES}/{digest}", _files_of(place), last=_MARKER)
        return bundle

    def open(self, digest: str) -> Bundle:
        """The bundle of this digest, its files verified. Raises `BundleMissing`, `BundleDamaged`."""
        name = f"{BUNDLES}/{digest}"
        folder = self.root / digest
        if not _has(folder, digest):
            try:
                # Mends a local copy that is not whole; where the local one is the only one, finds out.
                reads = self._artifacts.exists(name, DECODE)
                self._artifacts.pull(name, (*FILES, DECODE) if reads else FILES, last=_MARKER)
            except ArtifactMissing as missing:
                if not folder.is_dir():
                    raise BundleMissing(
                        f"no bundle {digest[:12]} under {self.address}: materialize the "
                        "model again, or copy the bundle from where it was made"
                    ) from missing
            found = digest_of(folder)
            if found != digest:
                raise BundleDamaged(
                    f"the files in {folder} have digest {found[:12]}: move the folder away and materialize the "
                    "model again, which writes the same bundle"
                )
        return Bundle(digest, folder, self._artifacts.address(name))

    def _purge(self, root: Path) -> None:
        for folder in root.glob(f"{_INCOMING}*"):
            try:
                is_forgotten = time.time() - folder.stat().st_mtime > _FORGOTTEN_AFTER
            except FileNotFoundError:  # another process finished it meanwhile
                continue
            if is_forgotten:
                shutil.rmtree(folder, ignore_errors=True)


def digest_in(source: str, bundles: str) -> str | None:
    """Digest of the bundle whose `Bundle.address` is `source`, below the store's address `bundles`; None for any other.

    A folder of the same name elsewhere is not the bundle: anybody may write anything into it.
    """
    folder, _, name = source.rstrip("/").rpartition("/")
    is_ours = folder == bundles.rstrip("/") and re.fullmatch("[0-9a-f]{64}", name)
    return name if is_ours else None


def _files_of(folder: Path) -> tuple[str, ...]:
    return (*FILES, DECODE) if (folder / DECODE).is_file() else FILES


def _has(folder: Path, digest: str) -> bool:
    return all((folder / name).is_file() for name in FILES) and digest_of(folder) == digest


def digest_of(folder: Path) -> str:
    """SHA-256 over the sorted lines `<path> <sha256>` of its files. Raises `BundleDamaged` if one lacks."""
    lines: list[str] = []
    for name in sorted(_files_of(folder)):
        path = folder / name
        if not path.is_file():
            raise BundleDamaged(
                f"{folder} lacks {name}: move the folder away and materialize the model again"
            )
        with path.open("rb") as file:
            lines.append(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
