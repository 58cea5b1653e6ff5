"""Processes without keys: a token of their service account, at a real token service, suffices for S3. Their keys end
after seconds, and so does each token, so that everything here needs new ones.
"""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.exceptions
import botocore.session
import pytest

from ml_assets_tests.resources.oidc_issuer import OidcIssuer, running_issuer
from ml_assets_tests.servers.token_store import (
    BUCKET,
    POD_ROLE,
    TokenStore,
    TrustedIssuer,
    running_token_store,
)
from ml_assets_tests.servers.training.pod_processes import PodProcesses
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.artifacts import ArtifactsRefused
from resources.artifacts.s3 import RemoteArtifacts
from resources.job.errors import BadConfiguration
from resources.job.job import ExitCode

pytestmark = pytest.mark.timeout(400)

AUDIENCE = "sts.amazonaws.com"
ACCOUNT, OTHER = "system:serviceaccount:team:trainer", "system:serviceaccount:other:trainer"
KEYS_SECONDS, TOKEN_SECONDS = 5, 6


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcIssuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def store(issuer: OidcIssuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenStore]:
    trusted = TrustedIssuer(
        address=issuer.address,
        keys=f"{issuer.address}/keys",
        audience=AUDIENCE,
        subjects=(ACCOUNT,),
        life=f"{KEYS_SECONDS}s",
    )
    with running_token_store(tmp_path_factory.mktemp("store"), trusted) as store:
        yield store


@dataclass
class Token:
    """The mounted token of a pod."""

    file: Path
    issuer: OidcIssuer

    def write(self, account: str = ACCOUNT) -> None:
        """Replace the file, as the kubelet does."""
        new = self.file.with_suffix(".new")
        until = int(time.time()) + TOKEN_SECONDS
        new.write_text(self.issuer.id_token(account, aud=AUDIENCE, exp=until))
        new.replace(self.file)


@pytest.fixture
def token(store: TokenStore, issuer: OidcIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    """Let clients of this process work as a pod that has no keys."""
    token = Token(tmp_path / "token", issuer)
    token.write()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token.file))
    monkeypatch.setenv("AWS_ROLE_ARN", POD_ROLE)
    return token


@pytest.fixture
def renewed(token: Token) -> Iterator[Token]:
    """The token, which is replaced every two seconds."""
    over = threading.Event()

    def keep_writing() -> None:
        while not over.wait(2.0):
            token.write()

    thread = threading.Thread(target=keep_writing)
    thread.start()
    yield token
    over.set()
    thread.join()


def keys_of_now() -> str:
    """Return the keys that a pod gets now, as the content of a `KEYS` file."""
    session: Any = botocore.session.Session()
    keys = session.get_credentials().get_frozen_credentials()
    told = {"AccessKeyId": keys.access_key, "SecretAccessKey": keys.secret_key, "SessionToken": keys.token}
    return json.dumps(told)


def wait_until_refused(store: TokenStore, keys: str) -> None:
    """Return when keys that the store took have ended."""
    client, deadline = store.client_with(keys), time.monotonic() + 60

    def ask_again() -> None:
        while time.monotonic() < deadline:
            client.head_object(Bucket=BUCKET, Key="ready")
            time.sleep(0.1)

    with pytest.raises(botocore.exceptions.ClientError, match="403"):
        ask_again()


def test_a_client_in_use_renews_its_keys(store: TokenStore, renewed: Token, tmp_path: Path) -> None:
    artifacts = RemoteArtifacts(f"s3://{BUCKET}/{tmp_path.name}", tmp_path / "own", store.address)
    folder = tmp_path / "own" / "thing"
    folder.mkdir(parents=True)
    (folder / "first").write_text("1")
    artifacts.push("thing")
    wait_until_refused(store, keys_of_now())
    (folder / "second").write_text("2")
    artifacts.push("thing")
    again = RemoteArtifacts(artifacts.url, tmp_path / "other", store.address)
    again.pull("thing")
    assert {one.name for one in (tmp_path / "other" / "thing").iterdir()} == {"first", "second"}


def test_a_training_outlives_keys_and_tokens(store: TokenStore, renewed: Token, tmp_path: Path) -> None:
    """Two nodes train, lose a node, and resume from the checkpoints that they stored. Neither has a key."""
    job = small_job(small_snapshot(tmp_path / "snapshots"), pace=0.05)
    pods = PodProcesses(job, store, f"s3://{BUCKET}/{tmp_path.name}", tmp_path)
    pods.variables = {}
    first = keys_of_now()
    try:
        pods.start()
        pods.wait_for("checkpoint", step=20)
        environment = Path(f"/proc/{pods.processes[0].pid}/environ").read_bytes()
        assert b"AWS_WEB_IDENTITY_TOKEN_FILE=" in environment
        assert b"AWS_ACCESS_KEY_ID" not in environment
        assert b"AWS_SECRET_ACCESS_KEY" not in environment
        pods.kill_node(1)
        pods.wait()
        wait_until_refused(store, first)
        pods.start()
        pods.wait_for("resumed")
        assert pods.wait(180) == [ExitCode.DONE] * 2, pods.said()
        assert pods.result().attempts == 2
    finally:
        pods.end()


def test_a_launcher_without_keys_gives_workers_theirs(store: TokenStore, token: Token) -> None:
    worker = store.client_with(store.workers_role(written=[f"s3://{BUCKET}/own"]).keys("test"))
    worker.put_object(Bucket=BUCKET, Key="own/file", Body=b"mine")
    with pytest.raises(botocore.exceptions.ClientError, match="AccessDenied"):
        worker.put_object(Bucket=BUCKET, Key="other/file", Body=b"stolen")


def test_a_role_that_does_not_trust_the_account_is_named(
    store: TokenStore, token: Token, tmp_path: Path
) -> None:
    token.write(OTHER)
    artifacts = RemoteArtifacts(f"s3://{BUCKET}/{tmp_path.name}", tmp_path / "own", store.address)
    with pytest.raises(ArtifactsRefused, match="AWS_ROLE_ARN"):
        artifacts.exists("thing")
    with pytest.raises(BadConfiguration, match="role/workers cannot be assumed"):
        store.workers_role(written=[f"s3://{BUCKET}/own"]).keys("test")


def test_a_missing_token_is_named(store: TokenStore, token: Token, tmp_path: Path) -> None:
    token.file.unlink()
    artifacts = RemoteArtifacts(f"s3://{BUCKET}/{tmp_path.name}", tmp_path / "own", store.address)
    with pytest.raises(ArtifactsRefused, match="AWS_WEB_IDENTITY_TOKEN_FILE"):
        artifacts.exists("thing")
    with pytest.raises(BadConfiguration, match=str(token.file)):
        store.workers_role(written=[f"s3://{BUCKET}/own"]).keys("test")
