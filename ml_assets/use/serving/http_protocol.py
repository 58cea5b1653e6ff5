"""HTTP/1.1 of a server, with the answers to connections and bytes that reach no route.

They are made here; uvicorn's own are plain text without an id.
"""

import uuid

from ml_assets.use.serving.answers import ErrorAnswer
from resources.web.bounded_uvicorn import BoundedProtocol


class JsonErrorProtocol(BoundedProtocol):
    """uvicorn's protocol within bounds, whose errors are JSON as those of all routes are."""

    def refusal(self, status: int, why: str) -> tuple[bytes, bytes]:
        """Return headers and body of an error."""
        said = f"{why} Send HTTP/1.1, without TLS" if status == 400 else why
        error = ErrorAnswer(message=said, request_id=uuid.uuid4().hex)
        headers = f"content-type: application/json\r\nx-request-id: {error.request_id}\r\n"
        return headers.encode(), error.model_dump_json().encode()
