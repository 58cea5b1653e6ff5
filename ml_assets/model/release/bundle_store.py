"""Store of bundles among the artifacts: each bundle once, under the digest of its content.

Here: the folder of bundles, their digests and the checks at reading. Not here: the content of a bundle (`bundle`),
the choice for production (`promotion`), the transfer of files (`resources.artifacts`).
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ml_assets.model.release.facts import BundleFacts
from ml_assets.model.release.runtime import (
    DECODE,
    FACTS,
    GOLDEN,
    GRAPH,
    LISTING,
    WEIGHTS,
    BundleAltered,
    listing_of,
    require_unaltered,
)
from resources.artifacts import ArtifactMissing, Artifacts
from resources.files import unfinished_folder

_MARKER = LISTING
"""File that is uploaded last: its presence marks a bundle as complete."""
MLFLOW_FILES = (
    "MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt", "input_example.json", "serving_input_example.json",
    "pyfunc.py", "runtime.py", "categories.py",
)  # fmt: skip
"""Files by which MLflow serves a bundle."""
FILES = (GRAPH, WEIGHTS, FACTS, GOLDEN, *MLFLOW_FILES, LISTING)
"""Files of a bundle; if rows have blobs, also `decode.py`. When MLflow loads a version, it adds a
`registered_model_meta`, which is not part of the bundle."""

BUNDLES = "bundles"
"""Name of the folder of all bundles among the artifacts."""


class BundleMissing(Exception):
    """The store has no bundle of this digest."""


class BundleDamaged(Exception):
    """A file of a stored bundle is gone or does not match the bundle's digest."""


@dataclass(frozen=True)
class Bundle:
    """One stored bundle."""

    digest: str
    """SHA-256 of its `files.sha256`, which has the SHA-256 of each other file: 64 hex digits."""
    folder: Path
    """Local folder to read from."""
    address: str
    """Address for MLflow and other machines: `file:///…` or `s3://…`."""

    @cached_property
    def facts(self) -> BundleFacts:
        """Content of `bundle.json`."""
        return BundleFacts.read(self.folder)

    @property
    def bytes(self) -> int:
        """Bytes of all files that the digest covers."""
        return sum((self.folder / name).stat().st_size for name in _files_of(self.folder))


class BundleStore:
    """All bundles. Safe for several processes: a killed process leaves no half-visible bundle.

    If bundles are on a server, every method may raise `ArtifactsError`.
    """

    def __init__(self, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        """Storage that holds the bundles, and the dossiers beside them."""

    @property
    def root(self) -> Path:
        """Local folder of bundles."""
        return self.artifacts.folder(BUNDLES)

    @property
    def address(self) -> str:
        """Address of the store for other machines. A bundle's address is this address, `/` and its digest."""
        return self.artifacts.address(BUNDLES)

    @contextmanager
    def incoming(self) -> Generator[Path]:
        """Yield an empty folder beside the bundles, to fill and pass to `add`; delete it after the block."""
        with unfinished_folder(self.root) as folder:
            yield folder

    def add(self, folder: Path) -> Bundle:
        """Move a folder from `incoming` into the store; an existing bundle stays unchanged.

        The bundle is always pushed: the process that added it first may have been killed before its push.
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
            if not _has(place, digest):  # that copy is incomplete or damaged, this one is complete
                for name in _files_of(folder):
                    (folder / name).replace(place / name)
        bundle = self.open(digest)
        self.artifacts.push(f"{BUNDLES}/{digest}", _files_of(place), last=_MARKER)
        return bundle

    def open(self, digest: str) -> Bundle:
        """Return the bundle of this digest after verifying its files. Raises `BundleMissing`, `BundleDamaged`."""
        name = f"{BUNDLES}/{digest}"
        folder = self.root / digest
        if not _has(folder, digest):
            try:
                # Repair an incomplete local copy from the server. Without a server, this raises `ArtifactMissing`.
                reads = self.artifacts.exists(name, DECODE)
                self.artifacts.pull(name, (*FILES, DECODE) if reads else FILES, last=_MARKER)
            except ArtifactMissing as missing:
                if not folder.is_dir():
                    raise BundleMissing(
                        f"no bundle {digest[:12]} under {self.address}: materialize the "
                        "model again, or copy the bundle from where it was made"
                    ) from missing
            found = digest_of(folder)
            if found != digest:
                raise BundleDamaged(
                    f"{folder} holds another bundle, {found[:12]}: move the folder away and materialize the "
                    "model again, which writes the same bundle"
                )
        return Bundle(digest, folder, self.artifacts.address(name))


def digest_in(source: str, bundles: str) -> str | None:
    """Return the digest of the bundle at `source`, an address directly below `bundles`; None for other addresses.

    `bundles` is the store's address. A folder of the same name elsewhere is not the bundle: anybody may write to it.
    """
    folder, _, name = source.rstrip("/").rpartition("/")
    is_ours = folder == bundles.rstrip("/") and re.fullmatch("[0-9a-f]{64}", name)
    return name if is_ours else None


def _files_of(folder: Path) -> tuple[str, ...]:
    return (*FILES, DECODE) if (folder / DECODE).is_file() else FILES


def _has(folder: Path, digest: str) -> bool:
    try:
        return digest_of(folder) == digest
    except BundleDamaged:
        return False


def seal(folder: Path) -> None:
    """Write the listing of a finished bundle. From then on, a change of any file is refused."""
    names = [name for name in _files_of(folder) if name != LISTING]
    (folder / LISTING).write_text(listing_of(folder, names))


def digest_of(folder: Path) -> str:
    """Return the digest of a bundle, the SHA-256 of its listing. `BundleDamaged` if a file is missing or differs."""
    if gone := [name for name in FILES if not (folder / name).is_file()]:
        raise BundleDamaged(
            f"{folder} lacks {', '.join(gone)}: move the folder away and materialize the model again"
        )
    try:
        return require_unaltered(folder)
    except BundleAltered as altered:
        raise BundleDamaged(
            f"{altered}, or move the folder away and materialize the model again, which writes the same bundle"
        ) from altered
