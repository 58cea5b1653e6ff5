"""Artifacts on S3, by s3fs: a local folder to work in, a bucket as the durable copy.

Here: uploads, downloads, retries, and the server's answers as our errors; the objects of a bucket as files of a folder;
the multipart upload of an object while it is written, of which a few parts are in memory. Not here: the protocol
(`resources.artifacts`) and credentials, which botocore finds itself (`AWS_*`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (fsspec and botocore are not typed)

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from resources.addresses import Address
from resources.artifacts import (
    ArtifactMissing,
    ArtifactsError,
    ArtifactsRefused,
    ArtifactsUnavailable,
    chosen_files,
    missing,
    relative,
    remove_local,
)
from resources.disk import is_disk_full, room_in
from resources.files import ChunkedFile, unfinished_folder, whole_file
from resources.retry import patiently

PART = 64 << 20
"""Bytes per part of a large upload. A file below twice this size is sent in one request."""

Facts = TypeVar("Facts")


def files_below(prefix: str, found: Mapping[str, Facts]) -> dict[str, Facts]:
    """Return path in the folder at `prefix` → facts, from `found`, bucket key → facts.

    Raise `ArtifactsRefused` for a key that leads out of the folder. Anybody who may write to a bucket can choose such a
    key.
    """
    return {
        relative(key.removeprefix(prefix)): facts
        for key, facts in found.items()
        if key.startswith(prefix) and not key.endswith("/")
    }


def is_same(path: Path, facts: dict[str, Any] | None) -> bool:
    """True if the object has the content of the file. If a server computes ETags differently, the result is False and
    the file is transferred again."""
    if facts is None or not path.is_file() or path.stat().st_size != facts["size"]:
        return False
    return str(facts.get("ETag", "")).strip('"') == _etag(path)


def _etag(path: Path) -> str:
    """Return S3's ETag: the MD5 of a file sent in one request, else the MD5 of its parts' MD5s, and their number."""
    if path.stat().st_size < 2 * PART:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    parts: list[bytes] = []
    with path.open("rb") as file:
        while chunk := file.read(PART):
            parts.append(hashlib.md5(chunk, usedforsecurity=False).digest())
    whole = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return f"{whole}-{len(parts)}"


def is_in(key: str, file: str) -> bool:
    """True if the path `key` is `file`, or lies below it."""
    return key == file or key.startswith(f"{file}/")


UPLOAD_PART = 16 << 20
"""Bytes per part. S3 takes 10,000 parts, so an object has at most 160 GB."""
IN_FLIGHT = 2
"""Parts that are sent at the same time, while the next part fills. The client keeps a copy of each."""

Call = Callable[..., Any]
"""Call `(method of S3, **arguments)`, with retries. Raises `ArtifactsError`."""


@contextmanager
def uploading(call: Call, bucket: str, key: str) -> Generator[IO[bytes]]:
    """Open an object for sequential writing. It becomes visible when the block ends, and never if the block raises."""
    with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="upload") as pool:
        upload = _Upload(call, pool, bucket, key)
        try:
            yield cast(IO[bytes], upload)
            upload.finish()
        except ArtifactsUnavailable:
            raise  # the server is away: a request to delete the parts would only wait as long again
        except BaseException:
            upload.abort()
            raise


def abort_uploads(call: Call, bucket: str, prefix: str) -> None:
    """Delete the uploaded parts of unfinished objects below `prefix`, which killed processes left."""
    for upload in call("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", []):
        call("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


class _Upload(ChunkedFile):
    def __init__(self, call: Call, pool: ThreadPoolExecutor, bucket: str, key: str) -> None:
        super().__init__(UPLOAD_PART)
        self._call, self._pool = call, pool
        self._object = {"Bucket": bucket, "Key": key}
        self._sent: list[Future[dict[str, Any]]] = []
        self._room = threading.BoundedSemaphore(IN_FLIGHT)

    def finish(self) -> None:
        """Complete the object, so that it becomes visible. An object smaller than a part is sent in one request."""
        if not self._sent:
            self._call("put_object", **self._object, Body=bytes(self._taken()))
            return
        if self._chunk:
            self._pass_on(self._taken())
        parts = [sent.result() for sent in self._sent]
        self._call("complete_multipart_upload", **self._object, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        """Delete the parts that the server has."""
        if self._sent:
            self._pool.shutdown(cancel_futures=True)
            self._call("abort_multipart_upload", **self._object)

    def _pass_on(self, chunk: bytearray) -> None:
        if not self._sent:
            began = self._call("create_multipart_upload", **self._object)
            self._object["UploadId"] = began["UploadId"]
        self._room.acquire()  # the writer waits until a part was sent: this bounds the memory
        for sent in self._sent:
            if sent.done():
                sent.result()  # raise the failure of a part now
        self._sent.append(self._pool.submit(self._send_part, len(self._sent) + 1, bytes(chunk)))

    def _send_part(self, number: int, part: bytes) -> dict[str, Any]:
        try:
            answer = self._call("upload_part", **self._object, PartNumber=number, Body=part)
            return {"PartNumber": number, "ETag": answer["ETag"]}
        finally:
            self._room.release()


THREADS = 8
"""Files that are sent or fetched at the same time."""
_FEW = 2
"""Up to this number of files, each is looked up by itself. For more, one listing of the whole folder costs less."""
CONNECT_SECONDS = 5
READ_SECONDS = 30
"""Timeout of one request without an answer, in seconds."""
_BUSY = (errno.EBUSY, errno.EREMOTEIO, errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ETIMEDOUT)
"""Errors that s3fs raises for 409, 500, 503 and for broken connections."""
_FULL = "InsufficientStorage"

Answer = TypeVar("Answer")


class RemoteArtifacts:
    """Folders under `url` (`s3://bucket/prefix`), with local folders under `cache`. Safe for threads and forks.

    A request that fails for a passing reason is retried with growing pauses for `patience_seconds`, then raises
    `ArtifactsUnavailable`. S3 writes an object completely or not at all, so a killed push leaves no half object.
    """

    def __init__(
        self, url: str, cache: Path, endpoint_url: str | None = None, patience_seconds: float = 60.0
    ) -> None:
        self.url = url.rstrip("/")
        self.cache = cache
        self._endpoint = endpoint_url
        self._patience = patience_seconds
        self._opened: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[type["RemoteArtifacts"], tuple[str, Path, str | None, float]]:
        """Travel to another process without the client, which works in one process."""
        return type(self), (self.url, self.cache, self._endpoint, self._patience)

    def __repr__(self) -> str:
        return f"RemoteArtifacts({self.url!r}, {str(self.cache)!r})"

    def folder(self, name: str) -> Path:
        """See `Artifacts`."""
        place = self.cache / relative(name)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def push(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> str:
        """See `Artifacts`."""
        place = self.folder(name)
        chosen = chosen_files(place, files, last)
        there = self._listing(name, chosen)
        wanted = [file for file in chosen if not is_same(place / file, there.get(file))]

        def send(file: str) -> None:
            self._patiently(
                lambda: self._fs.put_file(str(place / file), self._key(name, file), chunksize=PART)
            )

        _each(send, [file for file in wanted if file != last])
        if last in wanted:
            send(last)
        return self.address(name)

    def pull(self, name: str, files: Sequence[str] | None = None, *, last: str | None = None) -> Path:
        """See `Artifacts`."""
        named = None if files is None else [*files, *([last] if last else [])]
        there = self._listing(name, named)
        if not there and named is None:
            raise missing(name, self.address(name))
        chosen = self._chosen(name, there, files, last)
        place = self.folder(name)
        wanted = [file for file in chosen if not is_same(place / file, there[file])]
        if not wanted:
            return place
        with unfinished_folder(self.cache) as incoming:

            def fetch(file: str) -> None:
                target = place / file
                part = incoming / hashlib.sha256(file.encode()).hexdigest()
                self._patiently(lambda: self._fs.get_file(self._key(name, file), str(part), chunksize=PART))
                target.parent.mkdir(parents=True, exist_ok=True)
                part.replace(target)

            _each(fetch, [file for file in wanted if file != last])
            if last in wanted:
                fetch(last)
        return place

    def fetch(self, name: str, file: str, target: Path) -> None:
        """See `Artifacts`."""
        key = self._key(name, relative(file))
        try:
            with whole_file(target) as part:
                self._patiently(lambda: self._fs.get_file(key, str(part), chunksize=PART))
        except ArtifactMissing as error:
            raise missing(name, f"{self.address(name)}/{file}") from error

    def address(self, name: str) -> str:
        """See `Artifacts`."""
        return f"{self.url}/{relative(name)}"

    def exists(self, name: str, file: str | None = None) -> bool:
        """See `Artifacts`."""
        there = self._listing(name, None if file is None else [relative(file)])
        return bool(there) if file is None else file in there

    def files(self, name: str) -> dict[str, int]:
        """See `Artifacts`."""
        return {file: int(facts["size"]) for file, facts in sorted(self._listing(name).items())}

    def states(self, name: str) -> dict[str, str]:
        """See `Artifacts`."""
        return {
            file: f"{facts.get('ETag', '')} {facts['size']}"
            for file, facts in sorted(self._listing(name).items())
        }

    def changed(self, name: str) -> dict[str, datetime]:
        """See `Artifacts`."""
        return {file: facts["LastModified"] for file, facts in sorted(self._listing(name).items())}

    def remove(self, name: str, files: Sequence[str] | None = None) -> None:
        """See `Artifacts`."""
        there = self._listing(name)
        doomed = [
            self._key(name, file) for file in there if files is None or any(is_in(file, one) for one in files)
        ]
        if doomed:
            self._patiently(lambda: self._fs.rm(doomed))
        remove_local(self.cache / relative(name), files)

    def create(self, name: str, file: str) -> AbstractContextManager[IO[bytes]]:
        """See `Artifacts`. Holds a few parts of the file in memory, of 16 MiB each."""
        bucket, _, key = self._key(name, relative(file)).partition("/")
        return uploading(self._call, bucket, key)

    def abort_uploads(self, name: str) -> None:
        """See `Artifacts`."""
        bucket, _, prefix = self._key(name, "").partition("/")
        abort_uploads(self._call, bucket, prefix)

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._patiently(lambda: self._fs.call_s3(method, **arguments))

    @property
    def _fs(self) -> Any:
        # A client does not work after a fork, so each process makes its own.
        if self._opened is None or self._opened[0] != os.getpid():
            from resources.artifacts.s3_client import BoundedS3

            config: dict[str, Any] = {
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": READ_SECONDS,
                "retries": {"mode": "standard", "max_attempts": 2},
                "signature_version": "s3v4",
            }
            if self._endpoint is not None:
                # Servers other than AWS rarely have a host name per bucket.
                config["s3"] = {"addressing_style": "path"}
            client = BoundedS3(
                seconds=2 * (CONNECT_SECONDS + READ_SECONDS),  # botocore asks twice
                endpoint_url=self._endpoint,
                config_kwargs=config,
                use_listings_cache=False,
                skip_instance_cache=True,
            )
            client.retries = 1  # `_patiently` retries: the five tries of s3fs would multiply every timeout
            self._opened = (os.getpid(), client)
        return self._opened[1]

    def _key(self, name: str, file: str) -> str:
        return f"{self.address(name)}/{file}".removeprefix("s3://")

    def _listing(self, name: str, files: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return path in the folder → the server's facts, of `files` at least; without `files`, of all files.

        Look up one or two files without a listing of the folder. The folder of a training has a file for each worker
        and each checkpoint, so a listing costs more the longer it trains.
        """
        prefix = self._key(name, "")
        wanted = [""] if files is None or len(files) > _FEW else list(map(relative, files))
        found: dict[str, dict[str, Any]] = {}
        for file in wanted:
            # A listing tells what is missing also to keys of a few prefixes, to which AWS answers 403 for an object.
            bucket, _, key = f"{prefix}{file}".partition("/")
            found |= self._patiently(
                lambda bucket=bucket, key=key: self._fs.find(bucket, prefix=key, detail=True, withdirs=False)
            )
        return files_below(prefix, found)

    def _chosen(
        self, name: str, there: dict[str, dict[str, Any]], files: Sequence[str] | None, last: str | None
    ) -> list[str]:
        chosen: dict[str, None] = {}
        for file in [None] if files is None else [relative(file) for file in files]:
            mine = [key for key in there if file is None or is_in(key, file)]
            if not mine:
                raise missing(name, f"{self.address(name)}/{file}")
            chosen.update(dict.fromkeys(mine))
        if last is not None:
            if last not in there:
                raise missing(name, f"{self.address(name)}/{last}")
            chosen.pop(last, None)
            chosen[last] = None
        return list(chosen)

    def _patiently(self, call: Callable[[], Answer]) -> Answer:
        def translated() -> Answer:
            try:
                return call()
            except Exception as error:
                raise self._translated(error) from error

        return patiently(translated, _may_pass, lambda _: self._patience, first_pause=0.2, longest_pause=5.0)

    def _translated(self, error: Exception) -> ArtifactsError:
        """Return our error for an error of s3fs, botocore or aiohttp. Raise an unknown error unchanged."""
        import aiohttp
        import botocore.exceptions as boto

        server = Address(self._endpoint) if self._endpoint else "AWS"
        code = _code(error)
        if code == _FULL:
            return ArtifactsUnavailable(
                f"the disk under S3 at {server} has no space left for {self.url}: free space there, then run it again; "
                "files that were stored before are complete"
            )
        if is_disk_full(error):
            return ArtifactsUnavailable(
                f"the disk of {self.cache} is full: {room_in(self.cache)}. Free space, or move it with ML_ASSETS_HOME; "
                "then run it again"
            )
        if code == "NoSuchBucket":
            return ArtifactsRefused(
                f"the bucket of {self.url} does not exist at {server}: create it, or correct ML_ASSETS_ARTIFACTS_URL"
            )
        if isinstance(error, FileNotFoundError):
            if error.filename and not Path(error.filename).is_relative_to(self.cache):
                return ArtifactsRefused(
                    f"no credentials for {self.url}: the file {error.filename} does not exist. Mount the token of the "
                    "pod's service account there, or correct AWS_WEB_IDENTITY_TOKEN_FILE"
                )
            return ArtifactMissing(f"{self.url}: {error}: another process deleted it; create it again")
        if code == "RequestTimeTooSkewed":
            return ArtifactsRefused(
                f"{server} denied access to {self.url}, because the clock of this machine says "
                f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, and the server's differs by more than 15 minutes: set the "
                "wrong clock right; ml-assets doctor compares the clocks"
            )
        if isinstance(error, PermissionError | boto.NoCredentialsError | boto.PartialCredentialsError):
            return ArtifactsRefused(
                f"{server} denied access to {self.url} ({code or type(error).__name__}: {error}): check "
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the rights of this account in the bucket; without keys, "
                "AWS_ROLE_ARN, and that the role trusts this service account"
            )
        is_passing = isinstance(
            error,
            boto.HTTPClientError
            | boto.EndpointConnectionError
            | aiohttp.ClientError
            | TimeoutError
            | ConnectionError,
        ) or (isinstance(error, OSError) and error.errno in _BUSY)
        if is_passing:
            return ArtifactsUnavailable(
                f"S3 at {server} did not answer for {self.url} within {self._patience:g} s "
                f"({type(error).__name__}: {error}): check that the server runs and has space, and "
                "ML_ASSETS_S3_ENDPOINT_URL; then run it again, files that arrived are not sent twice"
            )
        if isinstance(error, OSError | boto.BotoCoreError | boto.ClientError):
            return ArtifactsRefused(
                f"S3 at {server} refused {self.url} ({code or type(error).__name__}): {error}"
            )
        raise error


def _each(work: Callable[[str], None], files: list[str]) -> None:
    """Call `work` on all files, up to `THREADS` at once. Raise the first failure after all calls have ended."""
    if len(files) <= 1:
        for file in files:
            work(file)
        return
    with ThreadPoolExecutor(min(THREADS, len(files)), thread_name_prefix="artifacts") as pool:
        for done in [pool.submit(work, file) for file in files]:
            done.result()


def _code(error: BaseException) -> str:
    """Return S3's code of the error; empty if the error is not from the server."""
    return str(getattr(error.__cause__, "response", {}).get("Error", {}).get("Code", ""))


def _may_pass(error: BaseException) -> bool:
    """True if a retry may help: the server is away or overloaded. A full disk stays full."""
    cause = error.__cause__ or error
    if not isinstance(error, ArtifactsUnavailable) or _code(cause) == _FULL:
        return False
    return not is_disk_full(cause)
