"""An S3 server with a token service (STS) of a test's own: SeaweedFS. It gives keys of a role by `AssumeRole`, and by
`AssumeRoleWithWebIdentity` to the tokens of an issuer.
"""

import base64
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.config
import botocore.session

from deployment.testbed import processes
from deployment.testbed.build import build
from ml_assets_tests.servers.s3_variables import s3_variables
from resources.addresses import Address
from resources.launcher.kubernetes.worker_keys import WorkersRole

BUCKET = "artifacts"
ROLE = "arn:aws:iam::000000000000:role/workers"
POD_ROLE = "arn:aws:iam::000000000000:role/pods"
"""Role of the pods of `TrustedIssuer`."""
READY_SECONDS = 60.0
_NAME, _KEY, _SECRET = "platform", "key-of-the-platform", "secret-of-the-platform"
_PARTS = ("master", "volume", "filer", "s3")


@dataclass(frozen=True, kw_only=True)
class TrustedIssuer:
    """Issuer of the tokens of pods, and the pods that may assume `POD_ROLE`."""

    address: str
    keys: str
    """Address of its public keys."""
    audience: str
    subjects: tuple[str, ...]
    """Service accounts, `system:serviceaccount:NAMESPACE:NAME`."""
    ca: Path | None = None
    """Certificate of the authority of `keys`."""
    life: str = "1h"
    """Life of the keys for which a pod asks without a time, in Go's words."""

    def provider(self) -> dict[str, Any]:
        """Return the issuer in the words of SeaweedFS."""
        config = {"issuer": self.address, "clientId": self.audience, "jwksUri": self.keys}
        if self.ca is not None:
            config["tlsCaCert"] = str(self.ca)
        return {"name": "cluster", "type": "oidc", "enabled": True, "config": config}

    def role(self) -> dict[str, Any]:
        """Return the role of its pods."""
        trust = {
            "Effect": "Allow",
            "Principal": {"Federated": "cluster"},
            "Action": ["sts:AssumeRoleWithWebIdentity"],
            "Condition": {"StringEquals": {"oidc:sub": list(self.subjects)}},
        }
        return _role(POD_ROLE, trust)


@dataclass
class TokenStore:
    """One SeaweedFS. The identity `platform` may do everything, and assume the role."""

    folder: Path
    ports: dict[str, int] = field(
        default_factory=lambda: {
            f"{part}.port{kind}": processes.free_port("127.0.0.1")
            for part in _PARTS
            for kind in ("", ".grpc")
        }
    )

    @property
    def port(self) -> int:
        """Port of S3 and STS."""
        return self.ports["s3.port"]

    @property
    def address(self) -> str:
        """Address of S3 and STS on this machine."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a process works as the platform."""
        return s3_variables(self.address, _KEY, _SECRET)

    def client(self, **credentials: str) -> Any:
        """Return an S3 client, of the platform without `credentials`."""
        own = credentials or {"aws_access_key_id": _KEY, "aws_secret_access_key": _SECRET}
        session: Any = botocore.session.get_session()
        config = botocore.config.Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0})
        return session.create_client(
            "s3", region_name="us-east-1", endpoint_url=self.address, config=config, **own
        )

    def workers_role(self, *, written: Sequence[str], **changes: Any) -> WorkersRole:
        """Return `ROLE` as a launcher assumes it, to write these places of the bucket."""
        facts = {"arn": ROLE, "seconds": 900, "endpoint_url": Address(self.address), "read": []}
        return WorkersRole(**facts | changes, written=written)

    def client_with(self, keys: str) -> Any:
        """Return an S3 client with the content of a `KEYS` file."""
        told = json.loads(keys)
        return self.client(
            aws_access_key_id=told["AccessKeyId"],
            aws_secret_access_key=told["SecretAccessKey"],
            aws_session_token=told["SessionToken"],
        )


@contextmanager
def running_token_store(folder: Path, issuer: TrustedIssuer | None = None) -> Iterator[TokenStore]:
    """A store for the block, with an empty bucket. It trusts the pods of `issuer`."""
    store = TokenStore(folder)
    data = folder / "data"
    data.mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
    (folder / "iam.json").write_text(json.dumps(_roles(issuer)))
    options = {
        **store.ports,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "dir": data,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 0,
        "volume.preStopSeconds": 0,
        "s3": "true",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": folder / "s3.json",
        "s3.iam.config": folder / "iam.json",
        "filer.localSocket": folder / "filer.sock",
        "s3.localSocket": folder / "s3.sock",
    }
    words = [f"-{name}={value}" for name, value in options.items()]
    process = processes.start(
        "seaweedfs",
        [build("seaweedfs") / "weed", "-logtostderr", "server", *words],
        log=folder / "seaweedfs.log",
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        cwd=folder,
    )
    try:
        processes.wait_ready(process, lambda: _why_not(store), READY_SECONDS)
        yield store
    finally:
        processes.stop(process)


def _why_not(store: TokenStore) -> str:
    """Return the reason why the bucket cannot be made; empty once it is there and takes an object."""
    import botocore.exceptions

    client = store.client()
    try:
        if BUCKET not in [one["Name"] for one in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
        return str(error)
    return ""


_IDENTITIES = {
    "identities": [
        {
            "name": _NAME,
            "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


def _roles(issuer: TrustedIssuer | None) -> dict[str, Any]:
    """Return the roles. The platform and the pods of `issuer` may assume that of workers. A role may do everything in
    the bucket, until a session's policy says less.
    """
    launchers = [f"arn:aws:iam::000000000000:user/{_NAME}", "arn:aws:sts::assumed-role/pods/*"]
    trust = {
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": ["sts:AssumeRole"],
        "Condition": {"StringLike": {"aws:PrincipalArn": launchers}},
    }
    of_bucket = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
    rights = {"Effect": "Allow", "Action": ["s3:*"], "Resource": of_bucket}
    return {
        "sts": {
            "tokenDuration": issuer.life if issuer else "1h",
            "maxSessionLength": "12h",
            "issuer": "tests",
            "signingKey": base64.b64encode(secrets.token_bytes(32)).decode(),
            "providers": [issuer.provider()] if issuer else [],
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [
            {"name": "of-the-bucket", "document": {"Version": "2012-10-17", "Statement": [rights]}},
        ],
        "roles": [_role(ROLE, trust), *([issuer.role()] if issuer else [])],
    }


def _role(arn: str, trust: dict[str, Any]) -> dict[str, Any]:
    return {
        "roleName": arn.rpartition("/")[2],
        "roleArn": arn,
        "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
        "attachedPolicies": ["of-the-bucket"],
    }
