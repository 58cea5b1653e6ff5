"""HTTP/1.1 of a server, with the answer to bytes that are no HTTP.

Such bytes reach no route, so this answer is made here. uvicorn's own is plain text without an id.
"""

import uuid

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ml_assets.serving.answers import ErrorAnswer


class JsonErrorProtocol(HttpToolsProtocol):
    """uvicorn's protocol, whose errors are JSON as those of all routes are."""

    def send_400_response(self, msg: str) -> None:
        """Answer with status 400 and close the connection. `msg` is uvicorn's reason."""
        error = ErrorAnswer(message=f"{msg} Send HTTP/1.1, without TLS", request_id=uuid.uuid4().hex)
        body = error.model_dump_json().encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"x-request-id: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head % (error.request_id.encode(), len(body)) + body)
        self.transport.close()
