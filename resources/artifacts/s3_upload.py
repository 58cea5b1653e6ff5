"""One object of S3 that is sent while it is written: a few parts of it are in memory, never the whole.

Here: S3's multipart upload as a file. Not here: patience, errors and credentials (`s3`).
"""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, cast

from resources.artifacts.protocol import ArtifactsUnavailable
from resources.chunks import ChunkedFile

PART = 16 << 20
"""Bytes. S3 takes 10,000 parts: 160 GB an object."""
IN_FLIGHT = 2
"""Parts on their way at once, while the next one fills; the client keeps a copy of each."""

Call = Callable[..., Any]
"""`(method of S3, **arguments)`, which tries again where that may help. Raises `ArtifactsError`."""


@contextmanager
def uploading(call: Call, bucket: str, key: str) -> Generator[IO[bytes]]:
    """An object to be written in order, visible when the block ends, never where it raises."""
    with ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="upload") as pool:
        upload = _Upload(call, pool, bucket, key)
        try:
            yield cast(IO[bytes], upload)
            upload.finish()
        except ArtifactsUnavailable:
            raise  # asking a server that is away to forget the parts would only take as long again
        except BaseException:
            upload.abort()
            raise


def abort_uploads(call: Call, bucket: str, prefix: str) -> None:
    """Have the server forget parts of objects below `prefix` whose processes were killed."""
    for upload in call("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", []):
        call("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


class _Upload(ChunkedFile):
    def __init__(self, call: Call, pool: ThreadPoolExecutor, bucket: str, key: str) -> None:
        super().__init__(PART)
        self._call, self._pool = call, pool
        self._object = {"Bucket": bucket, "Key": key}
        self._sent: list[Future[dict[str, Any]]] = []
        self._room = threading.BoundedSemaphore(IN_FLIGHT)

    def finish(self) -> None:
        """Make the object visible. What is no larger than a part goes as one request."""
        if not self._sent:
            self._call("put_object", **self._object, Body=bytes(self._taken()))
            return
        if self._chunk:
            self._pass_on(self._taken())
        parts = [sent.result() for sent in self._sent]
        self._call("complete_multipart_upload", **self._object, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        """Have the server forget the parts it has."""
        if self._sent:
            self._pool.shutdown(cancel_futures=True)
            self._call("abort_multipart_upload", **self._object)

    def _pass_on(self, chunk: bytearray) -> None:
        if not self._sent:
            began = self._call("create_multipart_upload", **self._object)
            self._object["UploadId"] = began["UploadId"]
        self._room.acquire()  # until then the writer waits: no more than that is in memory
        for sent in self._sent:
            if sent.done():
                sent.result()  # one that failed ends it now
        self._sent.append(self._pool.submit(self._send_part, len(self._sent) + 1, bytes(chunk)))

    def _send_part(self, number: int, part: bytes) -> dict[str, Any]:
        try:
            answer = self._call("upload_part", **self._object, PartNumber=number, Body=part)
            return {"PartNumber": number, "ETag": answer["ETag"]}
        finally:
            self._room.release()
