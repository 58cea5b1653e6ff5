"""An S3 server of one test's own with the files and Delta tables that teams keep there. A test may kill it."""

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
import pytest

from ml_assets_tests.servers.training.s3_server import OwnS3Server

BUCKET = "warehouse"
ENDPOINT_ENV, KEY_ENV, SECRET_ENV = "WAREHOUSE_S3", "WAREHOUSE_KEY_ID", "WAREHOUSE_SECRET"
"""Environment variables that the declarations of these tests name."""
ACCESS = {"endpoint_url_env": ENDPOINT_ENV, "access_key_id_env": KEY_ENV, "secret_access_key_env": SECRET_ENV}


@dataclass
class ObjectWarehouse:
    """A bucket on a real server."""

    server: OwnS3Server

    @cached_property
    def _client(self) -> Any:
        from botocore.session import Session

        env = self.server.environment
        return Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=env["AWS_ENDPOINT_URL"],
            aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        )

    @property
    def options(self) -> dict[str, str]:
        """Storage options for a writer of Delta tables."""
        env = self.server.environment
        return {
            "aws_endpoint_url": env["AWS_ENDPOINT_URL"],
            "aws_access_key_id": env["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": env["AWS_SECRET_ACCESS_KEY"],
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
            "aws_conditional_put": "etag",
        }

    def make_bucket(self) -> None:
        """Make the bucket."""
        self._client.create_bucket(Bucket=BUCKET)

    def put(self, key: str, content: bytes) -> None:
        """Store an object."""
        self._client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def put_frame(self, key: str, frame: pl.DataFrame) -> None:
        """Store rows in the format of the key's suffix."""
        self.put(key, encoded(frame, key.rpartition(".")[2]))

    def write_delta(self, name: str, frame: pl.DataFrame, **options: Any) -> str:
        """Write a version of a Delta table; return the address of the table."""
        path = f"s3://{BUCKET}/{name}"
        frame.write_delta(path, storage_options=self.options, **options)
        return path

    def set_variables(self, patch: pytest.MonkeyPatch) -> None:
        """Point declarations with `ACCESS` to this server, and nothing else."""
        env = self.server.environment
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        patch.setenv(ENDPOINT_ENV, env["AWS_ENDPOINT_URL"])
        patch.setenv(KEY_ENV, env["AWS_ACCESS_KEY_ID"])
        patch.setenv(SECRET_ENV, env["AWS_SECRET_ACCESS_KEY"])
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def encoded(frame: pl.DataFrame, suffix: str) -> bytes:
    """Return a file with these rows: `parquet`, `csv` or `jsonl`."""
    file = io.BytesIO()
    if suffix == "parquet":
        frame.write_parquet(file)
    elif suffix == "csv":
        frame.write_csv(file)
    else:
        moments = pl.col("sold_at", "changed_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f%z")
        frame.with_columns(moments).write_ndjson(file)
    return file.getvalue()
