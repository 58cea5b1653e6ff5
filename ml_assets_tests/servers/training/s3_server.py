"""An S3 server of a test's own, over a folder of its choice: to be killed, or to run out of space."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deployment.testbed import processes
from deployment.testbed.build import build
from deployment.testbed.processes import Process
from ml_assets_tests.servers.s3_variables import s3_variables

_BUCKET = "training"
_KEY, _SECRET = "a-key-of-tests", "a-secret-of-tests"


@dataclass
class OwnS3Server:
    """One versitygw. Objects are files of `folder`, which tests may damage."""

    folder: Path
    log: Path
    port: int = field(default_factory=lambda: processes.free_port("127.0.0.1"))
    process: Process | None = None

    @property
    def url(self) -> str:
        """Address for artifacts."""
        return f"s3://{_BUCKET}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that point an S3 client of another process at it."""
        return s3_variables(f"http://127.0.0.1:{self.port}", _KEY, _SECRET)

    def path(self, address: str) -> Path:
        """Return the path of an object or a prefix on the server's disk."""
        return self.folder / address.removeprefix("s3://")

    def start(self) -> None:
        """Start, or start again with the port and data it had."""
        (self.folder / _BUCKET).mkdir(parents=True, exist_ok=True)
        listen = ["--port", f"127.0.0.1:{self.port}", "--health", "/healthz", "--keep-alive", "--quiet"]
        self.process = processes.start(
            "s3",
            [build("versitygw") / "versitygw", *listen, "posix", self.folder],
            log=self.log,
            env={"PATH": os.environ["PATH"], "ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET},
        )
        health = f"http://127.0.0.1:{self.port}/healthz"
        processes.wait_ready(self.process, lambda: processes.why_http_not(health), 30)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            processes.kill(self.process)
            self.process = None


@contextmanager
def running(folder: Path, log: Path) -> Iterator[OwnS3Server]:
    """A server over `folder` for the block."""
    storage = OwnS3Server(folder, log)
    storage.start()
    try:
        yield storage
    finally:
        storage.kill()
