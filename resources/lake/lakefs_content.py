"""Bytes of objects, between a lakeFS server and the local cache.

Here: uploads and downloads, through the server's API or straight to its storage by presigned addresses; the local
copies, by SHA-256: read in place, shared by all processes, bounded in size. Not here: listing objects
(`lakefs_listing.py`), commits and branches (`lakefs.py`), writing files (`objects.py`).

Both ways to upload give equal content the same checksum, digest, size and content type. The cache may exceed its bound
for a day. A file stays for `kept` seconds after its path was returned, because polars opens a file only when it
collects, long after it received the path.
"""

import contextlib
import hashlib
import os
import re
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from urllib3 import PoolManager, Timeout
from urllib3.exceptions import HTTPError

from resources.addresses import Address
from resources.files import locked, whole_file
from resources.lake import LakeError, LakeUnavailable, ObjectStat
from resources.lake.lakefs_api import CONNECTIONS, LakeFSApi
from resources.lake.lakefs_listing import DIGEST, Entry
from resources.lake.objects import ObjectFiles
from resources.threads import side_by_side

_LIMIT = 50 << 30
"""Bytes above which the cache deletes the least recently used copies."""
_KEPT = 24 * 3600.0
"""Seconds for which a copy stays after its last use, even if the cache is full."""
_TRIM_EVERY = 16
"""A process trims the cache after it added 1/16 of the bound, and at its start if the last trim is a day old."""


class ContentCache:
    """Files named by the SHA-256 of their content. Safe for any number of threads and processes."""

    def __init__(self, root: Path, *, limit: int = _LIMIT, kept: float = _KEPT) -> None:
        """Use the folder `root`; create it if it is missing. `limit` in bytes, `kept` in seconds."""
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._limit = limit
        self._kept = kept
        self._files = ObjectFiles(root, synced=False)
        self._files.purge()
        self._digests = root / "digests"
        self._digests.mkdir(exist_ok=True)
        self._added = 0
        self._counting = threading.Lock()
        if _age(root / "trimmed") > _KEPT:
            self.trim()

    def keep(self, source: Path | bytes | BinaryIO) -> tuple[str, int]:
        """Copy content into the cache; return its SHA-256 and its size in bytes. Reads a stream to its end."""
        sha256, size = self._files.write(source)
        with self._counting:
            self._added += size
            is_due = self._added > self._limit / _TRIM_EVERY
            if is_due:
                self._added = 0
        if is_due:
            self.trim()
        return sha256, size

    def find(self, contents: Iterable[tuple[str, int]]) -> dict[str, Path]:
        """Return SHA-256 → file for those (SHA-256, size) that are cached. Each file stays for `kept` seconds."""
        found: dict[str, Path] = {}
        with locked(self.root / "lock", shared=True):
            for sha256, size in contents:
                if self._files.is_whole(sha256, size, touch=True):
                    found[sha256] = self._files.path(sha256)
        return found

    def digest_of(self, address: str) -> str | None:
        """Return the SHA-256 that `remember_digest` stored for an address, or None."""
        try:
            return self._note(address).read_text()
        except FileNotFoundError:
            return None

    def remember_digest(self, address: str, sha256: str) -> None:
        """Store the SHA-256 of the content at a server's address. The content of that address must never change."""
        with whole_file(self._note(address)) as writing:
            writing.write_text(sha256)

    def trim(self) -> None:
        """Delete the least recently used copies, if the bound is exceeded, until a tenth of it is free."""
        copies = sorted(_copies(self.root / "objects"))
        surplus = sum(size for _, size, _ in copies) - self._limit
        if surplus > 0:
            surplus += self._limit // 10
            with locked(self.root / "lock"):
                for _, size, copy in copies:
                    # Another process may have used this copy since the listing. None can while we hold the lock.
                    if surplus <= 0 or _age(copy) < self._kept:
                        break
                    copy.unlink(missing_ok=True)
                    surplus -= size
        (self.root / "trimmed").touch()

    def _note(self, address: str) -> Path:
        return self._digests / hashlib.sha256(address.encode()).hexdigest()


