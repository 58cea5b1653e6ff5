"""Upload of one S3 object while it is written: a few parts of it are in memory, never all of it.

Here: S3's multipart upload as a file. Not here: retries, errors and credentials (`s3`).
"""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, cast

from resources.artifacts.protocol import ArtifactsUnavailable
from resources.chunks import ChunkedFile

PART = 16 << 20
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
        super().__init__(PART)
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
