"""A file in S3 that is read whole, and the client for it.

Here: server and credentials from the environment, as other S3 clients find them. Not here: many files and partitions
(`file_source`).
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from resources.addresses import hide_credentials
from resources.settings import Settings


def s3_client(endpoint: str | None, key_id: str | None = None, secret: str | None = None) -> Any:
    """Return a client that tries once. botocore itself finds `AWS_*` for what is None."""
    from botocore import config, session

    return session.Session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=config.Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}),
    )


@dataclass(frozen=True)
class S3Object:
    """An object of a bucket, with methods of a path. `ML_ASSETS_S3_ENDPOINT_URL` or `AWS_*` name its server."""

    address: str
    """`s3://bucket/key`."""

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """Last part of the key."""
        return PurePosixPath(self.address).name

    @property
    def suffix(self) -> str:
        """End of the name, from its last point on."""
        return PurePosixPath(self.address).suffix

    @property
    def stem(self) -> str:
        """Name without `suffix`."""
        return PurePosixPath(self.address).stem

    def version(self) -> str:
        """Return the ETag, which changes with the content. Raises `OSError`."""
        return str(self._ask("head_object")["ETag"])

    def read_bytes(self) -> bytes:
        """Return the content. Raises `OSError`."""
        return self._ask("get_object")["Body"].read()

    def _ask(self, operation: str) -> Any:
        from botocore import exceptions

        bucket, _, key = self.address.removeprefix("s3://").partition("/")
        endpoint = Settings().s3_endpoint_url
        try:
            client = s3_client(None if endpoint is None else endpoint.reveal())
            return getattr(client, operation)(Bucket=bucket, Key=key)
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            raise OSError(hide_credentials(" ".join(str(error).split())[:300])) from error