def _copies(folder: Path) -> Generator[tuple[float, int, Path], None, None]:
    """Yield (time of last use, bytes, file) of every copy."""
    for copy in folder.glob("*/*"):
        # Another process may trim at the same time.
        with contextlib.suppress(FileNotFoundError):
            stat = copy.stat()
            yield stat.st_mtime, stat.st_size, copy


def _age(file: Path) -> float:
    """Return the seconds since the last change of a file, or infinity if it is missing."""
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


PRESIGN_FROM = 8 << 20
"""Bytes from which content goes straight to the storage. Smaller content goes through the server: a presigned upload
takes three requests instead of one."""
_OCTETS = "application/octet-stream"
_CHUNK = 1 << 18
"""Bytes per write to the socket."""
_CODE = re.compile(rb"<Code>(\w+)</Code>")


class Content:
    """Uploads and downloads of one repository. Safe for any number of threads, and after a fork."""

    def __init__(
        self, api: LakeFSApi, cache: ContentCache, *, presign_from: int | None = PRESIGN_FROM
    ) -> None:
        """Presign content of `presign_from` bytes and more. None sends all content through the server."""
        self._api = api
        self._cache = cache
        self._presign_from = presign_from
        self._opening = threading.Lock()
        self._opened: tuple[int, Any] | None = None

    def upload(self, branch: str, path: str, source: Path | bytes) -> ObjectStat:
        """Upload one object; return its digest and size. Idempotent.

        Copies the content to the cache first, so a source that changes meanwhile cannot get a wrong digest, and a
        later read needs no download.
        """
        sha256, size = self._cache.keep(source)

        def attempt() -> None:
            file = self._cache.find([(sha256, size)]).get(sha256)
            if file is None:
                self._cache.keep(source)
                raise LakeUnavailable(
                    f"{path} was deleted from the cache {self._cache.root} during its upload."
                )
            send = self._send_to_storage if self._presigns(size) else self._send
            send(branch, path, file, size, sha256)

        self._api.patiently(attempt)
        return ObjectStat(path, sha256, size)

    def files(self, ref: str, entries: Mapping[str, Entry]) -> dict[str, Path]:
        """Return path → local file of every entry. Download and check each file that the cache lacks."""
        digests = self.digests(ref, entries)
        wanted = {digests[path]: entry for path, entry in entries.items()}
        here = self._cache.find((sha256, entry.size) for sha256, entry in wanted.items())
        lacking = [(sha256, entry) for sha256, entry in wanted.items() if sha256 not in here]
        here |= side_by_side(lambda one: (one[0], self._fetch(ref, one[1], one[0])), lacking)
        return {path: here[digests[path]] for path in entries}

    def digests(self, ref: str, entries: Mapping[str, Entry]) -> dict[str, str]:
        """Return path → SHA-256. An object that others wrote without a digest is downloaded once, and its digest stored
        in the cache."""
        known: dict[str, str] = {}
        foreign: list[Entry] = []
        for path, entry in entries.items():
            digest = entry.sha256 or self._cache.digest_of(entry.address)
            if digest is None:
                foreign.append(entry)
            else:
                known[path] = digest
        return known | dict(side_by_side(lambda entry: (entry.path, self._hash(ref, entry)), foreign))

    def _hash(self, ref: str, entry: Entry) -> str:
        sha256, _ = self._api.patiently(lambda: self._download(ref, entry))
        self._cache.remember_digest(entry.address, sha256)
        return sha256

    def _fetch(self, ref: str, entry: Entry, sha256: str) -> Path:
        def attempt() -> Path:
            received, size = self._download(ref, entry)
            if (received, size) != (sha256, entry.size):
                raise LakeError(
                    f"{entry.path} at {ref} should have SHA-256 {sha256} and {entry.size} bytes, the server sent "
                    f"{received} and {size}: its storage is damaged, or the object was written with a wrong "
                    f"{DIGEST} in its metadata. Write it again on a branch, and merge that branch."
                )
            file = self._cache.find([(sha256, size)]).get(sha256)
            if file is None:
                raise LakeUnavailable(
                    f"{entry.path} was deleted from the cache {self._cache.root} during its download."
                )
            return file

        return self._api.patiently(attempt)

    def _download(self, ref: str, entry: Entry) -> tuple[str, int]:
        """Download the content to the cache; return the SHA-256 and the size in bytes of the received content."""
        headers: dict[str, str] = {}
        if self._presigns(entry.size):
            stats = self._api.ask_once("objects_api", "stat_object", ref, entry.path, presign=True)
            url = str(stats.physical_address)
        else:
            url = self._objects_url("refs", ref, entry.path)
            headers = self._api.headers()
        with self._answer("GET", url, headers) as stream:
            return self._cache.keep(stream)

    def _send(self, branch: str, path: str, file: Path, size: int, sha256: str) -> None:
        url = self._objects_url("branches", branch, path)
        own = {"Content-Type": _OCTETS, "Content-Length": str(size), f"X-Lakefs-Meta-{DIGEST}": sha256}
        with file.open("rb") as body, self._answer("POST", url, self._api.headers() | own, body):
            pass

    def _send_to_storage(self, branch: str, path: str, file: Path, size: int, sha256: str) -> None:
        place = self._api.ask_once("staging_api", "get_physical_address", branch, path, presign=True)
        length = {"Content-Length": str(size)}
        with file.open("rb") as body, self._answer("PUT", str(place.presigned_url), length, body):
            pass
        with file.open("rb") as content:
            # MD5, which the server computes for uploads through its API.
            checksum = hashlib.file_digest(content, "md5").hexdigest()
        metadata = self._api.model(
            "StagingMetadata",
            staging=place,
            checksum=checksum,
            size_bytes=size,
            user_metadata={DIGEST: sha256},
            content_type=_OCTETS,
        )
        self._api.ask_once("staging_api", "link_physical_address", branch, path, metadata)

    @contextmanager
    def _answer(
        self, method: str, url: str, headers: Mapping[str, str], body: BinaryIO | None = None
    ) -> Generator[BinaryIO, None, None]:
        """Send a request and yield the body of its answer, to be read inside the block. Raise if it is an error."""
        connect, silence = self._api.limits()
        try:
            response = self._connections().request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=Timeout(connect=connect, read=silence),
                preload_content=False,
                decode_content=False,
            )
            try:
                if not 200 <= response.status < 300:
                    raise self._refused(url, response.status, response.read(10_000))
                yield cast(BinaryIO, response)
                response.drain_conn()
            finally:
                response.release_conn()
        except HTTPError as error:
            raise self._api.unreachable(url, error) from None

    def _refused(self, url: str, status: int, body: bytes) -> LakeError:
        if url.startswith(self._api.url):
            return self._api.refused(status, body)
        # Quote the code only: the rest of the storage's answer may repeat credentials.
        code = _CODE.search(body)
        return LakeUnavailable(
            f"The storage {Address(url).server} answered {status} {code[1].decode() if code else ''} to a presigned "
            "request: it may be full or starting, or the address expired. See its log, then repeat the operation."
        )

    def _objects_url(self, kind: str, ref: str, path: str) -> str:
        repository = f"{self._api.url}/api/v1/repositories/{self._api.repository}"
        return f"{repository}/{kind}/{quote(ref, safe='')}/objects?path={quote(path, safe='')}"

    def _presigns(self, size: int) -> bool:
        return self._presign_from is not None and size >= self._presign_from and self._storage_presigns

    @cached_property
    def _storage_presigns(self) -> bool:
        return bool(self._api.ask_server("config_api", "get_config").storage_config.pre_sign_support)

    def _connections(self) -> Any:
        # A forked process needs its own connections: two processes would read each other's answers.
        with self._opening:
            if self._opened is None or self._opened[0] != os.getpid():
                pool = PoolManager(maxsize=CONNECTIONS, retries=False, blocksize=_CHUNK)
                self._opened = (os.getpid(), pool)
            return self._opened[1]
