"""versitygw: S3 over a folder. A bucket is a subfolder, so buckets are made before the start."""

import signal
import subprocess

from deployment.testbed.build import build
from deployment.testbed.processes import Process, ServerFailed, start, why_http_not
from deployment.testbed.servers.servers_record import BUCKETS, HOST, S3, ServersRecord, server_environment


class S3Server:
    """The S3 server, for blocks of the lake, artifacts and files of MLflow."""

    name = S3
    ask = signal.SIGTERM
    seconds = 30.0

    def prepare(self, record: ServersRecord) -> None:
        """Make the buckets."""
        for bucket in BUCKETS:
            (record.path / "s3" / bucket).mkdir(parents=True, exist_ok=True)

    def start(self, record: ServersRecord) -> Process:
        """Start it on loopback only; its default is every interface."""
        listen = ["--port", f"{HOST}:{record.ports[S3]}", "--health", "/healthz", "--keep-alive", "--quiet"]
        return start(
            S3,
            [build("versitygw") / "versitygw", *listen, "posix", record.path / "s3"],
            log=record.log(S3),
            env=server_environment(record, ROOT_ACCESS_KEY=record.s3_key, ROOT_SECRET_KEY=record.s3_secret),
        )

    def why_not(self, record: ServersRecord) -> str:
        """Return the reason why it does not answer; empty once it does."""
        return why_http_not(f"{record.url(S3)}/healthz")

    def finish(self, record: ServersRecord) -> None:
        """Do nothing: no set-up is needed."""

    def version(self, record: ServersRecord) -> str:
        """Return the version that the program prints. Its API has none."""
        said = subprocess.run(
            [build("versitygw") / "versitygw", "--version"], capture_output=True, text=True, check=False
        ).stdout
        for line in said.splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Version":
                return f"versitygw {value.strip().removeprefix('v')}"
        raise ServerFailed(f"versitygw printed no version: {said!r}")
