"""Keys of S3 for the workers of one training: for its own folders alone, and for a short time.

Here: the policy, the request to the store's token service (STS), the Secret that the workers' pods mount, its renewal.
botocore reads the file again when the keys are about to end. Not here: the pods (attempt_objects).
"""

# pyright: reportMissingTypeStubs=false
# (botocore is not typed)

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from resources.addresses import Address
from resources.artifacts import ArtifactsUnavailable
from resources.job.errors import BadConfiguration, ClusterRefused, ClusterUnavailable
from resources.launcher.kubernetes.attempt_objects import CONFIG, KEYS_FOLDER, keys_secret_name
from resources.launcher.kubernetes.cluster import AlreadyThere, Cluster, Document

KEYS = "keys.json"
"""File of the Secret, in the form of botocore's `credential_process`."""
_PATTERNS = "*?$"
"""Characters of wildcards and variables in a policy: with one, the keys would reach folders of others."""
_LONGEST_POLICY = 2048
"""Characters of a session's policy, https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html."""
_RETRY_SECONDS = 30.0
_PASSING_STATUS = 500
_CONNECT_SECONDS, _READ_SECONDS = 5, 30

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkersRole:
    """Role at the store that a launcher assumes for the workers of a training."""

    arn: str
    seconds: int
    """Life of the keys."""
    endpoint_url: Address | None
    """Address of the store, which is also that of its token service; None at AWS."""
    written: Sequence[str]
    """Addresses of folders, `s3://…`, that the workers read and write."""
    read: Sequence[str]
    """Addresses of folders that the workers only read."""

    def __post_init__(self) -> None:
        """Refuse folders that no policy can name. Raise `BadConfiguration`."""
        instead = (
            "set ML_ASSETS_ARTIFACTS_URL to another prefix, or leave out ML_ASSETS_KUBERNETES_S3_ROLE: then workers "
            "get the keys of ML_ASSETS_KUBERNETES_S3_SECRET"
        )
        for one in (*self.written, *self.read):
            if any(character in one for character in _PATTERNS):
                raise BadConfiguration(
                    f"keys of one training cannot be limited to {one}: {' '.join(_PATTERNS)} mean other folders, too, "
                    f"in a policy; {instead}"
                )
        if (length := len(self.policy())) > _LONGEST_POLICY:
            raise BadConfiguration(
                f"the policy of keys for {self.written[0]} has {length} characters, and a store takes "
                f"{_LONGEST_POLICY}; {instead.replace('another', 'a shorter')}"
            )

    def keys(self, name: str) -> str:
        """Return new keys as the content of `KEYS`. `name`: the session, for the store's log.

        Raise `BadConfiguration` if the store refuses, `ArtifactsUnavailable` if it does not answer.
        """
        import botocore.config
        import botocore.exceptions as boto
        import botocore.session
        from botocore.parsers import ResponseParserError

        patience = botocore.config.Config(
            connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"mode": "standard"}
        )
        where = self.endpoint_url or "AWS"
        session: Any = botocore.session.get_session()  # pyright: ignore[reportUnknownMemberType]
        try:
            sts: Any = session.create_client(
                "sts",
                # Unlike S3, it takes no request without one, also at another store, which has none.
                region_name=session.get_config_variable("region") or "us-east-1",
                endpoint_url=self.endpoint_url and self.endpoint_url.reveal(),
                config=patience,
            )
            answer = sts.assume_role(
                RoleArn=self.arn, RoleSessionName=name, DurationSeconds=self.seconds, Policy=self.policy()
            )["Credentials"]
            ends = answer["Expiration"]
            facts = {one: answer[one] for one in ("AccessKeyId", "SecretAccessKey", "SessionToken")}
        except (
            boto.ClientError,
            boto.NoCredentialsError,
            boto.PartialCredentialsError,
            FileNotFoundError,  # the token of the launcher's own account
        ) as error:
            status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= _PASSING_STATUS:
                raise self._away(error) from error
            raise BadConfiguration(
                f"the role {self.arn} cannot be assumed at {where} ({error}): let it trust the identity of runs, and "
                "allow keys of this life (ML_ASSETS_KUBERNETES_S3_ROLE_SECONDS). Without ML_ASSETS_KUBERNETES_S3_ROLE, "
                "workers get the keys of ML_ASSETS_KUBERNETES_S3_SECRET"
            ) from error
        except (boto.BotoCoreError, ResponseParserError, KeyError, ValueError) as error:
            # The last three: the answer of something between here and the store.
            raise self._away(error) from error
        ends = ends if ends.tzinfo else ends.replace(tzinfo=UTC)
        return json.dumps({"Version": 1, "Expiration": ends.isoformat(), **facts})

    def policy(self) -> str:
        """Return the policy of the keys. They reach nothing beyond it, and nothing beyond the role itself."""
        partition = self.arn.split(":")[1] if ":" in self.arn else "aws"
        written, read = (
            [one.removeprefix("s3://").rstrip("/") for one in places] for places in (self.written, self.read)
        )
        buckets = sorted({one.partition("/")[0] for one in (*written, *read)})
        of = f"arn:{partition}:s3:::"
        prefixes = [f"{one.partition('/')[2]}/*" for one in (*written, *read)]
        write = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        statements = [
            _allow(["s3:GetObject"], [f"{of}{one}/*" for one in (*written, *read)]),
            _allow(write, [f"{of}{one}/*" for one in written]),
            {
                **_allow(["s3:ListBucket"], [f"{of}{one}" for one in buckets]),
                "Condition": {"StringLike": {"s3:prefix": prefixes}},
            },
            # No condition limits it to a prefix. It tells names of files that are being sent, and no content.
            _allow(["s3:ListBucketMultipartUploads"], [f"{of}{one}" for one in buckets]),
        ]
        return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))

    def _away(self, error: Exception) -> ArtifactsUnavailable:
        return ArtifactsUnavailable(
            f"the token service (STS) at {self.endpoint_url or 'AWS'} gave no keys ({type(error).__name__}: "
            f"{error}): check that it runs; then run it again"
        )


