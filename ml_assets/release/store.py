"""Where bundles lie: each once, under the digest of its content.

Here: the folder of bundles, its digests and the checks at reading. Not here: what is inside a bundle
(`bundle`) and which one is in production (`promotion`).
"""

import hashlib
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ml_assets.release.facts import BundleFacts
from ml_assets.release.runtime import FACTS, GOLDEN, GRAPH

WEIGHTS = "model.safetensors"
FILES = (GRAPH, WEIGHTS, FACTS, GOLDEN, "MLmodel", "pyfunc.py", "runtime.py", "requirements.txt")
"""Everything a bundle consists of. MLflow leaves a `registered_model_meta` beside them when it loads a
version; it is no part of the bundle."""

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

    @cached_property
    def facts(self) -> BundleFacts:
        """What `bundle.json` says."""
        return BundleFacts.read(self.folder)


class BundleStore:
    """A folder of bundles; safe for several processes, a killed one leaves nothing half visible."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def incoming(self) -> Generator[Path]:
        """An empty folder beside the bundles, to be filled and given to `add`; gone afterwards."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._sweep()
        folder = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self.root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, folder: Path) -> Bundle:
        """Take a folder made by `incoming` into the store; a bundle that is there already is left alone."""
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
        return self.open(digest)

    def open(self, digest: str) -> Bundle:
        """The bundle of this digest, its files verified. Raises `BundleMissing`, `BundleDamaged`."""
        folder = self.root / digest
        if not folder.is_dir():
            raise BundleMissing(
                f"no bundle {digest[:12]} under {self.root}: materialize the model again, or copy the bundle "
                "from where it was made"
            )
        found = digest_of(folder)
        if found != digest:
            raise BundleDamaged(
                f"the files in {folder} have digest {found[:12]}: move the folder away and materialize the "
                "model again, which writes the same bundle"
            )
        return Bundle(digest, folder)

    def _sweep(self) -> None:
        for folder in self.root.glob(f"{_INCOMING}*"):
            try:
                is_forgotten = time.time() - folder.stat().st_mtime > _FORGOTTEN_AFTER
            except FileNotFoundError:  # another process finished it meanwhile
                continue
            if is_forgotten:
                shutil.rmtree(folder, ignore_errors=True)


def digest_of(folder: Path) -> str:
    """SHA-256 over the sorted lines `<path> <sha256>` of `FILES`. Raises `BundleDamaged` if one lacks."""
    lines: list[str] = []
    for name in sorted(FILES):
        path = folder / name
        if not path.is_file():
            raise BundleDamaged(
                f"{folder} lacks {name}: move the folder away and materialize the model again"
            )
        with path.open("rb") as file:
            lines.append(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()
