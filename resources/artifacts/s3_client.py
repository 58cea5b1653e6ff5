"""Client of S3 whose uploads end: sent bytes have a bound, too, not only the wait for an answer.

aiohttp's timeouts begin when a request is sent. A frozen server whose connection stays open takes no bytes, and does
not say "100 Continue", so an upload to it would wait for ever. Imported late: s3fs takes half a second.
"""

# pyright: reportMissingTypeStubs=false, reportUntypedBaseClass=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# (s3fs and fsspec have no annotations)

import asyncio
import io
from typing import Any

from botocore.exceptions import ReadTimeoutError
from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem

SLOWEST = 128 << 10
"""Bytes a second below which an upload is given up."""


class BoundedS3(S3FileSystem):
    """S3 of s3fs. A request with a body takes at most `seconds`, and those that the body needs at the slowest speed."""

    def __init__(self, *, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    async def _call_s3(self, method: str, *arguments: Any, **more: Any) -> Any:
        call = super()._call_s3(method, *arguments, **more)
        # Others may take minutes while the server sends signs of life, as for the end of a large upload.
        if (body := more.get("Body")) is None:
            return await call
        seconds = self._seconds + _size(body) / SLOWEST
        try:
            return await asyncio.wait_for(call, seconds)
        except TimeoutError:
            raise ReadTimeoutError(
                endpoint_url=self.endpoint_url or "AWS", error=f"{method} in {seconds:g} s"
            ) from None

    call_s3 = sync_wrapper(_call_s3)


def _size(body: Any) -> int:
    if isinstance(body, bytes | bytearray | memoryview):
        return len(body)
    place = body.tell()
    size = body.seek(0, io.SEEK_END)
    body.seek(place)
    return size - place