def _allow(actions: list[str], resources: list[str]) -> Document:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


def secret_manifest(owner: Document, labels: dict[str, str], keys: str) -> Document:
    """Return the Secret with `keys` for the pods of `owner`, with which Kubernetes deletes it."""
    meta: Document = owner["metadata"]
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: meta[key] for key in ("name", "uid")
    }
    config = f"[default]\ncredential_process = cat {KEYS_FOLDER}/{KEYS}\n"
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": keys_secret_name(str(meta["name"])),
            "labels": labels,
            "ownerReferences": [reference],
        },
        "stringData": {CONFIG: config, KEYS: keys},
    }


@dataclass
class WorkerKeys:
    """Keys of the workers of a training, which this launcher renews as long as it follows the training."""

    cluster: Cluster
    role: WorkersRole
    name: str
    """Name of the training."""
    labels: dict[str, str]
    renew_seconds: float
    """Time between two renewals: half the life of the keys. Pods see a change up to two minutes later, and botocore
    asks for new keys 15 minutes before their end.
    """
    _owner: Document | None = None
    _due: float = 0.0
    """Time of `time.monotonic` for the next renewal."""
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def give(self, owner: Document) -> None:
        """Write keys for the pods of `owner`, a document with its kind, unless its keys are fresh.

        Raise `BadConfiguration`, `ArtifactsUnavailable`, and the errors of the cluster.
        """
        with self._turn:
            before = self._owner
            is_known = before is not None and before["metadata"]["uid"] == owner["metadata"]["uid"]
            if is_known and time.monotonic() < self._due:
                return
            self._write(owner)
            self._owner = owner
        if before is None:
            threading.Thread(target=self._keep_renewing, name=f"keys {self.name}", daemon=True).start()

    def stop(self) -> None:
        """Stop renewing. The last keys end by themselves."""
        self._over.set()

    def _write(self, owner: Document) -> None:
        keys = self.role.keys(self.name)
        secret = secret_manifest(owner, self.labels, keys)
        while True:
            try:
                self.cluster.create("secret", secret)
                break
            except AlreadyThere:
                if self.cluster.replace("secret", secret) is not None:
                    break
        self._due = time.monotonic() + self.renew_seconds

    def _keep_renewing(self) -> None:
        while not self._over.wait(max(0.0, self._due - time.monotonic())):
            with self._turn:
                assert self._owner is not None
                try:
                    self._write(self._owner)
                except (BadConfiguration, ArtifactsUnavailable, ClusterUnavailable, ClusterRefused) as error:
                    log.warning("the keys of the workers of %s were not renewed: %s", self.name, error)
                    self._due = time.monotonic() + _RETRY_SECONDS
