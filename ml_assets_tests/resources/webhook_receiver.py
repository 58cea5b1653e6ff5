"""A webhook on loopback, which a test can have refuse, close the connection without an answer, or never end one."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ml_assets_tests.resources.launcher.http_server import QuietHandler, serving_in_threads

CLOSES = 0
"""Status of a webhook that closes the connection without an answer."""


SILENT = -1
"""Status of a webhook that answers nothing and keeps the connection."""
DRIPS = -2
"""Status of a webhook whose answer has no end: a byte every few milliseconds."""


@dataclass
class Receiver:
    """The notices that a webhook took, and the status with which it answers."""

    address: str = ""
    notices: list[dict[str, Any]] = field(default_factory=list)
    tries: int = 0
    status: int = 200


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """Serve a webhook on a free port for the block."""
    receiver = Receiver()

    class Answers(QuietHandler):
        def do_POST(self) -> None:
            receiver.tries += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.close_connection = True
            if receiver.status == CLOSES:
                return
            if receiver.status in (SILENT, DRIPS):
                with suppress(OSError):  # until the client gives up
                    while receiver.status == SILENT:
                        time.sleep(0.02)
                    while receiver.status == DRIPS:
                        self.wfile.write(b"H")
                        time.sleep(0.02)
                return
            if receiver.status == 200:
                receiver.notices.append(body)
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving_in_threads(Answers) as address:
        receiver.address = f"{address}/hooks/secret-path"
        yield receiver
        receiver.status = CLOSES
